"""Tables and the folders of their files in the form of the index. Pure except for symlinks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from moraine.storage.files import LinkResolver, UnsupportedStorage
from moraine.storage.locations import decoded_key, parse_location

MAX_PLACES = 64
"""Maximum of folders in the index for a table; more are merged into their parents."""
_MAX_PLACE_BYTES = 1000


class TableName(NamedTuple):
    namespace: tuple[str, ...]
    name: str

    def __str__(self) -> str:
        return ".".join([*self.namespace, self.name])

    @property
    def key(self) -> bytes:
        return hashlib.sha256(json.dumps([self.namespace, self.name]).encode()).digest()


@dataclass(frozen=True, slots=True)
class Seen:
    """The entry of a table in the index."""

    metadata_location: str
    """Empty if its metadata file was missing."""
    sequence_number: int
    age: timedelta
    """Time since it was examined."""


@dataclass(frozen=True, slots=True)
class Look:
    """A table in its current state."""

    name: TableName
    metadata_location: str
    sequence_number: int
    location: str
    """As a place; empty if Moraine may not delete in it."""
    places: Sequence[str]
    """Every folder with files that it references."""
    keeps_places: bool
    """Whether earlier folders stay in the index, because only new manifests were read."""

    @classmethod
    def dead(cls, name: TableName) -> Look:
        """A table whose metadata file is missing: no reader can find a file through it."""
        return cls(name, "", -1, "", (), keeps_places=False)


class Canonical:
    """One spelling for each file and folder: aliases of schemes, percent-encoding and, on a disk,
    symlinks are resolved. Two files may get the same spelling; then neither is deleted."""

    def __init__(self) -> None:
        self._links = LinkResolver()

    def place(self, folder: str) -> str:
        """A folder with a trailing slash; empty if Moraine does not support its store. For a long
        one, the first parent that is short enough."""
        found = self._folder(folder.rstrip("/"))
        while len(found.encode()) > _MAX_PLACE_BYTES:
            found = found.rpartition("/")[0]
        return f"{found}/" if found else ""

    def paths(self, paths: pa.Array[Any]) -> pa.Array[Any]:
        """Paths of files. Resolved folder by folder: there are fewer folders than files."""
        split = pc.split_pattern(paths.cast(pa.string()), "/", max_splits=1, reverse=True)
        folders = pc.list_element(split, 0).dictionary_encode()
        known = [self._folder(str(folder)) for folder in folders.dictionary.to_pylist()]
        there: Any = pa.array(known, pa.string()).take(folders.indices)
        names: Any = pc.list_element(split, 1)
        if pc.any(odd := pc.match_substring(names, "%")).as_py():
            plain = [decoded_key(str(name)) for name in names.filter(odd).to_pylist()]
            names = pc.replace_with_mask(names, odd, pa.array(plain, pa.string()))
        joined: pa.Array[Any] = pc.binary_join_element_wise(there, names, "/")
        return joined

    def _folder(self, folder: str) -> str:
        try:
            found = parse_location(f"{folder}/")
        except UnsupportedStorage:
            return ""
        key = decoded_key(found.key).rstrip("/")
        if found.scheme == "file":
            return f"file://{self._links.resolve(key)}"
        return f"{found.scheme}://{found.bucket}/{key}".rstrip("/")


def merge_places(places: Iterable[str]) -> list[str]:
    """At most MAX_PLACES: the deepest are replaced by their parents until they are few enough."""
    found = set(places)
    while len(found) > MAX_PLACES:
        deepest = max(place.count("/") for place in found)
        found = {
            f"{place.rstrip('/').rpartition('/')[0]}/" if place.count("/") == deepest else place
            for place in found
        }
    return sorted(found)


def places_around(place: str) -> list[str]:
    """The place itself and all its parents."""
    store, mark, key = place.partition("://")
    parts = key.rstrip("/").split("/")
    return [f"{store}{mark}{'/'.join(parts[:end])}/" for end in range(1, len(parts) + 1)]
