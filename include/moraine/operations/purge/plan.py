"""The files that table metadata itself names. The rest is in manifests, and Spark reads those."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moraine.catalog.client import LoadedTable
from moraine.operations.purge.order import FileKind


@dataclass(frozen=True, slots=True)
class Entry:
    path: str
    kind: FileKind
    size: int | None = None


def named_by_metadata(table: LoadedTable, read: Callable[[str], bytes | None]) -> Iterator[Entry]:
    """Manifest lists, statistics, and every metadata file, the current one included."""
    for snapshot in table.metadata.get("snapshots") or ():
        if manifest_list := snapshot.get("manifest-list"):
            yield Entry(manifest_list, FileKind.MANIFEST_LIST)
    for key, kind in (
        ("statistics", FileKind.STATISTICS),
        ("partition-statistics", FileKind.PARTITION_STATISTICS),
    ):
        for file in table.metadata.get(key) or ():
            yield Entry(file["statistics-path"], kind, file.get("file-size-in-bytes"))
    for path in older_metadata(table.metadata, read):
        yield Entry(path, FileKind.OLD_METADATA)
    yield Entry(table.metadata_location, FileKind.CURRENT_METADATA)


def older_metadata(
    metadata: Mapping[str, Any], read: Callable[[str], bytes | None]
) -> Iterator[str]:
    """Every older metadata file, to the first.

    A metadata file's log stops after `write.metadata.previous-versions-max` entries (100), but
    the oldest file it names has a log of its own: go on from there until nothing new comes.
    """
    seen: set[str] = set()
    while True:
        log = [entry["metadata-file"] for entry in metadata.get("metadata-log") or ()]
        new = [path for path in log if path not in seen]
        if not new:
            return
        seen.update(new)
        yield from new
        content = read(log[0])
        if content is None:
            return
        metadata = json.loads(content)
