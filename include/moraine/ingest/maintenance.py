"""Keeps the history of tables that ingest made short: every snapshot is read with every commit.

Only where all snapshots are appends: then an older one has no data file that a newer one lacks, and
what goes with it is metadata alone. A table that somebody compacts or deletes from is theirs to
maintain. Snapshots that a branch or a tag names stay.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import requests
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from moraine.ingest.tables import MADE_HERE
from moraine.log import get_logger

log = get_logger(__name__)

# Fewer would make every commit an expiry; more is read with every commit.
_SLACK = 0.5
# Whatever may be under way refers to younger ones.
_TOO_YOUNG = timedelta(minutes=1)


def expire_old_snapshots(table: Table, *, keep: int, is_open: Callable[[datetime], bool]) -> int:
    """Remove the oldest snapshots if there are many; how many went.

    `is_open` tells whether a request from before a time is not settled yet: it may be found in a
    snapshot that is older than it would be otherwise.
    """
    if table.metadata.properties.get(MADE_HERE) != "true":
        return 0
    snapshots = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    if len(snapshots) < keep * (1 + _SLACK) or not all(map(_is_append, snapshots)):
        return 0
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    before = datetime.now(UTC) - _TOO_YOUNG
    old = [
        snapshot
        for snapshot in snapshots[:-keep]
        if snapshot.snapshot_id not in named
        and datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC) < before
    ]
    # Where many commits come in a minute, most are too young, and some just old enough each time.
    if len(old) < keep * _SLACK or is_open(before):
        return 0
    kept = [snapshot for snapshot in snapshots if snapshot not in old]
    # What goes with them: their lists, and manifests that were merged since.
    gone = _manifests(table, old) - _manifests(table, kept)
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
