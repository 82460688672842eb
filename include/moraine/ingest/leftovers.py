"""Data files that a batch wrote and nobody commits: its writer was killed, or lost its lease.

Their names have the batch's id, so they are found even if nobody lived to write them down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from pyarrow.fs import FileSelector
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from moraine.ingest.tables import batches_in
from moraine.log import get_logger

log = get_logger(__name__)


def remove_leftovers(table: Table, batch: UUID, known: Sequence[str] = ()) -> None:
    """Remove a lost batch's files, unless it was committed after all. `table` is as it was after
    a commit of somebody else: since then the batch cannot be committed any more.

    `known` are its files, if somebody wrote them down; else they are looked for. Whether a file
    belongs to the table is asked of its manifests: the snapshot that named the batch may be expired
    by now.
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
            continue  # somebody else was quicker
        except (OSError, ValueError) as error:
            log.warning("ingest.file.left", path=path, error=type(error).__name__)


def _written_by(table: Table, batch: UUID) -> set[str]:
    if not isinstance(table.io, PyArrowFileIO):
        return set()  # it cannot list
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
