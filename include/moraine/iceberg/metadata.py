"""The metadata of tables and views: its parts in any format version, and digests of them.

Two parts that mean the same have the same digest. The ids that a server assigns (of schemas, specs,
sort orders, view versions) are never part of one. Field ids are part of one only where a server
keeps them: in a commit, not in a create.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

Metadata = Mapping[str, Any]


def uuid_of(metadata: Metadata) -> str | None:
    uuid = metadata.get("table-uuid") or metadata.get("view-uuid")
    return str(uuid).lower() if uuid else None


def schemas_of(metadata: Metadata) -> list[Metadata]:
    return _listed(metadata, "schemas") or _single(metadata.get("schema"))


def specs_of(metadata: Metadata) -> list[Metadata]:
    """The oldest tables of format version 1 have one spec, and only its fields."""
    listed = _listed(metadata, "partition-specs")
    return listed or _single({"spec-id": 0, "fields": metadata.get("partition-spec") or []})


def sort_orders_of(metadata: Metadata) -> list[Metadata]:
    return _listed(metadata, "sort-orders") or _single({"order-id": 0, "fields": []})


def snapshots_of(metadata: Metadata) -> list[Metadata]:
    return _listed(metadata, "snapshots")


def statistics_of(metadata: Metadata, name: str = "statistics") -> list[Metadata]:
    return _listed(metadata, name)


def encryption_keys_of(metadata: Metadata) -> list[Metadata]:
    return _listed(metadata, "encryption-keys")


def versions_of(metadata: Metadata) -> list[Metadata]:
    return _listed(metadata, "versions")


def refs_of(metadata: Metadata) -> dict[str, Metadata]:
    """Metadata without refs still has a main branch: its current snapshot."""
    current = metadata.get("current-snapshot-id")
    main = {} if current in (None, -1) else {"main": {"snapshot-id": current, "type": "branch"}}
    return {**main, **(metadata.get("refs") or {})}


def _listed(metadata: Metadata, name: str) -> list[Metadata]:
    return list(metadata.get(name) or [])


def _single(item: Metadata | None) -> list[Metadata]:
    return [item] if item is not None else []


# --- Digests --------------------------------------------------------------------------------

DIGEST = "sha256:"


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return DIGEST + hashlib.sha256(text.encode()).hexdigest()


def trim(location: str | None) -> str | None:
    """Servers differ in whether they keep a location's trailing slash."""
    return location.rstrip("/") if location else location


# --- Schemas --------------------------------------------------------------------------------


def schema_digest(schema: Metadata, *, with_ids: bool) -> str:
    names = column_names(schema)
    identifiers = sorted(names.get(key, str(key)) for key in _ids(schema, "identifier-field-ids"))
    return digest([_fields_shape(schema.get("fields"), with_ids), identifiers])


def column_names(schema: Metadata) -> dict[Any, str]:
    """The full name of every field by its id, nested ones included."""
    return dict(_named_ids({**schema, "type": "struct"}, ""))


def _type_shape(kind: Any, with_ids: bool) -> Any:
    match kind:
        case str():
            return "".join(kind.split()).lower()  # `decimal(9,2)` is `decimal(9, 2)`
        case {"type": "struct"}:
            return ["struct", _fields_shape(kind.get("fields"), with_ids)]
        case {"type": "list"}:
            return ["list", *_nested_shape(kind, "element", with_ids)]
        case {"type": "map"}:
            key, value = (_nested_shape(kind, role, with_ids) for role in ("key", "value"))
            return ["map", *key, *value]
        case _:
            return kind


def _nested_shape(kind: Metadata, role: str, with_ids: bool) -> list[Any]:
    own_id = kind.get(f"{role}-id") if with_ids else None
    return [own_id, bool(kind.get(f"{role}-required")), _type_shape(kind.get(role), with_ids)]


def _fields_shape(fields: Any, with_ids: bool) -> list[Any]:
    return [_field_shape(field, with_ids) for field in _objects(fields)]


def _field_shape(field: Metadata, with_ids: bool) -> list[Any]:
    return [
        field.get("id") if with_ids else None,
        field.get("name"),
        bool(field.get("required")),
        _type_shape(field.get("type"), with_ids),
        field.get("doc") or None,
        field.get("initial-default"),
        field.get("write-default"),
    ]


def _named_ids(kind: Any, above: str) -> Iterator[tuple[Any, str]]:
    match kind:
        case {"type": "struct"}:
            parts = [
                (field.get("id"), field.get("name"), field.get("type"))
                for field in _objects(kind.get("fields"))
            ]
        case {"type": "list" | "map"}:
            roles = ("element",) if kind["type"] == "list" else ("key", "value")
            parts = [(kind.get(f"{role}-id"), role, kind.get(role)) for role in roles]
        case _:
            return
    for own_id, name, nested in parts:
        full_name = f"{above}{name}"
        if isinstance(own_id, int):
            yield own_id, full_name
        yield from _named_ids(nested, f"{full_name}.")


# --- Partition specs and sort orders --------------------------------------------------------


def spec_digest(spec: Metadata | None, names: Mapping[Any, str] | None = None) -> str:
    """`names` are those of the columns, for when ids may differ. No spec is an empty spec."""
    return digest(
        [
            [_sources(field, names), _word(field.get("transform")), field.get("name")]
            for field in _objects((spec or {}).get("fields"))
        ]
    )


def order_digest(order: Metadata | None, names: Mapping[Any, str] | None = None) -> str:
    """Likewise: no order is an unsorted one."""
    return digest(
        [
            [
                _sources(field, names),
                *(_word(field.get(part)) for part in ("transform", "direction", "null-order")),
            ]
            for field in _objects((order or {}).get("fields"))
        ]
    )


def _sources(field: Metadata, names: Mapping[Any, str] | None) -> list[Any]:
    """A transform of several columns has `source-ids`; one of a single column has either."""
    ids: list[Any] = [*_ids(field, "source-ids")] or [field.get("source-id")]
    return [names.get(key, key) if names and isinstance(key, int) else key for key in ids]


# --- Views ----------------------------------------------------------------------------------


def version_digest(version: Metadata) -> str:
    """What a view's version says. Servers write a `summary` and a time of their own."""
    representations = [
        {**item, "dialect": _word(item.get("dialect"))}
        for item in _objects(version.get("representations"))
    ]
    return digest(
        [
            sorted(digest(item) for item in representations),
            version.get("default-catalog"),
            version.get("default-namespace") or [],
        ]
    )


def _word(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _ids(value: Metadata, name: str) -> list[int]:
    ids = value.get(name)
    return [key for key in ids if isinstance(key, int)] if isinstance(ids, list) else []


def _objects(value: Any) -> list[Metadata]:
    """Only what can be understood is read: anything but an object is left out."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
