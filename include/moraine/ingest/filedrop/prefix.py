"""One watched prefix: what is done about each of its files, in which order.

The ledger has what is known of every file: since when it is as it is, the key it was taken with,
and what became of it. What a crash interrupts, the next look goes on with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from moraine.errors import LedgerUnavailable, StorageRefused, StorageUnavailable
from moraine.failpoints import async_failpoint
from moraine.ingest.decompression import unpacked
from moraine.ingest.errors import BodyTooLarge, IngestError, InProgress, KeyReused, Overloaded
from moraine.ingest.filedrop.ledger import FileLedger, TakenFile
from moraine.ingest.filedrop.looks import Look
from moraine.ingest.filedrop.model import (
    DOOR,
    Drop,
    DroppedName,
    FileRow,
    FileState,
    is_hidden,
    key_of,
    sha256_of,
)
from moraine.ingest.filedrop.reading import (
    FileChanged,
    hash_file,
    in_thread,
    read_file,
    require_unchanged,
)
from moraine.ingest.filedrop.tidying import stays, tidy
from moraine.ingest.intake import Intake
from moraine.ingest.model import Arrival, State
from moraine.log import get_logger
from moraine.settings.ingest import FileDropSettings
from moraine.storage.stores import Storage, StoredFile

log = get_logger(__name__)

_LOOK_AGAIN_SECONDS = 5.0
_UNSETTLED = (State.STAGED, State.WRITING)
StorageError = (StorageRefused, StorageUnavailable)


class Prefix:
    def __init__(
        self,
        drop: Drop,
        storage: Storage,
        files: FileLedger,
        intake: Intake,
        settings: FileDropSettings,
    ) -> None:
        self._drop = drop
        self._storage = storage
        self._files = files
        self._intake = intake
        self._most_bytes = settings.max_file_bytes
        self._room = asyncio.Semaphore(settings.files_at_once)

    async def look_through(self, look: Look) -> None:
        try:
            await self._look_through(look)
        except StorageError as error:
            look.fail("filedrop.prefix.failed", error, prefix=self._drop.name)

    async def settle(self, look: Look) -> int:
        """See what became of files that were taken; how many are not written yet."""
        while True:
            found, more = await self._files.taken(self._drop.base)
            await self._all([self._settle(taken, look) for taken in found])
            unsettled = sum(taken.state in _UNSETTLED for taken in found)
            if not more or unsettled == len(found):
                return unsettled

    async def _look_through(self, look: Look) -> None:
        await self.settle(look)
        met = 0
        base = self._drop.base
        for database in await asyncio.to_thread(self._storage.folders_in, base):
            if is_hidden(database):
                continue
            try:
                async for page in in_thread(self._storage.files_below(f"{base}/{database}")):
                    met += await self._sort_out(page, look)
            except StorageError as error:
                ids = {"prefix": self._drop.name, "database": database}
                look.fail("filedrop.folder.failed", error, **ids)
        if await self._files.count(base) > met:
            await self._forget_gone()

    async def _sort_out(self, page: Sequence[StoredFile], look: Look) -> int:
        """Do what is due for each; how many of them are known now."""
        named = {
            file: name
            for file in page
            if file.size and (name := DroppedName.parse(self._drop.path_of(file.location)))
        }
        known = await self._files.known([file.location for file in named])
        new = [file for file in named if not _is_as_known(file, known.get(file.location))]
        if new:
            await self._files.note(new)
        work: list[Coroutine[Any, Any, None]] = []
        for file, name in named.items():
            row = known.get(file.location)
            if row is not None and row.state is FileState.TAKEN:
                look.counts.waiting += 1
                continue
            if row is None or not _is_as_known(file, row):
                row = FileRow.settling(file, row)
            if row.state is not FileState.SETTLING:
                if not stays(self._drop, row):
                    work.append(self._tidy(row, look))
            elif (left := self._drop.settle.total_seconds() - row.age) > 0:
                look.leave(left)
            else:
                work.append(self._take(file, name, row, look))
        await self._all(work)
        return len(named)

    async def _take(self, file: StoredFile, name: DroppedName, row: FileRow, look: Look) -> None:
        if look.full:
            return look.leave(_LOOK_AGAIN_SECONDS)
        try:
            try:
                await self._receive(file, name, row, look)
            except (InProgress, Overloaded):
                raise
            except IngestError as error:
                # What is wrong with a file that somebody writes to may be right soon.
                await require_unchanged(self._storage, file)
                told = {"code": error.code, "message": str(error)}
                await self._set_aside(await self._files.refuse(file, told), look)
        except FileChanged:
            await self._files.put_back(file)
            look.leave(self._drop.settle.total_seconds())
        except (InProgress, Overloaded) as error:
            await self._files.put_back(file)
            look.full = look.full or isinstance(error, Overloaded)
            look.leave(_LOOK_AGAIN_SECONDS)
        except LedgerUnavailable:
            raise
        except Exception as error:  # whatever it is, other files may fare better
            await self._files.put_back(file)
            look.fail("filedrop.file.failed", error, location=file.location)

    async def _receive(self, file: StoredFile, name: DroppedName, row: FileRow, look: Look) -> None:
        name.check()
        if file.size > self._most_bytes:
            raise BodyTooLarge(
                f"The file is larger than {self._most_bytes} bytes; drop it in parts."
            )
        sha256 = await hash_file(self._storage, file)
        await async_failpoint("filedrop.hashed")
        if sha256 == row.ingested:
            # Only touched: its rows are in the table, however long ago that was.
            if done := await self._files.finish(file, sha256):
                await self._tidy(done, look)
            return
        drop, key = self._drop, key_of(sha256)
        arrival = Arrival(
            key, DOOR, name.database, name.table, drop.auto_create, drop.schema_evolve
        )
        if not await self._files.take(file, key):
            return
        await async_failpoint("filedrop.marked")
        body = unpacked(read_file(self._storage, file, sha256), name.encoding, self._most_bytes)
        receipt = await self._intake.receive(arrival, body)
        await async_failpoint("filedrop.taken")
        look.counts.taken += 1
        look.counts.waiting += 1
        log.info("filedrop.taken", location=file.location, key=key)
        if receipt.known is not None and receipt.known.state is State.APPLIED:
            await self._intake.ledger.count_replay(DOOR)

    async def _settle(self, taken: TakenFile, look: Look) -> None:
        row, name = taken.row, DroppedName.parse(self._drop.path_of(taken.row.location))
        told = taken.error or {} if taken.state is State.REJECTED else None
        if name and taken.table and (taken.database, taken.table) != (name.database, name.table):
            told = {"code": KeyReused.code, "message": str(KeyReused())}
        if taken.state is None or taken.state is State.RECEIVING:
            await self._files.put_back(row)  # whoever took it did not get to the end
        elif told is not None:
            refused = await self._files.refuse(row, told)
            await async_failpoint("filedrop.settled")
            await self._set_aside(refused, look)
        elif taken.state is State.APPLIED and (
            done := await self._files.finish(row, sha256_of(row.key))
        ):
            await async_failpoint("filedrop.settled")
            look.counts.done += 1
            await self._tidy(done, look)

    async def _set_aside(self, row: FileRow | None, look: Look) -> None:
        if row is None:
            return  # somebody else does
        look.counts.refused += 1
        log.warning("filedrop.refused", location=row.location, code=(row.error or {}).get("code"))
        await self._tidy(row, look)

    async def _tidy(self, row: FileRow, look: Look) -> None:
        try:
            await tidy(self._drop, self._storage, self._files, row)
        except StorageError as error:
            look.fail("filedrop.file.left", error, location=row.location)

    async def _forget_gone(self) -> None:
        """A listing may miss a file; so each is looked for before it counts as gone."""
        async for rows in self._files.pages(self._drop.base):
            locations = [row.location for row in rows]
            there = set(await asyncio.to_thread(self._storage.remaining, locations))
            if gone := [row for row in rows if row.location not in there]:
                await self._files.forget(gone)

    async def _all(self, work: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Do all of it, a few at once, even if some fails; then say what did."""

        async def in_turn(one: Coroutine[Any, Any, None]) -> None:
            async with self._room:
                await one

        for outcome in await asyncio.gather(*map(in_turn, work), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome


def _is_as_known(file: StoredFile, row: FileRow | None) -> bool:
    return row is not None and (row.version, row.size) == (file.version, file.size)
