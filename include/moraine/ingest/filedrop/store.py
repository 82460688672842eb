"""The ledger of dropped files: the only place that speaks SQL about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool

from moraine.errors import LedgerUnavailable
from moraine.ingest.filedrop.model import FileRow, TakenFile
from moraine.ingest.model import State
from moraine.ledger.queries import BROKEN, AsyncQueries, load_queries
from moraine.storage.files import StoredFile

_PAGE = 1000
_SQL = load_queries("moraine.ingest.filedrop")


class FileStore:
    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        self._pool = pool
        self._queries = AsyncQueries(pool, _SQL)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[bool]:
        """Whether this is the only watcher. A crash closes the connection and frees the lock."""
        async with AsyncExitStack() as held:
            try:
                connection = await self._pool.getconn()
                held.push_async_callback(self._pool.putconn, connection)
                row = await (await connection.execute(_SQL["lock"])).fetchone()
            except BROKEN as error:
                raise LedgerUnavailable() from error
            locked = bool(row and row[0])
            try:
                yield locked
            finally:
                if locked:
                    with suppress(psycopg.Error):
                        await connection.execute(_SQL["unlock"])

    async def known(self, locations: Sequence[str]) -> dict[str, FileRow]:
        rows = await self._queries.run("known", locations=list(locations))
        return {row["location"]: FileRow(**row) for row in rows}

    async def note(self, files: Iterable[StoredFile]) -> None:
        await self._queries.run("note", files=_files(files))

    async def take(self, file: StoredFile, key: str) -> bool:
        return bool(await self._change("take", file, key=key))

    async def put_back(self, file: StoredFile | FileRow) -> None:
        await self._change("put_back", file)

    async def taken(self, base: str) -> tuple[list[TakenFile], bool]:
        """A page of taken files, and whether there may be more."""
        rows = await self._queries.run("taken", **_below(base), limit=_PAGE)
        return [_taken(row) for row in rows], len(rows) == _PAGE

    async def finish(self, file: StoredFile | FileRow, sha256: str) -> FileRow | None:
        return _one(await self._change("finish", file, sha256=sha256))

    async def refuse(self, file: StoredFile | FileRow, error: dict[str, Any]) -> FileRow | None:
        return _one(await self._change("refuse", file, error=Jsonb(error)))

    async def aim(self, row: FileRow, target: str) -> FileRow | None:
        return _one(await self._change("aim", row, target=target))

    async def forget(self, files: Iterable[FileRow]) -> None:
        await self._queries.run("forget", files=_files(files))

    async def count(self, base: str) -> int:
        return int((await self._queries.run("count", **_below(base)))[0]["files"])

    async def pages(self, base: str) -> AsyncIterator[list[FileRow]]:
        """Every file except the taken ones, in the order of their names."""
        bounds = _below(base)
        while rows := await self._queries.run("page", **bounds, limit=_PAGE):
            bounds["start"] = rows[-1]["location"]
            yield [FileRow(**row) for row in rows]

    async def _change(
        self, name: str, file: StoredFile | FileRow, **parameters: Any
    ) -> list[dict[str, Any]]:
        return await self._queries.run(
            name, location=file.location, version=file.version, **parameters
        )


def _below(base: str) -> dict[str, str]:
    # 0 is the character after the slash.
    return {"start": f"{base}/", "stop": f"{base}0"}


def _files(files: Iterable[StoredFile | FileRow]) -> Jsonb:
    names = ("location", "version", "size")
    return Jsonb([{name: getattr(file, name) for name in names} for file in files])


def _one(rows: list[dict[str, Any]]) -> FileRow | None:
    return FileRow(**rows[0]) if rows else None


def _taken(row: dict[str, Any]) -> TakenFile:
    state, database, table, error = (
        row.pop(name) for name in ("request_state", "database_name", "table_name", "request_error")
    )
    return TakenFile(FileRow(**row), State(state) if state else None, database, table, error)
