"""The records of a purge, without I/O: what is asked for, which files go when, what is remembered.

Leaves go first and the root last. An interrupted purge can be planned again from the current
metadata file as long as that file is there. Catalogs read it to load the table, and so to vend the
credentials for everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Self, TypeVar
from uuid import UUID

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from moraine.access.model import QualifiedName
from moraine.tasks.model import Task
from moraine.tasks.operation import Parameters

T = TypeVar("T")

# --- Kinds and phases -----------------------------------------------------------------------


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

    @property
    def number(self) -> int:
        """Its place in this list. Spark compares numbers faster than strings."""
        return _NUMBERS[self]


_NUMBERS = {kind: number for number, kind in enumerate(FileKind)}


class Phase(StrEnum):
    CONTENT = "content"
    MANIFESTS = "manifests"
    MANIFEST_LISTS = "manifest_lists"
    STATISTICS = "statistics"
    OLD_METADATA = "old_metadata"
    CURRENT_METADATA = "current_metadata"


ROOT = Phase.CURRENT_METADATA
VERIFY = "verify"
"""The stage of slices that are looked for. The stages of slices to be deleted are the phases."""

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


# --- What is asked for ----------------------------------------------------------------------

# No control characters: PostgreSQL cannot store NUL, and the others have no place in a name.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=4096)]
Name = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=255)]

# Flags come as strings: the contract's map of properties holds nothing else.
Flag = Annotated[
    bool,
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["true", "false"]}]}),
]
# The subject of a live task is in a unique index, and PostgreSQL bounds the size of its entries.
_MAX_SUBJECT_BYTES = 2000


class _Record(BaseModel):
    """Unlisted fields are neither refused nor kept: nothing unseen reaches the ledger."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class TableIdentity(_Record):
    catalog_name: Name = Field(examples=["demo"])
    namespace_levels: list[Name] = Field(min_length=1, max_length=64, examples=[["shop"]])
    table_name: Name = Field(examples=["orders"])
    table_entity_id: Name | None = None


class PinnedMetadata(_Record):
    """The part of Iceberg's table metadata that distinguishes one table from another."""

    location: Text | None = None
    table_uuid: Name | None = Field(None, alias="table-uuid")
    format_version: int | None = Field(None, alias="format-version", ge=1, le=1000)


class PurgeProperties(_Record):
    """Instructions for the purge itself, as strings: `"dryRun": "true"`."""

    model_config = ConfigDict(extra="forbid")

    dry_run: Flag = Field(False, alias="dryRun", description="Plan, and delete nothing")
    skip_trash: Flag = Field(True, alias="skipTrash", description="There is no trash to skip")
    delete_marker_files: Flag = Field(
        False, alias="deleteMarkerFiles", description="Files that no metadata names are left"
    )
    drop_table: Flag = Field(
        False,
        alias="dropTable",
        description="Drop the table's entry in the catalog once its files are gone",
    )

    @field_validator("skip_trash")
    @classmethod
    def _no_trash(cls, skip: bool) -> bool:
        if not skip:
            raise ValueError("Moraine has no trash; leave skipTrash out or set it to true")
        return skip

    @field_validator("delete_marker_files")
    @classmethod
    def _no_markers(cls, delete: bool) -> bool:
        if delete:
            raise ValueError(
                "Moraine deletes only files that the table's metadata names, never markers"
            )
        return delete


class PurgeParameters(_Record, Parameters):
    """`operation_parameters` of a TABLE_PURGE.

    `config` may hold credentials. It is accepted, as the Delegation Service's contract has it,
    and dropped here: Moraine asks the catalog for its own.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "table_identity": {
                        "table_entity_id": "polaris-entity-id-of-orders",
                        "catalog_name": "demo",
                        "namespace_levels": ["shop"],
                        "table_name": "orders",
                    },
                    "properties": {"skipTrash": "true", "deleteMarkerFiles": "false"},
                }
            ]
        }
    )

    table_identity: TableIdentity
    metadata_location: Text | None = None
    metadata: PinnedMetadata | None = None
    properties: PurgeProperties = PurgeProperties()
    tombstone: SkipJsonSchema[bool | None] = None
    """Set by the gateway: purge only while it hides the table from its clients."""
    config: dict[str, Any] | None = Field(
        None, exclude=True, description="Accepted and dropped: credentials come from loadTable"
    )

    @field_validator("config", mode="after")
    @classmethod
    def _drop(cls, _given: dict[str, Any] | None) -> None:
        return None

    @field_validator("properties", mode="before")
    @classmethod
    def _known_properties(cls, given: Any) -> Any:
        known = {field.alias for field in PurgeProperties.model_fields.values()}
        if given is None:
            return {}
        if isinstance(given, dict) and (unknown := sorted(set(given) - known)):
            raise ValueError(
                f"unknown properties {', '.join(str(name)[:100] for name in unknown)}; "
                f"known are {', '.join(sorted(str(name) for name in known))}"
            )
        return given

    @model_validator(mode="after")
    def _bounded_subject(self) -> Self:
        if len(self.subject.encode()) > _MAX_SUBJECT_BYTES:
            raise ValueError(
                f"the table's whole name is longer than {_MAX_SUBJECT_BYTES} bytes in UTF-8"
            )
        return self

    @property
    def table(self) -> QualifiedName:
        named = self.table_identity
        return QualifiedName(named.catalog_name, tuple(named.namespace_levels), named.table_name)

    @property
    def exclusive(self) -> bool:
        return not self.properties.dry_run

    def is_met_by(self, other: Parameters) -> bool:
        """Whether the live purge does what is asked for here, to the table that is meant."""
        if not isinstance(other, PurgeParameters) or self.properties != other.properties:
            return False
        return self.tombstone == other.tombstone and self._pins.items() <= other._pins.items()

    def means(self, other: PurgeParameters, pinned: PinnedTable) -> bool:
        """Whether another purge, and the table that it pinned, is about the table meant here."""
        table = {"metadata_location": pinned.metadata_location, "uuid": pinned.uuid}
        return self._pins.items() <= {**other._pins, **table}.items()

    @property
    def _pins(self) -> dict[str, str]:
        """What distinguishes the table that is meant from another of its name."""
        pins = {
            "entity_id": self.table_identity.table_entity_id,
            "metadata_location": self.metadata_location,
            "uuid": self.metadata and self.metadata.table_uuid,
            "location": self.metadata and self.metadata.location,
        }
        return {name: value.rstrip("/") for name, value in pins.items() if value}


def parameters_of(task: Task) -> PurgeParameters:
    return PurgeParameters.model_validate(task.task_payload["operation_parameters"])


def form_of(task: Task) -> dict[str, Any]:
    """The fields of the Dag's form, for a run that names the task. They only show what it is about.

    A payload that this version cannot read must not stop a sweep: Airflow refuses the empty form.
    """
    try:
        asked = parameters_of(task)
    except (LookupError, ValidationError):
        return {}
    table = asked.table_identity
    return {
        "catalog": table.catalog_name,
        "namespace": ".".join(table.namespace_levels),
        "table": table.table_name,
        "dry_run": asked.properties.dry_run,
    }


# --- The checkpoint -------------------------------------------------------------------------


class _State(_Record):
    def to_json(self) -> dict[str, Any]:
        """Fields that were not set are left out, so that this can be a patch."""
        return self.model_dump(mode="json", exclude_unset=True)


class PinnedTable(_State):
    """The table as it was when the task was acquired. Only that version is purged."""

    uuid: str
    metadata_location: str
    location: str = ""
    roots: list[str] = []


class FileTotals(_State):
    files: int
    bytes: int


class InventorySummary(_State):
    """The inventory in numbers, and where it is."""

    location: str
    files: int
    bytes: int
    kinds: dict[FileKind, FileTotals]
    phases: dict[Phase, int]
    """The number of files of each phase that has any."""
    seconds: float
    digest: str = ""
    """Of the list of its slices. Inventories of earlier versions have none."""

    @classmethod
    def of(
        cls, location: str, kinds: Mapping[FileKind, FileTotals], seconds: float, digest: str
    ) -> InventorySummary:
        files = dict.fromkeys(Phase, 0)
        for kind, totals in kinds.items():
            files[PHASE_OF[kind]] += totals.files
        return cls(
            location=location,
            files=sum(totals.files for totals in kinds.values()),
            bytes=sum(totals.bytes for totals in kinds.values()),
            kinds=dict(kinds),
            phases={phase: count for phase, count in files.items() if count},
            seconds=round(seconds, 3),
            digest=digest,
        )


class PhaseState(_State):
    done: bool = False
    seconds: float | None = None


class RootState(_State):
    """The current metadata file. This state is written before its delete, so if it is there and
    the file is not, the purge has deleted the file."""

    deleted: bool = False
    missing: bool = False
    done: bool = False


class ListedFiles(_State):
    """How many files there are, and the paths of the first."""

    files: int
    paths: list[str]
    reason: str | None = None


class Findings(_State):
    """What the checks found, for the task's result."""

    checks: dict[str, str] = {}
    skipped: ListedFiles | None = None
    missing_metadata: ListedFiles | None = None


class Verification(_State):
    attempt: int


class EarlierPurge(_State):
    """The task that deleted the files before, and its result."""

    task_id: UUID
    result: dict[str, Any]


class Checkpoint(_State):
    """What the attempts at a purge have done: the state from which the next attempt goes on.

    Each write is a patch: it has the fields that change, and replaces them as a whole.
    """

    table: PinnedTable | None = None
    findings: Findings = Findings()
    inventory: InventorySummary | None = None
    phases: dict[Phase, PhaseState] = {}
    deleting: bool = False
    """Written before the first delete, and never taken back: without it, no file is gone."""
    root: RootState | None = None
    verified: Verification | None = None
    seconds: dict[str, float] = {}
    """How long each step took, in the attempt that ended it."""
    earlier: EarlierPurge | None = None
    """There is nothing to do: this purge deleted the files before."""

    @classmethod
    def of(cls, task: Task) -> Checkpoint:
        return cls.model_validate(task.checkpoint)

    @property
    def pinned(self) -> PinnedTable:
        """The table, for steps that come after it was pinned."""
        return _present(self.table, "table")

    @property
    def planned(self) -> InventorySummary:
        """The inventory, for steps that come after the plan."""
        return _present(self.inventory, "inventory")

    @property
    def root_is_done(self) -> bool:
        return self.root is not None and self.root.done

    @property
    def unfinished_phases(self) -> list[Phase]:
        """In their order. The root is no part of the delete step."""
        done = {phase for phase, state in self.phases.items() if state.done}
        return [p for p in Phase if p in self.planned.phases and p is not ROOT and p not in done]


def _present(value: T | None, name: str) -> T:
    if value is None:
        raise LookupError(f"the checkpoint has no {name} yet")
    return value
