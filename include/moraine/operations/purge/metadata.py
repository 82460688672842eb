"""What a table's metadata decides: which files it names, and whether they may be purged.

The rest of the files is in manifests, which Spark reads. Every check is made before the first
delete.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moraine.catalog.client import LoadedTable
from moraine.operations.purge.errors import PathOutsideTable, PurgeForbidden, TableChanged
from moraine.operations.purge.model import FileKind, ListedFiles, PinnedTable, PurgeParameters
from moraine.storage.stores import MAX_READ_BYTES
from moraine.words import counted

Read = Callable[[str], bytes | None]
_GZIP = b"\x1f\x8b"
# The keys under which catalogs that know such an id may return it.
_ENTITY_ID_KEYS = ("polaris.table-entity-id", "table-entity-id", "entity-id")


@dataclass(frozen=True, slots=True)
class NamedFile:
    path: str
    kind: FileKind
    size: int | None = None


def named_by_metadata(table: LoadedTable, read: Read) -> Iterator[NamedFile]:
    """Manifest lists, statistics, and every metadata file, the current one included."""
    for snapshot in table.metadata.get("snapshots") or ():
        if manifest_list := snapshot.get("manifest-list"):
            yield NamedFile(manifest_list, FileKind.MANIFEST_LIST)
        # Format version 1 allows a snapshot to name its manifests itself.
        for manifest in snapshot.get("manifests") or ():
            yield NamedFile(manifest, FileKind.MANIFEST)
    for key, kind in (
        ("statistics", FileKind.STATISTICS),
        ("partition-statistics", FileKind.PARTITION_STATISTICS),
    ):
        for file in table.metadata.get(key) or ():
            yield NamedFile(file["statistics-path"], kind, file.get("file-size-in-bytes"))
    for path in older_metadata(table.metadata, read):
        yield NamedFile(path, FileKind.OLD_METADATA)
    yield NamedFile(table.metadata_location, FileKind.CURRENT_METADATA)


def version_hint_of(metadata_location: str) -> str:
    """The file beside the metadata in which catalogs without a server keep the current version. No
    metadata names it."""
    return f"{metadata_location.rpartition('/')[0]}/version-hint.text"


def older_metadata(metadata: Mapping[str, Any], read: Read) -> Iterator[str]:
    """Every older metadata file, to the first.

    A metadata file's log stops after `write.metadata.previous-versions-max` entries (100), but the
    oldest file it names has a log of its own: go on from there until there is nothing new. If that
    file is gone or damaged, go on from the oldest one that can be read.
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
    """Table metadata, or None if it cannot be read. A writer of the table chose the content."""
    try:
        plain = _unzipped(content) if content and content.startswith(_GZIP) else content
        metadata = json.loads(plain or b"")
    except (ValueError, OSError, EOFError, zlib.error, RecursionError):
        return None
    return metadata if isinstance(metadata, dict) else None


def _unzipped(content: bytes) -> bytes:
    """A few kilobytes can be gigabytes once decompressed."""
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        plain = file.read(MAX_READ_BYTES + 1)
    if len(plain) > MAX_READ_BYTES:
        raise ValueError("too large")
    return plain


def check_purge_allowed(table: LoadedTable) -> None:
    if str(table.properties.get("gc.enabled", "true")).lower() == "false":
        raise PurgeForbidden(
            "The table has gc.enabled=false: its files may be shared with other tables. "
            "Set it to true if they are not."
        )


def check_identity(asked: PurgeParameters, table: LoadedTable) -> dict[str, str]:
    """Raise unless the catalog's table is the one the caller meant. Returns the checks that could
    not be made."""
    entity_id = entity_id_of(table)
    wanted_id = asked.table_identity.table_entity_id
    expected: list[tuple[str, str | None, str]] = [
        ("metadata_location", asked.metadata_location, table.metadata_location),
    ]
    if asked.metadata is not None:
        expected.append(("table-uuid", asked.metadata.table_uuid, table.uuid))
        expected.append(("location", asked.metadata.location, table.location))
    if entity_id is not None:
        expected.append(("table_entity_id", wanted_id, entity_id))
    for what, wanted, found in expected:
        if wanted is not None and wanted.rstrip("/") != found.rstrip("/"):
            raise TableChanged(
                f"The task names {what} {wanted}, but the catalog says {found}; "
                "nothing was deleted."
            )
    if wanted_id is not None and entity_id is None:
        return {"table_entity_id": "not checked: the catalog does not return it"}
    return {}


def entity_id_of(table: LoadedTable) -> str | None:
    for key in _ENTITY_ID_KEYS:
        if value := table.config.get(key) or table.properties.get(key):
            return str(value)
    return None


def refuse_change(
    pinned: PinnedTable, table: LoadedTable, deleted_so_far: Callable[[], str]
) -> None:
    """Raise unless the table is still the one that was pinned when the task was acquired."""
    for what, was, found in (
        ("uuid", pinned.uuid, table.uuid),
        ("metadata_location", pinned.metadata_location, table.metadata_location),
    ):
        if was != found:
            raise TableChanged(
                f"The table changed since the purge began: its {what} was {was} and is now "
                f"{found}. {deleted_so_far()} Submit a new purge if it is still wanted."
            )


def refuse_outside_files(paths: Sequence[str], max_named: int, total: int | None = None) -> None:
    """Raise if there are files outside the table's own folders; `paths` may be only the first."""
    total = len(paths) if total is None else total
    if not total:
        return
    paths = paths[:max_named]
    raise PathOutsideTable(
        f"{counted(total, 'file lies', 'files lie')} outside the table's locations, the first at "
        f"{paths[0]}; "
        "nothing was deleted. Set purge.outside-files to skip to leave them and purge the rest.",
        details="\n".join(paths),
        report={"outside": ListedFiles(files=total, paths=list(paths)).to_json()},
    )
