"""In which order a table's files go: leaves first, the root last.

Whatever is interrupted can be planned again from the current metadata file as long as that file
is there, so it is the very last to go. Catalogs read it to load the table, and so to vend the
credentials for everything else.
"""

from __future__ import annotations

from enum import StrEnum


class FileKind(StrEnum):
    """The first three are in the order of Iceberg's own numbers for the content of a file."""

    DATA = "data"
    POSITION_DELETES = "position_deletes"
    EQUALITY_DELETES = "equality_deletes"
    DELETION_VECTORS = "deletion_vectors"
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest_list"
    STATISTICS = "statistics"
    PARTITION_STATISTICS = "partition_statistics"
    OLD_METADATA = "old_metadata"
    VERSION_HINT = "version_hint"
    CURRENT_METADATA = "current_metadata"


class Phase(StrEnum):
    CONTENT = "content"
    MANIFESTS = "manifests"
    MANIFEST_LISTS = "manifest_lists"
    STATISTICS = "statistics"
    OLD_METADATA = "old_metadata"
    CURRENT_METADATA = "current_metadata"


ROOT = Phase.CURRENT_METADATA

PHASE_OF: dict[FileKind, Phase] = {
    FileKind.DATA: Phase.CONTENT,
    FileKind.POSITION_DELETES: Phase.CONTENT,
    FileKind.EQUALITY_DELETES: Phase.CONTENT,
    FileKind.DELETION_VECTORS: Phase.CONTENT,
    FileKind.MANIFEST: Phase.MANIFESTS,
    FileKind.MANIFEST_LIST: Phase.MANIFEST_LISTS,
    FileKind.STATISTICS: Phase.STATISTICS,
    FileKind.PARTITION_STATISTICS: Phase.STATISTICS,
    FileKind.OLD_METADATA: Phase.OLD_METADATA,
    FileKind.VERSION_HINT: Phase.OLD_METADATA,
    FileKind.CURRENT_METADATA: Phase.CURRENT_METADATA,
}
