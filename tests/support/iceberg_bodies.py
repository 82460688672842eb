"""Bodies of the Iceberg REST protocol: what is asked for, and what a catalog loads."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from moraine.iceberg.model import Identifier, ObjectKind

TABLE = Identifier(ObjectKind.TABLE, ("sales",), "orders")
VIEW = Identifier(ObjectKind.VIEW, ("sales",), "totals")
NAMESPACE = Identifier(ObjectKind.NAMESPACE, ("sales",))
ROOT = Identifier(ObjectKind.NAMESPACE, ())

TABLE_UUID = "0198a5c0-0000-7000-8000-000000000001"
VIEW_UUID = "0198a5c0-0000-7000-8000-000000000002"
OTHER_UUID = "0198a5c0-0000-7000-8000-00000000000f"

ID_FIELD = {"id": 1, "name": "id", "type": "long", "required": True}
DAY_FIELD = {"id": 2, "name": "day", "type": "date", "required": False}
NOTE_FIELD = {"id": 3, "name": "note", "type": "string", "required": False, "doc": "free text"}

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [ID_FIELD, DAY_FIELD]}
WIDER_SCHEMA = {"type": "struct", "schema-id": 1, "fields": [ID_FIELD, DAY_FIELD, NOTE_FIELD]}
DAY_SPEC = {
    "spec-id": 1,
    "fields": [{"source-id": 2, "field-id": 1000, "name": "day", "transform": "identity"}],
}
ID_ORDER = {
    "order-id": 1,
    "fields": [
        {
            "source-id": 1,
            "transform": "identity",
            "direction": "asc",
            "null-order": "nulls-first",
        }
    ],
}

_TABLE_METADATA: dict[str, Any] = {
    "format-version": 2,
    "table-uuid": TABLE_UUID,
    "location": "s3://lake/sales/orders",
    "last-sequence-number": 1,
    "last-updated-ms": 1_700_000_000_000,
    "last-column-id": 2,
    "schemas": [SCHEMA],
    "current-schema-id": 0,
    "partition-specs": [{"spec-id": 0, "fields": []}],
    "default-spec-id": 0,
    "last-partition-id": 999,
    "sort-orders": [{"order-id": 0, "fields": []}],
    "default-sort-order-id": 0,
    "properties": {"owner": "ana"},
    "current-snapshot-id": 11,
    "refs": {"main": {"snapshot-id": 11, "type": "branch"}},
    "snapshots": [
        {
            "snapshot-id": 11,
            "sequence-number": 1,
            "timestamp-ms": 1_700_000_000_000,
            "manifest-list": "s3://lake/sales/orders/metadata/snap-11.avro",
            "summary": {"operation": "append"},
            "schema-id": 0,
        }
    ],
    "statistics": [],
    "partition-statistics": [],
    "snapshot-log": [],
    "metadata-log": [],
}

VERSION = {
    "version-id": 1,
    "schema-id": 0,
    "timestamp-ms": 1_700_000_000_000,
    "summary": {"engine-name": "spark"},
    "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
    "default-namespace": ["sales"],
}
NEXT_VERSION = {
    **VERSION,
    "version-id": 2,
    "timestamp-ms": 1_700_000_000_500,
    "representations": [{"type": "sql", "sql": "SELECT 2", "dialect": "spark"}],
}

_VIEW_METADATA: dict[str, Any] = {
    "view-uuid": VIEW_UUID,
    "format-version": 1,
    "location": "s3://lake/sales/totals",
    "schemas": [SCHEMA],
    "current-version-id": 1,
    "versions": [VERSION],
    "version-log": [{"version-id": 1, "timestamp-ms": 1_700_000_000_000}],
    "properties": {"owner": "ana"},
}

FILE = "s3://lake/m/1.json"
CREATE_SIMPLE = {"name": "orders", "schema": SCHEMA}
ASKED_VIEW = {
    "name": "totals",
    "schema": SCHEMA,
    "view-version": VERSION,
    "properties": {"owner": "ana"},
}
# What is there already.
KEEP_OWNER = {"action": "set-properties", "updates": {"owner": "ana"}}


def table_metadata(**changes: Any) -> dict[str, Any]:
    """Names with underscores stand for those with hyphens."""
    return _changed(_TABLE_METADATA, changes)


def view_metadata(**changes: Any) -> dict[str, Any]:
    return _changed(_VIEW_METADATA, changes)


def loaded(metadata: dict[str, Any], location: str = "s3://lake/m/2.json") -> dict[str, Any]:
    return {"metadata-location": location, "metadata": metadata, "config": {"region": "eu-1"}}


def _changed(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    renamed = {name.replace("_", "-"): value for name, value in changes.items()}
    return deepcopy({**metadata, **renamed})
