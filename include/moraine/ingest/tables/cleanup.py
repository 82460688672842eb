"""Removes what tables no longer need: old snapshots, and data files that no commit will use.

Every commit reads every snapshot, so tables that ingest created keep a short history. Only
snapshots that ingest committed itself are expired, as recorded in the ledger, and of the files that
they name only those that these commits wrote. What a table, its properties or its snapshots say
about themselves is no evidence: any writer of the table may have put it there.

Data files are left when a writer was killed or lost its lease. Their names contain the batch's id,
so they are found even if they were never recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from pyarrow.fs import FileSelector
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from moraine.failpoints import failpoint
from moraine.ingest.tables.service import IngestTables
from moraine.ingest.tables.snapshots import batches_in, old_snapshots
from moraine.log import get_logger

log = get_logger(__name__)

# Less would make every commit an expiry; more is read with every commit.
_SLACK = 0.5


def expire_old_snapshots(
    tables: IngestTables, table: Table, *, keep: int, in_doubt: Callable[[], bool]
) -> int:
    """Expire the oldest snapshots if there are many, and return how many.

    `in_doubt` says whether a key may still have to be looked up in them: by another writer that has
    not closed its batch, or by the successor of a writer that was lost.
    """
    try:
        return _expire(tables, table, keep, in_doubt)
    except Exception as error:  # the commit before it stays valid
        log.warning(
            "ingest.expiry.skipped", table=".".join(table.name()), error=type(error).__name__
        )
        return 0


def _expire(tables: IngestTables, table: Table, keep: int, in_doubt: Callable[[], bool]) -> int:
    enough = keep * _SLACK
    old = old_snapshots(table.metadata, keep=keep, now_ms=int(time.time() * 1000))
    if len(old) < enough:
        return 0
    commits = tables.commits_to(table)
    old = [snapshot for snapshot in old if _is_ours(snapshot, commits)]
    if len(old) < enough or in_doubt():
        return 0
    own = tables.own_roots(table)
    if not all(own.contains(snapshot.manifest_list) for snapshot in table.metadata.snapshots):
        return 0  # files elsewhere are not even read
    gone = {snapshot.snapshot_id for snapshot in old}
    kept = (one for one in table.metadata.snapshots if one.snapshot_id not in gone)
    written = {str(commit) for commit in commits.values()}
    files = {
        path
        for path in _files(table, old) - _files(table, kept)
        if own.contains(path) and _commit_in(path) in written
    }
    table.maintenance.expire_snapshots().by_ids(list(gone)).commit()
    failpoint("ingest.expired")
    # As the commit found the table: a branch may have been created meanwhile.
    delete_files(table, files - _files(table, table.metadata.snapshots))
    tables.forget_commits(table)
    return len(old)


def _is_ours(snapshot: Snapshot, commits: Mapping[int, UUID]) -> bool:
    """Whether its manifest list is the one that ingest wrote for it."""
    commit = commits.get(snapshot.snapshot_id)
    return _name_of(snapshot.manifest_list) == f"snap-{snapshot.snapshot_id}-0-{commit}.avro"


def _commit_in(path: str) -> str:
    """The commit in the file name of a manifest list, `snap-ID-0-UUID.avro`, or of a manifest,
    `UUID-mN.avro`: PyIceberg's names."""
    name = _name_of(path).removesuffix(".avro")
    return name[-36:] if name.startswith("snap-") else name[:36]


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


def _files(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """The manifest lists of the snapshots, and the manifests in them."""
    files: set[str] = set()
    for snapshot in snapshots:
        files.add(snapshot.manifest_list)
        files.update(manifest.manifest_path for manifest in snapshot.manifests(table.io))
    return files


def remove_lost_files(table: Table, batch: UUID, known: Sequence[str] = ()) -> None:
    """Remove a lost batch's files, unless the batch was committed after all. `table` was loaded
    after another commit, which makes a commit of the batch impossible.

    `known` are its recorded files; without them the files are searched by name. The manifests say
    whether a file belongs to the table: the snapshot that named the batch may be expired by now.
    """
    if str(batch) in batches_in(table):
        return
    paths = set(known) or _written_by(table, batch)
    if paths:
        delete_files(table, paths - _referenced(table, paths))


def delete_files(table: Table, paths: Iterable[str]) -> None:
    for path in paths:
        try:
            table.io.delete(path)
        except FileNotFoundError:
            continue  # another process deleted it
        except (OSError, ValueError) as error:
            log.warning("ingest.file.left", path=path, error=type(error).__name__)


def _written_by(table: Table, batch: UUID) -> set[str]:
    if not isinstance(table.io, PyArrowFileIO):
        return set()  # this FileIO cannot list
    folder = table.location_provider().data_path
    scheme, netloc, path = table.io.parse_location(folder, table.io.properties)
    found = table.io.fs_by_scheme(scheme, netloc).get_file_info(
        FileSelector(path, recursive=True, allow_not_found=True)
    )
    return {
        folder + one.path.removeprefix(path)
        for one in found
        if one.is_file and str(batch) in one.base_name
    }


def _referenced(table: Table, paths: set[str]) -> set[str]:
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
    }
    return {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.file_path in paths
    }
