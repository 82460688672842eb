"""The ledger of dropped files: the only place that speaks SQL about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool

from moraine.errors import LedgerUnavailable
from moraine.ingest.filedrop.model import FileRow
from moraine.ingest.model import State
from moraine.queries import BROKEN, AsyncQueries
from moraine.sql import load_queries
from moraine.storage.listing import StoredFile

_MOST = 1000
_COLUMNS = ("location", "version", "size", "state", "key", "ingested", "target", "error")
_ROW = ", ".join(f"ingest_files.{name}" for name in _COLUMNS) + (
    ", extract(epoch FROM now() - ingest_files.seen_at)::float8 AS age"
)
_SQL = {
    name: query.replace(b"{row}", _ROW.encode())
    for name, query in load_queries("moraine.ingest.filedrop", "filedrop.sql").items()
}


@dataclass(frozen=True, slots=True)
class TakenFile:
    """A file that was taken, and what is known of its key."""

    row: FileRow
    state: State | None
    """None: nothing; it was not kept."""
    database: str | None
    table: str | None
    error: dict[str, Any] | None


class FileLedger:
    def __init__(self, pool: AsyncConnectionPool[Any]) -> None:
        self._pool = pool
        self._queries = AsyncQueries(pool, _SQL)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[bool]:
        """Whether nobody else watches. The lock goes with its connection, so with a crash too."""
        try:
            connection = await self._pool.getconn()
        except BROKEN as error:
            raise LedgerUnavailable() from error
        locked = False
        try:
            try:
                row = await (await connection.execute(_SQL["lock"])).fetchone()
            except BROKEN as error:
                raise LedgerUnavailable() from error
            locked = bool(row and row[0])
            yield locked
        finally:
            if locked:
                with suppress(psycopg.Error):
                    await connection.execute(_SQL["unlock"])
            await self._pool.putconn(connection)

    async def known(self, locations: Sequence[str]) -> dict[str, FileRow]:
        rows = await self._queries.run("known", locations=list(locations))
        return {row["location"]: FileRow(**row) for row in rows}

    async def note(self, files: Iterable[StoredFile]) -> None:
        await self._queries.run("note", files=_files(files))

    async def take(self, file: StoredFile, key: str) -> bool:
        return bool(await self._change("take", file, key=key))

    async def put_back(self, file: StoredFile | FileRow) -> None:
        await self._change("put_back", file)

    async def taken(self, base: str) -> list[TakenFile]:
        rows = await self._queries.run("taken", **_below(base), limit=_MOST)
        return [_taken(row) for row in rows]

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
        """Every file but the taken ones, in the order of their names."""
        bounds = _below(base)
        while rows := await self._queries.run("page", **bounds, limit=_MOST):
            bounds["start"] = rows[-1]["location"]
            yield [FileRow(**row) for row in rows]

    async def _change(
        self, name: str, file: StoredFile | FileRow, **parameters: Any
    ) -> list[dict[str, Any]]:
        return await self._queries.run(
            name, location=file.location, version=file.version, **parameters
        )


def _below(base: str) -> dict[str, str]:
    # 0 is what comes after a slash.
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
