"""What a purge is asked with, and what of that is kept."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from moraine.tasks.operation import Parameters

# No control characters: PostgreSQL cannot store NUL, and the others have no place in a name.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=4096)]
Name = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=255)]

# Flags come as strings: the contract's map of properties holds nothing else.
Flag = Annotated[
    bool,
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["true", "false"]}]}),
]
# The subject of a live task is in a unique index, and PostgreSQL bounds the size of its entries.
_MOST_SUBJECT_BYTES = 2000


class _Model(BaseModel):
    """Unlisted fields are neither refused nor kept: nothing unseen reaches the ledger."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class TableIdentity(_Model):
    catalog_name: Name = Field(examples=["demo"])
    namespace_levels: list[Name] = Field(min_length=1, max_length=64, examples=[["shop"]])
    table_name: Name = Field(examples=["orders"])
    table_entity_id: Name | None = None


class PinnedMetadata(_Model):
    """The part of Iceberg's table metadata that tells one table from another."""

    location: Text | None = None
    table_uuid: Name | None = Field(None, alias="table-uuid")
    format_version: int | None = Field(None, alias="format-version", ge=1, le=1000)


class PurgeProperties(_Model):
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


class PurgeParameters(_Model, Parameters):
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
        if len(self.subject.encode()) > _MOST_SUBJECT_BYTES:
            raise ValueError(
                f"the table's whole name is longer than {_MOST_SUBJECT_BYTES} bytes in UTF-8"
            )
        return self

    @property
    def subject(self) -> str:
        table = self.table_identity
        names = [table.catalog_name, *table.namespace_levels, table.table_name]
        return ".".join(_quoted(name) for name in names)

    @property
    def exclusive(self) -> bool:
        return not self.properties.dry_run


def _quoted(name: str) -> str:
    """As Spark writes it, so that `a.b`.c and a.`b.c` are two tables and not one."""
    return f"`{name.replace('`', '``')}`" if {".", "`"} & set(name) else name
