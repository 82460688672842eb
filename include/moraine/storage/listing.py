"""What a listing of a folder shows, and the listing of local ones."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moraine.storage.disk import raise_unless_gone, to_path

if TYPE_CHECKING:
    from obstore import ObjectMeta

FILES_PER_PAGE = 1000


@dataclass(frozen=True, slots=True)
class StoredFile:
    location: str
    size: int
    version: str
    """Another one once the file was written again: an object's ETag, a local file's times."""


def object_version(meta: ObjectMeta) -> str:
    # Listings and single answers of one store differ in the quotes.
    tag, modified = meta["e_tag"], meta["last_modified"]
    return tag.removeprefix("W/").strip('"') if tag else modified.isoformat()


def look_local(location: str) -> StoredFile | None:
    """A regular file. Others are as if they were not there, links too: they lead elsewhere."""
    try:
        found = os.lstat(to_path(location))
    except (OSError, ValueError) as error:
        raise_unless_gone(location, error)
        return None
    return _stored(location, found) if stat.S_ISREG(found.st_mode) else None


def folders_local(location: str) -> list[str]:
    try:
        with os.scandir(to_path(location)) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (OSError, ValueError) as error:
        raise_unless_gone(location, error)
        return []
    return sorted(filter(_is_text, names))


def list_local(location: str) -> Iterator[list[StoredFile]]:
    """Pages of the regular files below a folder. What goes meanwhile is not in them."""
    page: list[StoredFile] = []
    folders = [location.rstrip("/")]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(to_path(folder) or "/") as entries:
                for entry in entries:
                    if not _is_text(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(f"{folder}/{entry.name}")
                    elif entry.is_file(follow_symlinks=False):
                        found = look_local(f"{folder}/{entry.name}")
                        page += [found] if found else []
                    if len(page) == FILES_PER_PAGE:
                        yield page
                        page = []
        except (OSError, ValueError) as error:
            raise_unless_gone(folder, error)
    if page:
        yield page


def _stored(location: str, found: os.stat_result) -> StoredFile:
    # The time of the last change cannot be set back, as that of the last writing can.
    times = f"{found.st_mtime_ns:x}-{found.st_ctime_ns:x}-{found.st_ino:x}"
    return StoredFile(location, found.st_size, times)


def _is_text(name: str) -> bool:
    """Whether a name is UTF-8: others cannot be written down."""
    return name.isascii() or not any("\udc80" <= letter <= "\udcff" for letter in name)
