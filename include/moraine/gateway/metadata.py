"""What the metadata of a table or view has in it, whichever format version wrote it down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Metadata = Mapping[str, Any]


def uuid_of(metadata: Metadata) -> str | None:
    uuid = metadata.get("table-uuid") or metadata.get("view-uuid")
    return str(uuid).lower() if uuid else None


def schemas(metadata: Metadata) -> list[Metadata]:
    return _listed(metadata, "schemas") or _single(metadata.get("schema"))


def specs(metadata: Metadata) -> list[Metadata]:
    """The first tables of format version 1 have one, and only its fields."""
    listed = _listed(metadata, "partition-specs")
    return listed or _single({"spec-id": 0, "fields": metadata.get("partition-spec") or []})


def sort_orders(metadata: Metadata) -> list[Metadata]:
    return _listed(metadata, "sort-orders") or _single({"order-id": 0, "fields": []})


def snapshots(metadata: Metadata) -> list[Metadata]:
    return _listed(metadata, "snapshots")


def statistics(metadata: Metadata, name: str = "statistics") -> list[Metadata]:
    return _listed(metadata, name)


def encryption_keys(metadata: Metadata) -> list[Metadata]:
    return _listed(metadata, "encryption-keys")


def versions(metadata: Metadata) -> list[Metadata]:
    return _listed(metadata, "versions")


def refs(metadata: Metadata) -> dict[str, Metadata]:
    """Metadata without refs has a main branch all the same: its current snapshot."""
    current = metadata.get("current-snapshot-id")
    main = {} if current in (None, -1) else {"main": {"snapshot-id": current, "type": "branch"}}
    return {**main, **(metadata.get("refs") or {})}


def _listed(metadata: Metadata, name: str) -> list[Metadata]:
    return list(metadata.get(name) or [])


def _single(item: Metadata | None) -> list[Metadata]:
    return [item] if item is not None else []
