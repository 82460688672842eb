"""Dropped files: read with proof that they did not change, and put away once they are written."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from enum import Enum, auto
from typing import TypeVar

from moraine.errors import StorageRefused, StorageUnavailable
from moraine.failpoints import async_failpoint
from moraine.ingest.filedrop.model import Drop, FileRow, FileState, error_report
from moraine.ingest.filedrop.store import FileStore
from moraine.storage.stores import Failure, Storage, StoredFile

T = TypeVar("T")


class FileChanged(Exception):
    """The file has changed: another process writes to it, or has removed it."""


async def hash_file(storage: Storage, file: StoredFile) -> str:
    """The sha256 of a file. Raises FileChanged if it changes meanwhile."""

    def run() -> str:
        digest = hashlib.sha256()
        for chunk in storage.chunks(file.location, file.size):
            digest.update(chunk)
        return digest.hexdigest()

    sha256 = await asyncio.to_thread(run)
    await require_unchanged(storage, file)
    return sha256


async def read_file(storage: Storage, file: StoredFile, sha256: str) -> AsyncIterator[bytes]:
    """The bytes again. Raises FileChanged if they are not those of the hash."""
    digest = hashlib.sha256()
    async for chunk in in_thread(storage.chunks(file.location, file.size)):
        digest.update(chunk)
        yield chunk
    if digest.hexdigest() != sha256:
        raise FileChanged
    await require_unchanged(storage, file)


async def require_unchanged(storage: Storage, file: StoredFile) -> None:
    if await asyncio.to_thread(storage.look, file.location) != file:
        raise FileChanged


async def in_thread(items: Iterator[T]) -> AsyncIterator[T]:
    """Iterates in a thread, so that the event loop does not block."""
    end = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item  # type: ignore[misc]


class _Found(Enum):
    """What is at the location of a file."""

    SAME = auto()
    OTHER = auto()
    NONE = auto()


def stays(drop: Drop, row: FileRow) -> bool:
    return row.state is FileState.DONE and drop.after == "keep"


async def tidy(drop: Drop, storage: Storage, files: FileStore, row: FileRow) -> None:
    """Move or delete a file that is done, or set a refused one aside.

    Idempotent: the ledger records what happens to a file before it happens, and forgets the file
    afterwards. A file that was written again meanwhile is a new file and must be read first: it
    stays, with its record.
    """
    if stays(drop, row):
        return
    found = await _look(storage, row)
    if found is _Found.SAME:
        if row.state is FileState.DONE and drop.after == "delete":
            await asyncio.to_thread(_delete, storage, row.location)
        else:
            found = await _move(drop, storage, files, row)
    await async_failpoint("filedrop.moved")
    if found is not _Found.OTHER:
        await files.forget([row])


async def _move(drop: Drop, storage: Storage, files: FileStore, row: FileRow) -> _Found:
    # Recorded first, so that a file that was only copied is not copied to a second place.
    aimed = row if row.target else await files.aim(row, await _free_target(drop, storage, row))
    if aimed is None or aimed.target is None:
        return _Found.OTHER  # another watcher moves it
    if row.state is FileState.REFUSED:
        report = json.dumps(error_report(row, drop.path_of(row.location)), indent=2)
        beside = f"{aimed.target}.error.json"
        await asyncio.to_thread(storage.write, beside, f"{report}\n".encode())
        await async_failpoint("filedrop.reported")
    found = await _look(storage, row)
    if found is _Found.SAME:
        await asyncio.to_thread(storage.move, row.location, aimed.target)
    return found


async def _free_target(drop: Drop, storage: Storage, row: FileRow) -> str:
    plain = drop.target_of(row, tagged=False)
    taken = await asyncio.to_thread(storage.remaining, [plain])
    return drop.target_of(row, tagged=True) if taken else plain


async def _look(storage: Storage, row: FileRow) -> _Found:
    found = await asyncio.to_thread(storage.look, row.location)
    if found is None:
        return _Found.NONE
    same = (found.version, found.size) == (row.version, row.size)
    return _Found.SAME if same else _Found.OTHER


def _delete(storage: Storage, location: str) -> None:
    [outcome] = storage.delete([location])
    if isinstance(outcome, Failure):
        kind = StorageRefused if outcome.refused else StorageUnavailable
        raise kind(f"{location} could not be deleted: {outcome.reason}.")
