"""Keeps the history of tables that ingest made short: every snapshot is read with every commit.

Only where all snapshots are appends: then an older one has no data file that a newer one lacks, and
what goes with it is metadata alone. A table that somebody compacts or deletes from is theirs to
maintain. Snapshots that a branch or a tag names stay.
"""

from __future__ import annotations

from collections.abc import Callable

import requests
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from moraine.ingest.tables import MADE_HERE
from moraine.log import get_logger

log = get_logger(__name__)

# Less would make every commit an expiry; more is read with every commit.
_SLACK = 0.5


def expire_old_snapshots(table: Table, *, keep: int, in_doubt: Callable[[], bool]) -> int:
    """Remove the oldest snapshots if there are many; how many went.

    `in_doubt` tells whether somebody may still have to look for a key among them: another writer
    that has not closed its batch, or whoever comes after one that was lost.
    """
    if table.metadata.properties.get(MADE_HERE) != "true":
        return 0
    snapshots = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    if len(snapshots) < keep * (1 + _SLACK) or not all(map(_is_append, snapshots)):
        return 0
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [snapshot for snapshot in snapshots[:-keep] if snapshot.snapshot_id not in named]
    if not old or in_doubt():
        return 0
    # What goes with them: their lists, and manifests that were merged since. What is not in the
    # first that is kept is in none after it; those with names lie before it.
    among_old = [snapshot for snapshot in snapshots[:-keep] if snapshot.snapshot_id in named]
    gone = _manifests(table, old) - _manifests(table, [*among_old, snapshots[-keep]])
    lists = {snapshot.manifest_list for snapshot in old}
    try:
        expiry = table.maintenance.expire_snapshots()
        expiry.by_ids([snapshot.snapshot_id for snapshot in old]).commit()
    except (CommitFailedException, RESTError, requests.RequestException) as error:
        log.info("ingest.expiry.skipped", error=type(error).__name__)
        return 0
    for path in [*lists, *gone]:
        _delete(table, path)
    return len(old)


def _is_append(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.APPEND


def _manifests(table: Table, snapshots: list[Snapshot]) -> set[str]:
    return {
        manifest.manifest_path
        for snapshot in snapshots
        for manifest in snapshot.manifests(table.io)
    }


def _delete(table: Table, path: str) -> None:
    try:
        table.io.delete(path)
    except (OSError, ValueError) as error:
        log.warning("ingest.file.left", path=path, error=type(error).__name__)
