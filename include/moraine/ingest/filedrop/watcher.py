"""Looks for dropped files and sees each through to its end.

The ledger has what is known of every file: since when it is as it is, the key it was taken with,
and what became of it. What a crash interrupts, the next look goes on with.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from moraine.errors import LedgerUnavailable, StorageRefused, StorageUnavailable
from moraine.failpoints import async_failpoint
from moraine.ingest.decompression import unpacked
from moraine.ingest.errors import BodyTooLarge, IngestError, InProgress, KeyReused, Overloaded
from moraine.ingest.filedrop.ledger import FileLedger, TakenFile
from moraine.ingest.filedrop.model import (
    DOOR,
    Drop,
    DroppedName,
    FileRow,
    FileState,
    is_hidden,
    key_of,
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
from moraine.settings import FileDropSettings
from moraine.storage.stores import Storage, StoredFile

log = get_logger(__name__)

_POLL_SECONDS = 0.25
_LOOK_AGAIN_SECONDS = 5.0
StorageError = (StorageRefused, StorageUnavailable)


@dataclass(slots=True)
class Counts:
    taken: int = 0
    done: int = 0
    refused: int = 0
    failed: int = 0
    """Files and prefixes that could not be read, moved or deleted this time."""
    settling: int = 0
    """Not to be taken yet."""
    waiting: int = 0
    """Taken, but not written yet."""


@dataclass(slots=True)
class _Look:
    """One look at every prefix."""

    counts: Counts
    next_due: float | None = None
    full: bool = False
    problem: Exception | None = None

    def due_in(self, seconds: float) -> None:
        self.counts.settling += 1
        self.next_due = min(seconds, self.next_due) if self.next_due is not None else seconds

    def fail(self, event: str, error: Exception, **ids: Any) -> None:
        log.warning(event, error=type(error).__name__, reason=str(error), **ids)
        self.counts.failed += 1
        self.problem = self.problem or error


class Watcher:
    def __init__(
        self,
        settings: FileDropSettings,
        drops: Mapping[Drop, Storage],
        files: FileLedger,
        intake: Intake,
    ) -> None:
        self._settings = settings
        self._drops = list(drops.items())
        self._files = files
        self._intake = intake
        self._room = asyncio.Semaphore(settings.files_at_once)

    async def watch(self) -> Counts:
        """Look until nothing is left to wait for, or the time is over.

        Raises the first problem with a store at the end, when everything else is done.
        """
        until = time.monotonic() + self._settings.run_duration.total_seconds()
        total = Counts()
        async with self._files.alone() as alone:
            while alone:
                look = await self.look()
                await self._wait(look, until)
                total = _added(total, look.counts)
                open_files = look.counts.settling or look.counts.waiting
                if not open_files or time.monotonic() >= until:
                    if look.problem:
                        raise look.problem
                    break
        return total

    async def look(self) -> _Look:
        look = _Look(Counts())
        for drop, storage in self._drops:
            try:
                await self._look_at(drop, storage, look)
            except StorageError as error:
                look.fail("filedrop.prefix.failed", error, prefix=drop.name)
        return look

    async def _wait(self, look: _Look, until: float) -> None:
        """Until the next look is worthwhile: meanwhile files may be written."""
        pause = _LOOK_AGAIN_SECONDS if look.next_due is None else look.next_due
        until = min(until, time.monotonic() + pause)
        while (look.counts.waiting or look.counts.settling) and time.monotonic() < until:
            await asyncio.sleep(min(_POLL_SECONDS, max(until - time.monotonic(), 0)))
            if look.counts.waiting:
                waiting = [await self._settle(drop, storage, look) for drop, storage in self._drops]
                look.counts.waiting = sum(waiting)

    async def _look_at(self, drop: Drop, storage: Storage, look: _Look) -> None:
        await self._settle(drop, storage, look)
        met = 0
        for database in await asyncio.to_thread(storage.folders_in, drop.base):
            if is_hidden(database):
                continue
            try:
                async for page in in_thread(storage.files_below(f"{drop.base}/{database}")):
                    met += await self._sort_out(drop, storage, page, look)
            except StorageError as error:
                look.fail("filedrop.folder.failed", error, prefix=drop.name, database=database)
        if await self._files.count(drop.base) > met:
            await self._forget_gone(drop, storage)

    async def _sort_out(
        self, drop: Drop, storage: Storage, page: Sequence[StoredFile], look: _Look
    ) -> int:
        """Do what is due for each; how many of them are known now."""
        named = {
            file: name
            for file in page
            if file.size and (name := DroppedName.parse(drop.path_of(file.location)))
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
                row = _settling(file, row)
            if row.state is FileState.SETTLING:
                left = drop.settle.total_seconds() - row.age
                if left > 0:
                    look.due_in(left)
                else:
                    work.append(self._take(drop, storage, file, name, row, look))
            elif not stays(drop, row):
                work.append(self._tidy(drop, storage, row, look))
        await _all(work)
        return len(named)

    async def _take(
        self,
        drop: Drop,
        storage: Storage,
        file: StoredFile,
        name: DroppedName,
        row: FileRow,
        look: _Look,
    ) -> None:
        async with self._room:
            if look.full:
                return look.due_in(_LOOK_AGAIN_SECONDS)
            try:
                await self._receive(drop, storage, file, name, row, look)
            except FileChanged:
                await self._files.put_back(file)
                look.due_in(drop.settle.total_seconds())
            except (InProgress, Overloaded) as error:
                await self._files.put_back(file)
                look.full = look.full or isinstance(error, Overloaded)
                look.due_in(_LOOK_AGAIN_SECONDS)
            except IngestError as error:
                await self._refuse_unchanged(drop, storage, file, error, look)
            except LedgerUnavailable:
                raise
            except Exception as error:  # whatever it is, other files may fare better
                await self._files.put_back(file)
                look.fail("filedrop.file.failed", error, location=file.location)

    async def _receive(
        self,
        drop: Drop,
        storage: Storage,
        file: StoredFile,
        name: DroppedName,
        row: FileRow,
        look: _Look,
    ) -> None:
        most = self._settings.max_file_bytes
        name.check()
        if file.size > most:
            raise BodyTooLarge(f"The file is larger than {most} bytes; drop it in parts.")
        sha256 = await hash_file(storage, file)
        await async_failpoint("filedrop.hashed")
        if sha256 == row.ingested:
            # Only touched: its rows are in the table, however long ago that was.
            if done := await self._files.finish(file, sha256):
                await self._tidy(drop, storage, done, look)
            return
        arrival = Arrival(
            key_of(sha256), DOOR, name.database, name.table, drop.auto_create, drop.schema_evolve
        )
        if not await self._files.take(file, arrival.key):
            return
        await async_failpoint("filedrop.marked")
        body = unpacked(read_file(storage, file, sha256), name.encoding, most)
        receipt = await self._intake.receive(arrival, body)
        await async_failpoint("filedrop.taken")
        if receipt.known is not None and receipt.known.state is State.APPLIED:
            await self._intake.ledger.count_replay(DOOR)
        look.counts.taken += 1
        look.counts.waiting += 1
        log.info("filedrop.taken", location=file.location, key=arrival.key)

    async def _refuse_unchanged(
        self, drop: Drop, storage: Storage, file: StoredFile, error: IngestError, look: _Look
    ) -> None:
        """What is wrong with a file that somebody still writes to may be right soon."""
        try:
            await require_unchanged(storage, file)
        except FileChanged:
            await self._files.put_back(file)
            return look.due_in(drop.settle.total_seconds())
        told = {"code": error.code, "message": str(error)}
        if refused := await self._files.refuse(file, told):
            await self._set_aside(drop, storage, refused, look)

    async def _settle(self, drop: Drop, storage: Storage, look: _Look) -> int:
        """See what became of files that were taken; how many are not written yet."""
        found = await self._files.taken(drop.base)
        await _all([self._settle_one(drop, storage, taken, look) for taken in found])
        return sum(taken.state in (State.STAGED, State.WRITING) for taken in found)

    async def _settle_one(
        self, drop: Drop, storage: Storage, taken: TakenFile, look: _Look
    ) -> None:
        row, name = taken.row, DroppedName.parse(drop.path_of(taken.row.location))
        told = taken.error or {} if taken.state is State.REJECTED else None
        if name and taken.table and (taken.database, taken.table) != (name.database, name.table):
            told = {"code": KeyReused.code, "message": str(KeyReused())}
        if taken.state is None or taken.state is State.RECEIVING:
            await self._files.put_back(row)
        elif told is not None:
            if refused := await self._files.refuse(row, told):
                await async_failpoint("filedrop.settled")
                await self._set_aside(drop, storage, refused, look)
        elif taken.state is State.APPLIED and (
            done := await self._files.finish(row, (row.key or "").rpartition(":")[2])
        ):
            await async_failpoint("filedrop.settled")
            look.counts.done += 1
            await self._tidy(drop, storage, done, look)

    async def _set_aside(self, drop: Drop, storage: Storage, row: FileRow, look: _Look) -> None:
        look.counts.refused += 1
        code = (row.error or {}).get("code")
        log.warning("filedrop.refused", location=row.location, code=code)
        await self._tidy(drop, storage, row, look)

    async def _tidy(self, drop: Drop, storage: Storage, row: FileRow, look: _Look) -> None:
        try:
            await tidy(drop, storage, self._files, row)
        except StorageError as error:
            look.fail("filedrop.file.left", error, location=row.location)

    async def _forget_gone(self, drop: Drop, storage: Storage) -> None:
        """A listing may miss a file; so each is looked for before it counts as gone."""
        async for rows in self._files.pages(drop.base):
            locations = [row.location for row in rows]
            there = set(await asyncio.to_thread(storage.remaining, locations))
            if gone := [row for row in rows if row.location not in there]:
                await self._files.forget(gone)


def _is_as_known(file: StoredFile, row: FileRow | None) -> bool:
    return row is not None and (row.version, row.size) == (file.version, file.size)


def _settling(file: StoredFile, before: FileRow | None) -> FileRow:
    ingested = before.ingested if before else None
    state = FileState.SETTLING
    return FileRow(
        file.location, file.version, file.size, state, None, ingested, None, None, age=0.0
    )


async def _all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Do all of it, even if some fails; then say what did."""
    failed = [
        outcome
        for outcome in await asyncio.gather(*work, return_exceptions=True)
        if isinstance(outcome, BaseException)
    ]
    if failed:
        raise failed[0]


def _added(total: Counts, more: Counts) -> Counts:
    """Sums of what happened, and what is open as of now."""
    summed = {name: getattr(total, name) + getattr(more, name) for name in asdict(total)}
    return replace(Counts(**summed), settling=more.settling, waiting=more.waiting)
