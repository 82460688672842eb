"""The files that table metadata itself names. The rest is in manifests, and Spark reads those."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moraine.catalog.client import LoadedTable
from moraine.operations.purge.order import FileKind

Read = Callable[[str], bytes | None]
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    kind: FileKind
    size: int | None = None


def named_by_metadata(table: LoadedTable, read: Read) -> Iterator[Entry]:
    """Manifest lists, statistics, and every metadata file, the current one included."""
    for snapshot in table.metadata.get("snapshots") or ():
        if manifest_list := snapshot.get("manifest-list"):
            yield Entry(manifest_list, FileKind.MANIFEST_LIST)
        # Format version 1 allows a snapshot to name its manifests itself.
        for manifest in snapshot.get("manifests") or ():
            yield Entry(manifest, FileKind.MANIFEST)
    for key, kind in (
        ("statistics", FileKind.STATISTICS),
        ("partition-statistics", FileKind.PARTITION_STATISTICS),
    ):
        for file in table.metadata.get(key) or ():
            yield Entry(file["statistics-path"], kind, file.get("file-size-in-bytes"))
    for path in older_metadata(table.metadata, read):
        yield Entry(path, FileKind.OLD_METADATA)
    yield Entry(table.metadata_location, FileKind.CURRENT_METADATA)


def version_hint_of(metadata_location: str) -> str:
    """Catalogs that keep tables in plain folders write the current version down beside it. No
    metadata names that file."""
    return f"{metadata_location.rpartition('/')[0]}/version-hint.text"


def older_metadata(metadata: Mapping[str, Any], read: Read) -> Iterator[str]:
    """Every older metadata file, to the first.

    A metadata file's log stops after `write.metadata.previous-versions-max` entries (100), but
    the oldest file it names has a log of its own: go on from there until nothing new comes. If
    that file is gone or damaged, the oldest that is still there says as much.
    """
    seen: set[str] = set()
    while True:
        log = [entry["metadata-file"] for entry in metadata.get("metadata-log") or ()]
        new = [path for path in log if path not in seen]
        if not new:
            return
        seen.update(new)
        yield from new
        older = next(filter(None, map(_parse, map(read, log))), None)
        if older is None:
            return
        metadata = older


def _parse(content: bytes | None) -> dict[str, Any] | None:
    """Table metadata, or None if there is none to be read."""
    try:
        plain = gzip.decompress(content) if content and content.startswith(_GZIP) else content
        metadata = json.loads(plain or b"")
    except (ValueError, OSError, EOFError, zlib.error):
        return None
    return metadata if isinstance(metadata, dict) else None
