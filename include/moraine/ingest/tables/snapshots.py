"""What a table's snapshots say: which keys and batches they committed, and which are old. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from moraine.ingest.model import AppliedRequest

KEYS = "moraine.ingest.keys"
"""A snapshot's summary: the keys whose rows it added, with the result of each."""
BATCH = "moraine.ingest.batch"
"""A snapshot's summary: the batch that it committed."""
_MAIN = "main"
_GC = "gc.enabled"
_MIN_KEPT = "history.expire.min-snapshots-to-keep"
_MAX_AGE = "history.expire.max-snapshot-age-ms"


def ancestry(metadata: TableMetadata, snapshot_id: int | None) -> Iterator[Snapshot]:
    """A snapshot and its ancestors, newest first. A circle of parents ends it."""
    left = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    while snapshot_id is not None and (snapshot := left.pop(snapshot_id, None)) is not None:
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def old_snapshots(metadata: TableMetadata, *, keep: int, now_ms: int) -> list[Snapshot]:
    """Snapshots of the main branch that may be expired under the table's own properties.

    Only where all of them are appends: then an older snapshot has no data file that a newer one
    lacks. Snapshots of other branches or tags stay, and those that no branch has.
    """
    if metadata.properties.get(_GC, "true").lower() != "true":
        return []
    line = list(ancestry(metadata, metadata.current_snapshot_id))
    if not all(one.summary and one.summary.operation is Operation.APPEND for one in line):
        return []
    main = metadata.refs.get(_MAIN)
    least = (metadata.properties.get(_MIN_KEPT), main and main.min_snapshots_to_keep)
    ages = (metadata.properties.get(_MAX_AGE), main and main.max_snapshot_age_ms)
    keep = max(keep, *(int(number or 0) for number in least))
    before = now_ms - max(int(age or 0) for age in ages)
    held = {
        id for name, ref in metadata.refs.items() if name != _MAIN for id in _held(metadata, ref)
    }
    return [
        snapshot
        for snapshot in line[keep:]
        if snapshot.snapshot_id not in held and snapshot.timestamp_ms <= before
    ]


def _held(metadata: TableMetadata, ref: SnapshotRef) -> Iterator[int]:
    if ref.snapshot_ref_type is SnapshotRefType.TAG:
        yield ref.snapshot_id
    else:
        yield from (snapshot.snapshot_id for snapshot in ancestry(metadata, ref.snapshot_id))


def keys_in(table: Table) -> dict[tuple[str, int], AppliedRequest]:
    """The requests that the table's snapshots committed, by key and reservation."""
    found: dict[tuple[str, int], AppliedRequest] = {}
    for snapshot in table.metadata.snapshots:
        text = snapshot.summary.additional_properties.get(KEYS) if snapshot.summary else None
        if text is None:
            continue
        for key, (number, rows, extents, size) in _parse_keys(text).items():
            found[key, number] = AppliedRequest(number, rows, extents, size, snapshot.snapshot_id)
    return found


@lru_cache(maxsize=1000)
def _parse_keys(text: str) -> dict[str, list[int]]:
    """Cached: snapshots do not change, and every commit reads all of them."""
    parsed: dict[str, list[int]] = json.loads(text)
    return parsed


def batches_in(table: Table) -> set[str]:
    return {
        snapshot.summary.additional_properties[BATCH]
        for snapshot in table.metadata.snapshots
        if snapshot.summary and BATCH in snapshot.summary.additional_properties
    }


def keys_summary(applied: Mapping[str, AppliedRequest]) -> dict[str, str]:
    results = {
        key: [one.id, one.rows_ingested, one.extent_count, one.bytes_written]
        for key, one in applied.items()
    }
    return {KEYS: json.dumps(results, separators=(",", ":"))}
