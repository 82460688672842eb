"""Updates of the Iceberg REST protocol, as the bodies of commits name them."""

from __future__ import annotations

from typing import Any

from support.iceberg_bodies import DAY_SPEC, ID_ORDER, NEXT_VERSION, VERSION, WIDER_SCHEMA

Json = dict[str, Any]


def snapshot(snapshot_id: int) -> Json:
    return {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": 11,
        "sequence-number": 2,
        "timestamp-ms": 1_700_000_100_000,
        "manifest-list": f"s3://lake/sales/orders/metadata/snap-{snapshot_id}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }


def statistics(path: str = "s3://lake/a.puffin") -> Json:
    return {
        "snapshot-id": 11,
        "statistics-path": path,
        "file-size-in-bytes": 10,
        "file-footer-size-in-bytes": 2,
        "blob-metadata": [],
    }


ADD_WIDER = {"action": "add-schema", "schema": WIDER_SCHEMA}
ADD_SPEC = {"action": "add-spec", "spec": DAY_SPEC}
ADD_ORDER = {"action": "add-sort-order", "sort-order": ID_ORDER}
ADD_SNAPSHOT = {"action": "add-snapshot", "snapshot": snapshot(12)}
TAG = {"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 11}
SET_STATISTICS = {"action": "set-statistics", "snapshot-id": 11, "statistics": statistics()}
ADD_VERSION = {"action": "add-view-version", "view-version": NEXT_VERSION}
BOTH_VERSIONS = [VERSION, NEXT_VERSION]
