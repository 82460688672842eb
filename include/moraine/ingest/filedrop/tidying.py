"""What becomes of files once it is known what became of their bytes.

Every step bears being repeated: the ledger says what is to happen to a file before it happens, and
forgets the file afterwards.
"""

from __future__ import annotations

import asyncio
import json

from moraine.errors import StorageRefused, StorageUnavailable
from moraine.failpoints import async_failpoint
from moraine.ingest.filedrop.ledger import FileLedger
from moraine.ingest.filedrop.model import Drop, FileRow, FileState, error_report
from moraine.storage.stores import Failure, Storage


def stays(drop: Drop, row: FileRow) -> bool:
    return row.state is FileState.DONE and drop.after == "keep"


async def tidy(drop: Drop, storage: Storage, files: FileLedger, row: FileRow) -> None:
    """Move or delete a file that is done, or set one aside that was refused."""
    if stays(drop, row):
        return
    if row.state is FileState.DONE and drop.after == "delete":
        if await _is_as_it_was(storage, row):
            await asyncio.to_thread(_delete, storage, row.location)
    else:
        aimed = row if row.target else await files.aim(row, await _free_target(drop, storage, row))
        if aimed is None or aimed.target is None:
            return  # somebody else is at it
        if row.state is FileState.REFUSED:
            report = json.dumps(error_report(row, drop.path_of(row.location)), indent=2)
            beside = f"{aimed.target}.error.json"
            await asyncio.to_thread(storage.write, beside, f"{report}\n".encode())
            await async_failpoint("filedrop.told")
        if await _is_as_it_was(storage, row):
            await asyncio.to_thread(storage.move, row.location, aimed.target)
    await async_failpoint("filedrop.moved")
    await files.forget([row])


async def _free_target(drop: Drop, storage: Storage, row: FileRow) -> str:
    plain = drop.target_of(row, tagged=False)
    taken = await asyncio.to_thread(storage.remaining, [plain])
    return drop.target_of(row, tagged=True) if taken else plain


async def _is_as_it_was(storage: Storage, row: FileRow) -> bool:
    """A file that was written again is a new one: not to be moved or deleted unread."""
    found = await asyncio.to_thread(storage.look, row.location)
    return found is not None and (found.version, found.size) == (row.version, row.size)


def _delete(storage: Storage, location: str) -> None:
    [outcome] = storage.delete([location])
    if isinstance(outcome, Failure):
        kind = StorageRefused if outcome.refused else StorageUnavailable
        raise kind(f"{location} could not be deleted: {outcome.reason}.")
