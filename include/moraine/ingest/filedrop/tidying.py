"""What becomes of files once it is known what became of their bytes.

Every step bears being repeated: the ledger says what is to happen to a file before it happens, and
forgets the file afterwards.
"""

from __future__ import annotations

import asyncio
import json
from enum import Enum, auto

from moraine.errors import StorageRefused, StorageUnavailable
from moraine.failpoints import async_failpoint
from moraine.ingest.filedrop.ledger import FileLedger
from moraine.ingest.filedrop.model import Drop, FileRow, FileState, error_report
from moraine.storage.stores import Failure, Storage


class _Found(Enum):
    """What is where a file was."""

    SAME = auto()
    OTHER = auto()
    NONE = auto()


def stays(drop: Drop, row: FileRow) -> bool:
    return row.state is FileState.DONE and drop.after == "keep"


async def tidy(drop: Drop, storage: Storage, files: FileLedger, row: FileRow) -> None:
    """Move or delete a file that is done, or set one aside that was refused.

    One that was written again meanwhile is a new file, not to be put away unread: it stays, and
    so does what is known of it.
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


async def _move(drop: Drop, storage: Storage, files: FileLedger, row: FileRow) -> _Found:
    # Known before it happens: so a file that was only copied is not copied elsewhere too.
    aimed = row if row.target else await files.aim(row, await _free_target(drop, storage, row))
    if aimed is None or aimed.target is None:
        return _Found.OTHER  # somebody else is at it
    if row.state is FileState.REFUSED:
        report = json.dumps(error_report(row, drop.path_of(row.location)), indent=2)
        beside = f"{aimed.target}.error.json"
        await asyncio.to_thread(storage.write, beside, f"{report}\n".encode())
        await async_failpoint("filedrop.told")
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
