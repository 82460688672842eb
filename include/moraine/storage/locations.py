"""Locations as tables write them, and the folders that files must not leave."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from moraine.storage.files import LinkResolver, UnsupportedStorage, local_path

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")
_ALIASES = {
    "file": ("file",),
    "s3": ("s3", "s3a", "s3n"),
    "gs": ("gs", "gcs"),
    "azure": ("abfss", "abfs", "wasb", "wasbs", "az"),
}
_CANONICAL = {alias: scheme for scheme, aliases in _ALIASES.items() for alias in aliases}
# If the rest of a path below a root matches, another reading may lead elsewhere: check row by row.
_SUSPICIOUS = r"%|\\|//|/\.|\x00|^[./]|/$|^$"
_TO_THE_END = 2**31 - 1
_MAX_LAYERS = 16


@dataclass(frozen=True, slots=True)
class Location:
    """A file or folder. Nothing in the key is decoded: `%20` in it is three characters."""

    scheme: str
    bucket: str
    """For Azure `container@host`, or only the container if no account is named."""
    key: str

    @property
    def store(self) -> tuple[str, str]:
        return self.scheme, self.bucket

    def __str__(self) -> str:
        if self.scheme == "file":
            return self.key
        return f"{_ALIASES[self.scheme][0]}://{self.bucket}/{self.key}"


def parse_location(text: str) -> Location:
    found = _SCHEME.match(text)
    scheme = _CANONICAL.get(found.group(1).lower()) if found else "file"
    if scheme is None or found is None or scheme == "file":
        # Local, or unknown: local_path raises for the latter.
        end = found.end() if found else 0
        return Location("file", "", local_path(text[:end].lower() + text[end:]))
    rest = text[found.end() :]
    bucket, _, key = rest[2:].partition("/")
    if not rest.startswith("//") or not bucket:
        raise UnsupportedStorage(f"This location names no bucket: {text[:200]}")
    return Location(scheme, _blob_container(bucket) if scheme == "azure" else bucket, key)


def _blob_container(authority: str) -> str:
    """`wasb` names an account's blob endpoint, `abfs` its dfs endpoint: use the latter for both."""
    container, at, host = authority.partition("@")
    return container + at + host.lower().replace(".blob.", ".dfs.", 1)


def canonical_prefix(prefix: str) -> str:
    """A prefix of locations, with one spelling for all aliases of its scheme."""
    scheme, colon, rest = prefix.partition(":")
    known = _CANONICAL.get(scheme.lower())
    if prefix.startswith("/") or (known == "file" and colon):
        return "file:///" + (prefix if prefix.startswith("/") else rest).lstrip("/")
    if known is None:
        return prefix
    if known == "azure" and rest.startswith("//"):
        authority, slash, key = rest[2:].partition("/")
        rest = f"//{_blob_container(authority)}{slash}{key}"
    return known + colon + rest


@dataclass(frozen=True)
class _Folder:
    """A root in the forms that paths are compared with."""

    place: Location
    written: tuple[str, ...]
    decoded: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> _Folder:
        place = parse_location(text)
        key = place.key.rstrip("/")
        place = Location(place.scheme, place.bucket, key or ("/" if place.scheme == "file" else ""))
        written, decoded = _segments(key), _segments(decoded_key(key))
        if written is None or decoded is None or (key and not (written and decoded)):
            # A whole bucket or disk must be written as such, not be the result of `..`.
            raise UnsupportedStorage(f"This location leaves its own store: {text[:200]}")
        return cls(place, written, decoded)

    def overlaps(self, other: _Folder, resolve: Callable[[str], str]) -> bool:
        if self.place.store != other.place.store:
            return False
        forms = [(self.written, other.written), (self.decoded, other.decoded)]
        if self.place.scheme == "file":
            ends = (_segments(resolve(folder.place.key)) or () for folder in (self, other))
            forms.append((next(ends), next(ends)))
        return any(_starts_with(a, b) or _starts_with(b, a) for a, b in forms)


@dataclass(frozen=True)
class Roots:
    """The folders that a table's files may be in.

    A path is inside only if all its readings are: as written, after percent-decoding, and, on a
    local disk, with the symlinks of its folder resolved. The file itself is never followed.
    """

    _listed: tuple[str, ...]
    _real: tuple[str, ...] | None = None
    """Where the local ones lead, if that is fixed."""

    @classmethod
    def of(cls, locations: Iterable[str]) -> Roots:
        return cls(tuple(sorted({str(_Folder.parse(text).place) for text in locations})))

    @property
    def listed(self) -> list[str]:
        return list(self._listed)

    def fixed(self) -> Roots:
        """The same folders as they are now: one that becomes a symlink later leads outside."""
        links = LinkResolver()
        keys = [folder.place.key for folder in self._folders if folder.place.scheme == "file"]
        # As written, too: executors may have other links above the folder, or none.
        real = {key.rstrip("/") for key in keys} | {links.resolve(key) for key in keys}
        return Roots(self._listed, tuple(sorted(real)))

    @cached_property
    def _folders(self) -> tuple[_Folder, ...]:
        return tuple(_Folder.parse(text) for text in self._listed)

    def contains(self, path: str) -> bool:
        return self._contains(path, LinkResolver())

    def overlaps(self, other: Roots) -> bool:
        """Whether one of these folders equals, contains or is inside one of the others."""
        resolve = LinkResolver().resolve
        return any(a.overlaps(b, resolve) for a in self._folders for b in other._folders)

    def outside(self, paths: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.BooleanArray:
        """For each path whether it is outside; a null is."""
        links = LinkResolver()
        chunks = paths.chunks if isinstance(paths, pa.ChunkedArray) else [paths]
        found = [self._outside(chunk.cast(pa.large_string()), links) for chunk in chunks]
        together: pa.BooleanArray = pa.concat_arrays([*found, pa.array([], pa.bool_())])
        return together

    def _outside(self, paths: Any, links: LinkResolver) -> Any:
        inside: Any = pa.repeat(False, len(paths))
        plain: Any = pa.repeat(False, len(paths))
        as_bytes = paths.cast(pa.large_binary())
        for folder in self._folders:
            for prefix in _spellings(folder.place):
                here = pc.starts_with(paths, prefix)
                if not pc.any(here).as_py():
                    continue
                rest = pc.binary_slice(as_bytes, len(prefix.encode()), _TO_THE_END)
                found = pc.and_not(here, pc.match_substring_regex(rest, _SUSPICIOUS))
                plain = pc.or_(plain, found)
                if folder.place.scheme == "file":
                    found = pc.and_(found, self._stays_inside(paths, found, links))
                inside = pc.or_(inside, found)
        inside = inside.fill_null(False)
        doubtful = pc.invert(plain.fill_null(False))
        if pc.any(doubtful).as_py():
            rows = self._contains_each(paths.filter(doubtful).to_pylist(), links)
            inside = pc.replace_with_mask(inside, doubtful, pa.array(rows, pa.bool_()))
        return pc.invert(inside)

    def _stays_inside(self, paths: Any, chosen: Any, links: LinkResolver) -> Any:
        """Whether the chosen local paths are still inside once symlinks are resolved."""
        split = pc.split_pattern(paths.filter(chosen), "/", max_splits=1, reverse=True)
        folders = pc.list_element(split, 0).dictionary_encode()
        stays = [self._is_real(local_path(f"{f}/"), links) for f in folders.dictionary.to_pylist()]
        verdicts = pa.array(stays, pa.bool_()).take(folders.indices)
        return pc.replace_with_mask(pa.repeat(False, len(paths)), chosen, verdicts)

    def _contains_each(self, paths: Iterable[str | None], links: LinkResolver) -> Iterator[bool]:
        """Row by row, but each folder only once: a plain file name does not change the result."""
        verdicts: dict[str, bool] = {}
        for path in paths:
            folder, slash, name = (path or "").rpartition("/")
            odd = "%" in name or "\\" in name or "\0" in name or name in ("", ".", "..")
            if odd or not slash:
                yield path is not None and self._contains(path, links)
                continue
            if folder not in verdicts:
                verdicts[folder] = self._contains(f"{folder}/name", links)
            yield verdicts[folder]

    def _contains(self, path: str, links: LinkResolver) -> bool:
        try:
            place = parse_location(path)
        except UnsupportedStorage:
            return False
        written, decoded = _file_segments(place.key), _file_segments(decoded_key(place.key))
        if written is None or decoded is None or "\0" in place.key:
            return False
        is_inside = any(
            _below(written, folder.written) and _below(decoded, folder.decoded)
            for folder in self._folders
            if folder.place.store == place.store
        )
        return is_inside and (place.scheme != "file" or self._is_real(place.key, links))

    def _is_real(self, path: str, links: LinkResolver) -> bool:
        """Whether the folder of a local path is in a root once symlinks are resolved."""
        return self.contains_real(links.resolve(path.rpartition("/")[0]), links)

    def contains_real(self, folder: str, links: LinkResolver) -> bool:
        """Whether a local folder that has no symlinks in its path is in a root."""
        roots: Iterable[str] | None = self._real
        if roots is None:
            keys = (root.place.key for root in self._folders if root.place.scheme == "file")
            roots = map(links.resolve, keys)
        return any(f"{folder}/".startswith(f"{root}/") for root in roots)


def _spellings(place: Location) -> list[str]:
    """The usual spellings of the beginning of a path in this folder."""
    if place.scheme == "file":
        folder = place.key.rstrip("/") + "/"
        return [folder, f"file:{folder}", f"file://{folder}"]
    key = f"{place.key}/" if place.key else ""
    return [f"{alias}://{place.bucket}/{key}" for alias in _ALIASES[place.scheme]]


def decoded_key(key: str) -> str:
    """Percent-decoded until nothing changes, with `/` for `\\`, as some stores read it.

    Empty if there are more layers of encoding than any real file has.
    """
    for _ in range(_MAX_LAYERS):
        if (once := unquote(key)) == key:
            return key.replace("\\", "/")
        key = once
    return ""


def _segments(key: str) -> tuple[str, ...] | None:
    """The key's parts without empty ones and dots, or None if `..` leaves the store."""
    parts: list[str] = []
    for part in key.split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return tuple(parts)


def _file_segments(key: str) -> tuple[str, ...] | None:
    """Like _segments, but None also for a key that cannot name a file."""
    return None if key.rpartition("/")[2] in ("", ".", "..") else _segments(key)


def _starts_with(path: tuple[str, ...], folder: tuple[str, ...]) -> bool:
    return path[: len(folder)] == folder


def _below(path: tuple[str, ...], folder: tuple[str, ...]) -> bool:
    return len(path) > len(folder) and _starts_with(path, folder)
