"""Which files are taken, by their names, and what is known of each."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal

from moraine.ingest.names import check_names
from moraine.settings.ingest import FileDropSettings, PrefixSettings
from moraine.storage.listing import StoredFile
from moraine.storage.locations import parse_location

DOOR = "filedrop"
_SUFFIXES = (".ndjson", ".jsonl", ".json")
_ENCODINGS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_TAG = 12


class FileState(StrEnum):
    SETTLING = "settling"
    TAKEN = "taken"
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file as the ledger has it."""

    location: str
    version: str
    size: int
    state: FileState
    key: str | None
    ingested: str | None
    target: str | None
    error: dict[str, Any] | None
    age: float
    """Seconds since it was first seen as it is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", FileState(self.state))

    @classmethod
    def settling(cls, file: StoredFile, before: FileRow | None) -> FileRow:
        """A file that is new, or not as it was before."""
        ingested = before.ingested if before else None
        known = None, ingested, None, None
        return cls(file.location, file.version, file.size, FileState.SETTLING, *known, age=0.0)


@dataclass(frozen=True, slots=True)
class DroppedName:
    """What a file's path below its prefix says."""

    database: str
    table: str
    name: str
    encoding: str

    @classmethod
    def parse(cls, path: str) -> DroppedName | None:
        """None if it is none of ours: elsewhere, hidden, of another kind, or not complete yet."""
        parts = path.split("/")
        if len(parts) != 3 or any(map(is_hidden, parts)):
            return None
        database, table, name = parts
        packed = next((end for end in _ENCODINGS if name.lower().endswith(end)), "")
        if not name.lower().removesuffix(packed).endswith(_SUFFIXES):
            return None
        return cls(database, table, name, _ENCODINGS.get(packed, ""))

    def check(self) -> None:
        check_names(self.database, self.table)


@dataclass(frozen=True, slots=True)
class Drop:
    """A prefix that is watched."""

    name: str
    base: str
    settle: timedelta
    after: Literal["keep", "delete", "move"]
    done: str
    failed: str
    auto_create: bool
    schema_evolve: bool

    @classmethod
    def of(cls, name: str, settings: PrefixSettings) -> Drop:
        base = _canonical(settings.location)
        done, failed = (
            _canonical(given or f"{base}/{usual}")
            for given, usual in ((settings.done, "_done"), (settings.failed, "_failed"))
        )
        for folder in (done, failed):
            if not _in_one_store(base, folder):
                raise ValueError(
                    f"ingest.filedrop.prefixes.{name}: files cannot be moved to another store, "
                    f"so not to {folder}"
                )
        flags = settings.auto_create, settings.schema_evolve
        return cls(name, base, settings.settle, settings.after, done, failed, *flags)

    def path_of(self, location: str) -> str:
        return location.removeprefix(f"{self.base}/")

    def target_of(self, row: FileRow, *, tagged: bool) -> str:
        """Where the file goes. A tag tells it from another file of the same name."""
        folder = self.failed if row.state is FileState.REFUSED else self.done
        path, _, name = self.path_of(row.location).rpartition("/")
        tag = sha256_of(row.key) or _digest(row.version)
        return f"{folder}/{path}/{f'{tag[:_TAG]}-' if tagged else ''}{name}"


def drops_of(settings: FileDropSettings) -> list[Drop]:
    drops = [Drop.of(name, prefix) for name, prefix in settings.prefixes.items()]
    for drop, other in itertools.product(drops, drops):
        where = f"ingest.filedrop.prefixes.{drop.name}"
        if drop is not other and _lies_in(drop.base, other.base):
            raise ValueError(f"{where} lies in the location of {other.name}")
        for folder in (drop.done, drop.failed):
            inside = folder.removeprefix(f"{other.base}/")
            if _lies_in(folder, other.base) and not is_hidden(inside):
                raise ValueError(f"{where}: {folder} is watched itself; begin its name with _")
    return drops


def key_of(sha256: str) -> str:
    return f"{DOOR}:{sha256}"


def sha256_of(key: str | None) -> str:
    return (key or "").removeprefix(f"{DOOR}:")


def is_hidden(name: str) -> bool:
    return name.startswith((".", "_")) or not name


def error_report(row: FileRow, path: str) -> dict[str, Any]:
    """What is written beside a file that was set aside."""
    error: Mapping[str, Any] = row.error or {}
    return {**error, "file": path, "size": row.size, "key": row.key}


def _canonical(location: str) -> str:
    """The same folder by the same name, however the settings spell it."""
    return str(parse_location(location)).rstrip("/")


def _in_one_store(*folders: str) -> bool:
    places = [parse_location(f"{folder}/") for folder in folders]
    return len({(place.scheme, place.bucket) for place in places}) == 1


def _lies_in(folder: str, base: str) -> bool:
    return f"{folder}/".startswith(f"{base}/")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
