"""Which files are taken, by their names; what is known of each; and what a pass found."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal

from moraine.ingest.model import State
from moraine.log import get_logger
from moraine.settings.ingest import FileDropSettings, PrefixSettings
from moraine.storage.files import StoredFile
from moraine.storage.locations import parse_location

log = get_logger(__name__)

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
    """A file as recorded in the ledger."""

    location: str
    version: str
    size: int
    state: FileState
    key: str | None
    ingested: str | None
    target: str | None
    error: dict[str, Any] | None
    age: float
    """Seconds since it was first seen in this version."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", FileState(self.state))

    @classmethod
    def settling(cls, file: StoredFile, before: FileRow | None) -> FileRow:
        """A file that is new or has changed."""
        ingested = before.ingested if before else None
        known = None, ingested, None, None
        return cls(file.location, file.version, file.size, FileState.SETTLING, *known, age=0.0)


@dataclass(frozen=True, slots=True)
class TakenFile:
    """A file that was taken, with the request of its key."""

    row: FileRow
    state: State | None
    """None: there is no request, so the file was not stored."""
    database: str | None
    table: str | None
    error: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class DroppedName:
    """The path of a file below its prefix, parsed."""

    database: str
    table: str
    name: str
    encoding: str

    @classmethod
    def parse(cls, path: str) -> DroppedName | None:
        """None for a file to ignore: elsewhere, hidden, of another type, or not complete yet."""
        parts = path.split("/")
        if len(parts) != 3 or any(map(is_hidden, parts)):
            return None
        database, table, name = parts
        packed = next((end for end in _ENCODINGS if name.lower().endswith(end)), "")
        if not name.lower().removesuffix(packed).endswith(_SUFFIXES):
            return None
        return cls(database, table, name, _ENCODINGS.get(packed, ""))


@dataclass(frozen=True, slots=True)
class Drop:
    """A watched prefix."""

    name: str
    base: str
    settle: timedelta
    after: Literal["keep", "delete", "move"]
    done: str
    failed: str
    auto_create: bool
    schema_evolve: bool
    databases: tuple[str, ...] = ()
    """The only ones that its files may go to; empty: any."""

    @classmethod
    def of(cls, name: str, settings: PrefixSettings) -> Drop:
        base = _canonical(settings.location)
        done, failed = (
            _canonical(given or f"{base}/{usual}")
            for given, usual in ((settings.done, "_done"), (settings.failed, "_failed"))
        )
        for folder in (done, failed):
            if parse_location(f"{base}/").store != parse_location(f"{folder}/").store:
                raise ValueError(
                    f"ingest.filedrop.prefixes.{name}: files cannot be moved to another store, "
                    f"so not to {folder}"
                )
        return cls(
            name,
            base,
            settings.settle,
            settings.after,
            done,
            failed,
            settings.auto_create,
            settings.schema_evolve,
            tuple(settings.databases),
        )

    def path_of(self, location: str) -> str:
        return location.removeprefix(f"{self.base}/")

    def target_of(self, row: FileRow, *, tagged: bool) -> str:
        """Where the file is moved. A tag distinguishes it from another file of the same name."""
        folder = self.failed if row.state is FileState.REFUSED else self.done
        path, _, name = self.path_of(row.location).rpartition("/")
        tag = sha256_of(row.key) or hashlib.sha256(row.version.encode()).hexdigest()
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
    """The report that is written beside a refused file."""
    error: Mapping[str, Any] = row.error or {}
    return {**error, "file": path, "size": row.size, "key": row.key}


def _canonical(location: str) -> str:
    """One spelling for each folder, however the settings write it."""
    return str(parse_location(location)).rstrip("/")


def _lies_in(folder: str, base: str) -> bool:
    return f"{folder}/".startswith(f"{base}/")


@dataclass(slots=True)
class FileCounts:
    taken: int = 0
    done: int = 0
    refused: int = 0
    failed: int = 0
    """Files and prefixes that could not be read, moved or deleted in this pass."""
    settling: int = 0
    """Files that may still change."""
    waiting: int = 0
    """Files that are taken and not written yet."""

    def then(self, later: FileCounts) -> FileCounts:
        """The sums of both passes, except that the open files are those of the later one."""
        names = asdict(self)
        summed = {name: getattr(self, name) + getattr(later, name) for name in names}
        return replace(FileCounts(**summed), settling=later.settling, waiting=later.waiting)

    @property
    def open(self) -> int:
        return self.settling + self.waiting


@dataclass(slots=True)
class WatchPass:
    """One pass over the watched prefixes: what it found so far."""

    counts: FileCounts = field(default_factory=FileCounts)
    next_due: float | None = None
    """Seconds until the next file can be taken."""
    full: bool = False
    """Too much waits to be written: no more files are taken."""
    problem: Exception | None = None

    def leave(self, seconds: float) -> None:
        """Leave a file to a later pass."""
        self.counts.settling += 1
        self.next_due = seconds if self.next_due is None else min(seconds, self.next_due)

    def fail(self, event: str, error: Exception, **ids: Any) -> None:
        log.warning(event, error=type(error).__name__, reason=str(error), **ids)
        self.counts.failed += 1
        self.problem = self.problem or error
