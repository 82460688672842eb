"""Local files: how locations name them, where symlinks lead, and Moraine's own workspace."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass

from moraine.errors import FinalError, StorageRefused, StorageUnavailable

_LOCAL = re.compile(r"^(?:file:)?/+(?!/)")
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")


class UnsupportedStorage(FinalError, code="UNSUPPORTED_STORAGE", http_status=409):
    """Moraine does not support this kind of storage."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in any store, as a listing shows it."""

    location: str
    size: int
    version: str
    """Changes when the file is written again: an object's ETag, a local file's times."""


def is_local(location: str) -> bool:
    return location.startswith("/") or location[:5].lower() == "file:"


def local_path(location: str) -> str:
    """The path of a local file: `file:/a`, `file:///a` and `/a` name the same one.

    Nothing is decoded: Iceberg writes paths as they are, so `%20` in one is three characters.
    """
    # Plain spellings skip the expressions: a purge has millions of them.
    if location[:1] == "/" and location[1:2] != "/":
        return location
    if location[:6] == "file:/" and location[6:7] != "/":
        return location[5:]
    if location[:8] == "file:///" and location[8:9] != "/":
        return location[7:]
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


def too_large(location: str, max_bytes: int) -> StorageRefused:
    return StorageRefused(f"{location} is larger than {max_bytes} bytes, so it is not read.")


def make_private_folder(folder: str | os.PathLike[str]) -> None:
    """Make a folder of Moraine's own workspace and its parents, for this user only."""
    missing, path = [], os.path.abspath(folder)
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def open_private(path: str | os.PathLike[str]) -> int:
    """A new file of Moraine's own workspace that only this user can read, as a descriptor."""
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)


def remove_folder(location: str) -> None:
    """Remove a folder of Moraine's own workspace."""
    shutil.rmtree(local_path(location), ignore_errors=True)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LinkResolver:
    """Like os.path.realpath, but examines each folder once. For one pass over many paths.

    Do not keep a resolver for a later pass: links may change.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {"": "", "/": ""}

    def resolve(self, folder: str) -> str:
        """The folder's real path without a trailing slash; the root is an empty string."""
        unknown: list[str] = []
        while folder not in self._known:
            unknown.append(folder)
            folder = folder.rpartition("/")[0]
        for folder in reversed(unknown):
            parent, _, name = folder.rpartition("/")
            self._known[folder] = _enter(self._known[parent], name)
        return self._known[unknown[0]] if unknown else self._known[folder]


def _enter(parent: str, name: str) -> str:
    if name in ("", "."):
        return parent
    if name == "..":
        return parent.rpartition("/")[0]
    path = f"{parent}/{name}"
    return os.path.realpath(path).rstrip("/") if os.path.islink(path) else path
