"""Which files a table references in its metadata, manifest lists and manifests.

The table's writers choose all of these paths. So nothing is read outside the folders that are
allowed for the catalog, and no file that is too large to be a manifest.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import fastavro

from moraine.catalog.client import LoadedTable
from moraine.errors import StorageRefused
from moraine.log import get_logger
from moraine.storage.locations import Roots
from moraine.storage.stores import Storage

log = get_logger(__name__)

# Iceberg's target size of manifests is 8 MiB.
_MAX_BYTES = 256 << 20
# The only field that is needed; the reader skips the others, column statistics above all.
_PATHS_ONLY = fastavro.parse_schema(
    {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            {
                "name": "data_file",
                "type": {
                    "type": "record",
                    "name": "r2",
                    "fields": [{"name": "file_path", "type": "string"}],
                },
            }
        ],
    }
)


@dataclass(frozen=True, slots=True, repr=False)
class NamedFiles:
    """The files that a table references.

    Only files in `allowed` are read; `own` are the table's own folders in it. With `after`, only
    manifests with a later sequence number are read; tables of format version 1 have none.
    """

    table: LoadedTable
    storage: Storage
    allowed: Roots
    own: Roots
    after: int = -1

    def __iter__(self) -> Iterator[str]:
        metadata = self.table.metadata
        yield self.table.metadata_location
        for entry in metadata.get("metadata-log") or ():
            yield entry["metadata-file"]
        for key in ("statistics", "partition-statistics"):
            for file in metadata.get(key) or ():
                yield file["statistics-path"]
        seen: set[str] = set()
        for snapshot in metadata.get("snapshots") or ():
            yield from self._named_by(snapshot, seen)

    def _named_by(self, snapshot: Mapping[str, Any], seen: set[str]) -> Iterator[str]:
        # In format version 1 a snapshot may list its manifests itself.
        manifests: list[str] = list(snapshot.get("manifests") or ())
        if manifest_list := snapshot.get("manifest-list"):
            yield manifest_list
            if self._is_new(snapshot.get("sequence-number")):
                manifests += self._manifests_in(manifest_list)
        for manifest in manifests:
            if manifest not in seen:
                seen.add(manifest)
                yield manifest
                for entry in self._records(manifest, _PATHS_ONLY):
                    yield entry["data_file"]["file_path"]

    def _manifests_in(self, manifest_list: str) -> Iterator[str]:
        for entry in self._records(manifest_list):
            if self._is_new(entry.get("sequence_number")):
                yield entry["manifest_path"]

    def _is_new(self, sequence_number: int | None) -> bool:
        return not sequence_number or sequence_number > self.after

    def _records(self, path: str, schema: Any = None) -> Iterator[dict[str, Any]]:
        """The records of an Avro file. A missing or damaged file references nothing: the table's
        readers cannot use it either."""
        content = self._read(path)
        if content is None:
            return
        try:
            for record in fastavro.reader(io.BytesIO(content), reader_schema=schema):
                assert isinstance(record, dict)
                yield record
        except Exception as error:
            log.warning("neighbours.damaged", path=path, error=type(error).__name__)

    def _read(self, path: str) -> bytes | None:
        if not self.allowed.contains(path):
            return None
        try:
            size = self.storage.size(path)
            return self.storage.read(path) if size is not None and size <= _MAX_BYTES else None
        except StorageRefused:
            # The table's own readers cannot read it either: the credentials are the same. A table
            # that references forbidden files must not prevent the purge of others.
            if self.own.contains(path):
                raise
            log.warning("neighbours.forbidden", path=path)
            return None
