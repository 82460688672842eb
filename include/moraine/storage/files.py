"""Files as tables name them, on the stores Moraine speaks: today, the local disk."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from uuid import UUID

from moraine.errors import FinalError, StorageUnavailable

_LOCAL = re.compile(r"^(?:file:)?/+(?!/)")
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")


class UnsupportedStorage(FinalError):
    """Moraine does not speak to this kind of storage."""

    code = "UNSUPPORTED_STORAGE"
    http_status = 409


DELETED = "deleted"
MISSING = "missing"


def local_path(location: str) -> str:
    """`file:/a`, `file:///a` and `/a` name the same file.

    Nothing is decoded: Iceberg writes paths as they are, so `%20` in one is three characters.
    """
    if not _LOCAL.match(location):
        scheme = _SCHEME.match(location)
        raise UnsupportedStorage(
            f"Moraine cannot reach {scheme.group(1) if scheme else 'relative'} locations: "
            f"{location[:200]}"
        )
    return _LOCAL.sub("/", location)


def read_file(location: str) -> bytes | None:
    """The file's bytes, or None if there is no such file."""
    try:
        with open(local_path(location), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageUnavailable(f"{location} could not be read: {error.strerror}.") from error


def file_size(location: str) -> int | None:
    try:
        return os.stat(local_path(location)).st_size
    except OSError:
        return None


def delete_files(locations: Iterable[str]) -> list[str]:
    """What became of each: DELETED, MISSING (which is no failure), or why it is still there."""
    return [_delete_file(local_path(location)) for location in locations]


def _delete_file(path: str) -> str:
    try:
        os.unlink(path)
        outcome = DELETED
    except FileNotFoundError:
        outcome = MISSING
    except OSError as error:
        return error.strerror or type(error).__name__
    _delete_checksum_of(path)
    return outcome


def _delete_checksum_of(path: str) -> None:
    """Hadoop writes `.NAME.crc` beside each local file; no metadata ever names it."""
    folder, name = os.path.split(path)
    try:
        os.unlink(f"{folder}/.{name}.crc")
    except OSError:
        return


def remaining_files(locations: Sequence[str]) -> list[str]:
    return [location for location in locations if os.path.lexists(local_path(location))]


def remove_folder(location: str) -> None:
    """Remove a folder of Moraine's own workspace."""
    shutil.rmtree(local_path(location), ignore_errors=True)


def task_folder(workspace: str, task_id: UUID) -> str:
    """Where a task keeps what is too large for the ledger; it goes when the task does."""
    return f"{workspace.rstrip('/')}/tasks/{task_id}"
