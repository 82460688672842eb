"""Watches prefixes: what is done with each dropped file, in which order.

The ledger records for every file since when it is unchanged, the key it was taken with, and its
outcome. After a crash the next pass goes on from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from moraine.errors import LedgerUnavailable, StorageRefused, StorageUnavailable
from moraine.failpoints import async_failpoint
from moraine.ingest.decompression import unpacked
from moraine.ingest.errors import (
    BodyTooLarge,
    IngestError,
    InProgress,
    KeyReused,
    Overloaded,
    TableNotAllowed,
)
from moraine.ingest.filedrop.files import (
    FileChanged,
    hash_file,
    in_thread,
    read_file,
    require_unchanged,
    stays,
    tidy,
)
from moraine.ingest.filedrop.model import (
    DOOR,
    Drop,
    DroppedName,
    FileCounts,
    FileRow,
    FileState,
    TakenFile,
    WatchPass,
    is_hidden,
    key_of,
    sha256_of,
)
from moraine.ingest.filedrop.store import FileStore
from moraine.ingest.model import Arrival, State, check_names, door_principal
from moraine.ingest.service import IngestService
from moraine.log import get_logger
from moraine.settings.ingest import FileDropSettings
from moraine.storage.stores import Storage, StoredFile

log = get_logger(__name__)

_POLL_SECONDS = 0.25
_NEXT_PASS_SECONDS = 5.0
_UNSETTLED = (State.STAGED, State.WRITING)
StorageError = (StorageRefused, StorageUnavailable)
MayWrite = Callable[[str, str, str], Coroutine[Any, Any, bool]]
"""Whether the policy lets a door write to a table, given by database and name."""


@dataclass(repr=False)
class PrefixWatcher:
    drop: Drop
    storage: Storage
    files: FileStore
    service: IngestService
    settings: FileDropSettings
    may_write: MayWrite

    def __post_init__(self) -> None:
        self._max_bytes = self.settings.max_file_bytes
        self._room = asyncio.Semaphore(self.settings.files_at_once)

    async def run(self, watch_pass: WatchPass) -> None:
        try:
            await self._run(watch_pass)
        except StorageError as error:
            watch_pass.fail("filedrop.prefix.failed", error, prefix=self.drop.name)

    async def settle(self, watch_pass: WatchPass) -> int:
        """Settle taken files whose outcome is known, and return how many are not written yet."""
        while True:
            found, more = await self.files.taken(self.drop.base)
            await self._all([self._settle(taken, watch_pass) for taken in found])
            unsettled = sum(taken.state in _UNSETTLED for taken in found)
            if not more or unsettled == len(found):
                return unsettled

    async def _run(self, watch_pass: WatchPass) -> None:
        await self.settle(watch_pass)
        found = 0
        base = self.drop.base
        for database in await asyncio.to_thread(self.storage.folders_in, base):
            if is_hidden(database):
                continue
            try:
                async for page in in_thread(self.storage.files_below(f"{base}/{database}")):
                    found += await self._handle(page, watch_pass)
            except StorageError as error:
                ids = {"prefix": self.drop.name, "database": database}
                watch_pass.fail("filedrop.folder.failed", error, **ids)
        if await self.files.count(base) > found:
            await self._forget_gone()

    async def _handle(self, page: Sequence[StoredFile], watch_pass: WatchPass) -> int:
        """Do what is due for each file, and return how many of them are dropped files."""
        named = {
            file: name
            for file in page
            if file.size and (name := DroppedName.parse(self.drop.path_of(file.location)))
        }
        known = await self.files.known([file.location for file in named])
        new = [file for file in named if not _is_as_known(file, known.get(file.location))]
        if new:
            await self.files.note(new)
        work: list[Coroutine[Any, Any, None]] = []
        for file, name in named.items():
            row = known.get(file.location)
            if row is not None and row.state is FileState.TAKEN:
                watch_pass.counts.waiting += 1
                continue
            if row is None or not _is_as_known(file, row):
                row = FileRow.settling(file, row)
            if row.state is not FileState.SETTLING:
                if not stays(self.drop, row):
                    work.append(self._tidy(row, watch_pass))
            elif (left := self.drop.settle.total_seconds() - row.age) > 0:
                watch_pass.leave(left)
            else:
                work.append(self._take(file, name, row, watch_pass))
        await self._all(work)
        return len(named)

    async def _take(
        self, file: StoredFile, name: DroppedName, row: FileRow, watch_pass: WatchPass
    ) -> None:
        if watch_pass.full:
            return watch_pass.leave(_NEXT_PASS_SECONDS)
        try:
            try:
                await self._receive(file, name, row, watch_pass)
            except (InProgress, Overloaded):
                raise
            except IngestError as error:
                # A file that is still being written may be right soon.
                await require_unchanged(self.storage, file)
                described = {"code": error.code, "message": str(error)}
                await self._set_aside(await self.files.refuse(file, described), watch_pass)
        except FileChanged:
            await self.files.put_back(file)
            watch_pass.leave(self.drop.settle.total_seconds())
        except (InProgress, Overloaded) as error:
            await self.files.put_back(file)
            watch_pass.full = watch_pass.full or isinstance(error, Overloaded)
            watch_pass.leave(_NEXT_PASS_SECONDS)
        except LedgerUnavailable:
            raise
        except Exception as error:  # it must not hold up other files
            await self.files.put_back(file)
            watch_pass.fail("filedrop.file.failed", error, location=file.location)

    async def _receive(
        self, file: StoredFile, name: DroppedName, row: FileRow, watch_pass: WatchPass
    ) -> None:
        check_names(name.database, name.table)
        door = f"{DOOR}:{self.drop.name}"
        listed = not self.drop.databases or name.database in self.drop.databases
        if not listed or not await self.may_write(door, name.database, name.table):
            raise TableNotAllowed(
                f"Files of the prefix {self.drop.name} may not go to {name.database}.{name.table}."
            )
        if file.size > self._max_bytes:
            raise BodyTooLarge(
                f"The file is larger than {self._max_bytes} bytes; drop it in parts."
            )
        sha256 = await hash_file(self.storage, file)
        await async_failpoint("filedrop.hashed")
        if sha256 == row.ingested:
            # Only touched: its rows are in the table, even if the key has expired.
            if done := await self.files.finish(file, sha256):
                await self._tidy(done, watch_pass)
            return
        drop, key = self.drop, key_of(sha256)
        arrival = Arrival(
            key,
            DOOR,
            name.database,
            name.table,
            drop.auto_create,
            drop.schema_evolve,
            door_principal("", door).name,
            key,
        )
        if not await self.files.take(file, key):
            return
        await async_failpoint("filedrop.marked")
        body = unpacked(read_file(self.storage, file, sha256), name.encoding, self._max_bytes)
        receipt = await self.service.receive(arrival, body)
        await async_failpoint("filedrop.taken")
        watch_pass.counts.taken += 1
        watch_pass.counts.waiting += 1
        log.info("filedrop.taken", location=file.location, key=key)
        if receipt.known is not None and receipt.known.state is State.APPLIED:
            await self.service.store.count_replay(DOOR)

    async def _settle(self, taken: TakenFile, watch_pass: WatchPass) -> None:
        row, name = taken.row, DroppedName.parse(self.drop.path_of(taken.row.location))
        refusal = taken.error or {} if taken.state is State.REJECTED else None
        if name and taken.table and (taken.database, taken.table) != (name.database, name.table):
            refusal = {"code": KeyReused.code, "message": str(KeyReused())}
        if taken.state is None or taken.state is State.RECEIVING:
            await self.files.put_back(row)  # the watcher that took it was killed
        elif refusal is not None:
            refused = await self.files.refuse(row, refusal)
            await async_failpoint("filedrop.settled")
            await self._set_aside(refused, watch_pass)
        elif taken.state is State.APPLIED and (
            done := await self.files.finish(row, sha256_of(row.key))
        ):
            await async_failpoint("filedrop.settled")
            watch_pass.counts.done += 1
            await self._tidy(done, watch_pass)

    async def _set_aside(self, row: FileRow | None, watch_pass: WatchPass) -> None:
        if row is None:
            return  # another watcher does
        watch_pass.counts.refused += 1
        log.warning("filedrop.refused", location=row.location, code=(row.error or {}).get("code"))
        await self._tidy(row, watch_pass)

    async def _tidy(self, row: FileRow, watch_pass: WatchPass) -> None:
        try:
            await tidy(self.drop, self.storage, self.files, row)
        except StorageError as error:
            watch_pass.fail("filedrop.file.left", error, location=row.location)

    async def _forget_gone(self) -> None:
        """Check each file before it is forgotten: a listing may have missed it."""
        async for rows in self.files.pages(self.drop.base):
            locations = [row.location for row in rows]
            there = set(await asyncio.to_thread(self.storage.remaining, locations))
            if gone := [row for row in rows if row.location not in there]:
                await self.files.forget(gone)

    async def _all(self, work: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Do all of it, a few at once, then raise the first error."""

        async def in_turn(one: Coroutine[Any, Any, None]) -> None:
            async with self._room:
                await one

        for outcome in await asyncio.gather(*map(in_turn, work), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome


def _is_as_known(file: StoredFile, row: FileRow | None) -> bool:
    return row is not None and (row.version, row.size) == (file.version, file.size)


@dataclass(frozen=True, slots=True, repr=False)
class Watcher:
    prefixes: Sequence[PrefixWatcher]
    files: FileStore
    duration: timedelta

    async def watch(self) -> FileCounts:
        """Make passes until no file is open, or the time is over.

        Raises the first storage problem of the last pass, when everything else is done.
        """
        until = time.monotonic() + self.duration.total_seconds()
        total = FileCounts()
        async with self.files.alone() as alone:
            while alone:
                watch_pass = WatchPass()
                for prefix in self.prefixes:
                    await prefix.run(watch_pass)
                await self._wait(watch_pass, until)
                total = total.then(watch_pass.counts)
                if not watch_pass.counts.open or time.monotonic() >= until:
                    if watch_pass.problem:
                        raise watch_pass.problem
                    break
        return total

    async def _wait(self, watch_pass: WatchPass, until: float) -> None:
        """Wait until the next pass is due; meanwhile settle files that are written."""
        pause = _NEXT_PASS_SECONDS if watch_pass.next_due is None else watch_pass.next_due
        until = min(until, time.monotonic() + pause)
        while watch_pass.counts.open and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(_POLL_SECONDS, left))
            if watch_pass.counts.waiting:
                waiting = [await prefix.settle(watch_pass) for prefix in self.prefixes]
                watch_pass.counts.waiting = sum(waiting)
