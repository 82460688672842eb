"""Where files lie: locations as tables write them, and the folders they must not leave."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from moraine.storage.files import UnsupportedStorage, local_path
from moraine.storage.links import LinkResolver

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")
_ALIASES = {
    "file": ("file",),
    "s3": ("s3", "s3a", "s3n"),
    "gs": ("gs", "gcs"),
    "azure": ("abfss", "abfs", "wasb", "wasbs", "az"),
}
_CANONICAL = {alias: scheme for scheme, aliases in _ALIASES.items() for alias in aliases}
# What follows the root of a path and may read differently in another form: a closer look.
_SUSPICIOUS = r"%|\\|//|/\.|\x00|^[./]|/$|^$"
_TO_THE_END = 2**31 - 1
_MOST_LAYERS = 16


@dataclass(frozen=True, slots=True)
class Location:
    """A file or folder. Nothing in the key is decoded: `%20` in it is three characters."""

    scheme: str
    bucket: str
    """For Azure `container@host`, or only the container where no account is named."""
    key: str

    def __str__(self) -> str:
        if self.scheme == "file":
            return self.key
        return f"{_ALIASES[self.scheme][0]}://{self.bucket}/{self.key}"


def parse_location(text: str) -> Location:
    found = _SCHEME.match(text)
    scheme = _CANONICAL.get(found.group(1).lower()) if found else "file"
    if scheme is None or found is None or scheme == "file":
        # Not ours, or local: either way local_path has the last word, and the error's.
        return Location("file", "", local_path(_lower_scheme(text, found)))
    rest = text[found.end() :]
    bucket, _, key = rest[2:].partition("/")
    if not rest.startswith("//") or not bucket:
        raise UnsupportedStorage(f"This location names no bucket: {text[:200]}")
    return Location(scheme, _blob_container(bucket) if scheme == "azure" else bucket, key)


def _lower_scheme(text: str, found: re.Match[str] | None) -> str:
    return text[: found.end()].lower() + text[found.end() :] if found else text


def _blob_container(authority: str) -> str:
    """`wasb` names the blob endpoint of an account and `abfs` the other: it is one account."""
    container, at, host = authority.partition("@")
    return container + at + host.lower().replace(".blob.", ".dfs.", 1)


def canonical_prefix(prefix: str) -> str:
    """A prefix of locations with its scheme's aliases told apart no longer."""
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
    """A root in the forms it is compared in."""

    place: Location
    written: tuple[str, ...]
    decoded: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> _Folder:
        place = parse_location(text)
        key = place.key.rstrip("/")
        place = Location(place.scheme, place.bucket, key or ("/" if place.scheme == "file" else ""))
        written, decoded = _segments(key), _segments(_decode(key))
        if written is None or decoded is None or (key and not (written and decoded)):
            # A whole bucket or disk must be meant, not come about by way of `..`.
            raise UnsupportedStorage(f"This location leaves its own store: {text[:200]}")
        return cls(place, written, decoded)

    def shares_store_with(self, place: Location) -> bool:
        return (self.place.scheme, self.place.bucket) == (place.scheme, place.bucket)

    def overlaps(self, other: _Folder, resolve: Callable[[str], str]) -> bool:
        if not self.shares_store_with(other.place):
            return False
        forms = [(self.written, other.written), (self.decoded, other.decoded)]
        if self.place.scheme == "file":
            ends = (_segments(resolve(folder.place.key)) or () for folder in (self, other))
            forms.append((next(ends), next(ends)))
        return any(_starts_with(a, b) or _starts_with(b, a) for a, b in forms)


@dataclass(frozen=True)
class Roots:
    """The folders a table's files may lie in.

    A path is inside only if every way to read it is: as it is written, after percent-decoding,
    and, on a local disk, where its folder really is. What it is the path of is never followed.
    """

    _listed: tuple[str, ...]

    @classmethod
    def of(cls, locations: Iterable[str]) -> Roots:
        return cls(tuple(sorted({str(_Folder.parse(text).place) for text in locations})))

    @property
    def listed(self) -> list[str]:
        return list(self._listed)

    @cached_property
    def _folders(self) -> tuple[_Folder, ...]:
        return tuple(_Folder.parse(text) for text in self._listed)

    def contains(self, path: str) -> bool:
        return self._contains(path, LinkResolver())

    def overlaps(self, other: Roots) -> bool:
        """Whether one of these folders is, or lies in, or holds, one of the others."""
        resolve = LinkResolver().resolve
        return any(a.overlaps(b, resolve) for a in self._folders for b in other._folders)

    def outside(self, paths: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.BooleanArray:
        """For each path whether it lies outside; a null does."""
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
                unremarkable = pc.and_not(here, pc.match_substring_regex(rest, _SUSPICIOUS))
                plain = pc.or_(plain, unremarkable)
                if folder.place.scheme == "file":
                    unremarkable = pc.and_(unremarkable, self._stays(paths, unremarkable, links))
                inside = pc.or_(inside, unremarkable)
        inside = inside.fill_null(False)
        doubtful = pc.invert(plain.fill_null(False))
        if pc.any(doubtful).as_py():
            rows = self._contains_each(paths.filter(doubtful).to_pylist(), links)
            inside = pc.replace_with_mask(inside, doubtful, pa.array(rows, pa.bool_()))
        return pc.invert(inside)

    def _stays(self, paths: Any, chosen: Any, links: LinkResolver) -> Any:
        """Whether the chosen local paths lie in folders that symlinks do not lead elsewhere."""
        split = pc.split_pattern(paths.filter(chosen), "/", max_splits=1, reverse=True)
        folders = pc.list_element(split, 0).dictionary_encode()
        stays = [self._is_real(local_path(f"{f}/"), links) for f in folders.dictionary.to_pylist()]
        verdicts = pa.array(stays, pa.bool_()).take(folders.indices)
        return pc.replace_with_mask(pa.repeat(False, len(paths)), chosen, verdicts)

    def _contains_each(self, paths: Iterable[str | None], links: LinkResolver) -> Iterator[bool]:
        """Row by row, but a folder only once: a name without oddities decides nothing."""
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
        written, decoded = _file_segments(place.key), _file_segments(_decode(place.key))
        if written is None or decoded is None or "\0" in place.key:
            return False
        lies_in = any(
            _below(written, folder.written) and _below(decoded, folder.decoded)
            for folder in self._folders
            if folder.shares_store_with(place)
        )
        return lies_in and (place.scheme != "file" or self._is_real(place.key, links))

    def _is_real(self, path: str, links: LinkResolver) -> bool:
        """Whether the folder of a local path is in one of the roots once links are followed."""
        real = links.resolve(path.rpartition("/")[0]) + "/"
        roots = (folder.place.key for folder in self._folders if folder.place.scheme == "file")
        return any(real.startswith(links.resolve(root) + "/") for root in roots)


def _spellings(place: Location) -> list[str]:
    """The ways the beginning of a path in this folder is usually written."""
    if place.scheme == "file":
        folder = place.key.rstrip("/") + "/"
        return [folder, f"file:{folder}", f"file://{folder}"]
    key = f"{place.key}/" if place.key else ""
    return [f"{alias}://{place.bucket}/{key}" for alias in _ALIASES[place.scheme]]


def _decode(key: str) -> str:
    """Percent-decoded until nothing is left to decode; and some stores read `\\` as `/`.

    What hides behind more layers than anybody encodes is nobody's file.
    """
    for _ in range(_MOST_LAYERS):
        if (once := unquote(key)) == key:
            return key.replace("\\", "/")
        key = once
    return ""


def _segments(key: str) -> tuple[str, ...] | None:
    """The key's parts without empty ones and dots, or None if it climbs above its store."""
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
    """As _segments, but None also for what can be no file's name."""
    return None if key.rpartition("/")[2] in ("", ".", "..") else _segments(key)


def _starts_with(path: tuple[str, ...], folder: tuple[str, ...]) -> bool:
    return path[: len(folder)] == folder


def _below(path: tuple[str, ...], folder: tuple[str, ...]) -> bool:
    return len(path) > len(folder) and _starts_with(path, folder)
