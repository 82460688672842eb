"""Files on the local disk, as tables name them, and Moraine's own workspace there."""

from __future__ import annotations

import re
import shutil
from uuid import UUID

from moraine.errors import FinalError, StorageUnavailable

_LOCAL = re.compile(r"^(?:file:)?/+(?!/)")
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")


class UnsupportedStorage(FinalError):
    """Moraine does not speak to this kind of storage."""

    code = "UNSUPPORTED_STORAGE"
    http_status = 409


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


def remove_folder(location: str) -> None:
    """Remove a folder of Moraine's own workspace."""
    shutil.rmtree(local_path(location), ignore_errors=True)


def task_folder(workspace: str, task_id: UUID) -> str:
    """Where a task keeps what is too large for the ledger; it goes when the task does."""
    return f"{workspace.rstrip('/')}/tasks/{task_id}"
