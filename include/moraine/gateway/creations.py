"""What a create asks for, and whether what is there could have come of it.

Servers assign all ids of a new table anew, so names stand for them. What was created may have been
changed since: what it was at first counts as much as what it is now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from moraine.gateway import metadata as of
from moraine.gateway.bodies import Body
from moraine.gateway.metadata import Metadata
from moraine.gateway.shapes import (
    column_names,
    fingerprints,
    order_digest,
    schema_digest,
    spec_digest,
    trim,
    version_digest,
)

Effect = Mapping[str, Any]

# Iceberg takes these out of a new table's properties: they are fields of its metadata, or nothing.
_RESERVED_PROPERTIES = {
    "format-version",
    "uuid",
    "snapshot-count",
    "current-snapshot-id",
    "current-snapshot-summary",
    "current-snapshot-timestamp-ms",
    "current-schema",
    "default-partition-spec",
    "default-sort-order",
}


# --- What is asked for ----------------------------------------------------------------------


def ask_table(body: Body) -> dict[str, Any]:
    if body.flag("stage-create"):
        return {"staged": True}
    schema = _checked(body, "schema")
    spec, order = (
        _checked(body, name) if body.has(name) else None
        for name in ("partition-spec", "write-order")
    )
    names = column_names(schema)
    asked = properties_of(body)
    effect = {
        "schema": schema_digest(schema, with_ids=False),
        "spec": spec_digest(spec, names),
        "sort-order": order_digest(order, names),
        **_location(body),
        "properties": fingerprints(
            {name: value for name, value in asked.items() if name not in _RESERVED_PROPERTIES}
        ),
    }
    version = asked.get("format-version", "")
    if version.isdecimal() and len(version) < 5:
        effect["format-version"] = int(version)
    return effect


def ask_view(body: Body) -> dict[str, Any]:
    version = body.object("view-version")
    version.objects("representations")
    return {
        "schema": schema_digest(_checked(body, "schema"), with_ids=False),
        "version": version_digest(version.fields),
        **_location(body),
        "properties": fingerprints(properties_of(body)),
    }


def ask_namespace(body: Body) -> dict[str, Any]:
    return {"properties": fingerprints(properties_of(body))}


def properties_of(body: Body, name: str = "properties") -> dict[str, str]:
    return body.text_map(name) if body.has(name) else {}


def _location(body: Body) -> dict[str, Any]:
    return {"location": trim(body.text("location"))} if body.has("location") else {}


def _checked(body: Body, name: str) -> Mapping[str, Any]:
    part = body.object(name)
    part.objects("fields")
    return part.fields


# --- What is there --------------------------------------------------------------------------


def is_such_table(effect: Effect, metadata: Metadata) -> bool:
    schemas = _first_and_current(of.schemas(metadata), "schema-id", metadata, "current-schema-id")
    specs = _first_and_current(of.specs(metadata), "spec-id", metadata, "default-spec-id")
    orders = _first_and_current(
        of.sort_orders(metadata), "order-id", metadata, "default-sort-order-id"
    )
    return (
        effect["schema"] in {schema_digest(schema, with_ids=False) for schema in schemas}
        and effect["spec"] in _named(spec_digest, specs, schemas)
        and effect["sort-order"] in _named(order_digest, orders, schemas)
        and metadata.get("format-version", 1) >= effect.get("format-version", 1)
        and _is_located(effect, metadata)
        and has_properties(effect, metadata)
    )


def is_such_view(effect: Effect, metadata: Metadata) -> bool:
    schemas = {schema.get("schema-id"): schema for schema in of.schemas(metadata)}
    versions = _first_and_current(
        of.versions(metadata), "version-id", metadata, "current-version-id"
    )
    return (
        any(
            effect["version"] == version_digest(version)
            and effect["schema"]
            == schema_digest(schemas.get(version.get("schema-id"), {}), with_ids=False)
            for version in versions
        )
        and _is_located(effect, metadata)
        and has_properties(effect, metadata)
    )


def has_properties(effect: Effect, holder: Mapping[str, Any]) -> bool:
    """Of a table, view or namespace. Servers add properties of their own."""
    asked: Mapping[str, Any] = effect["properties"]
    return asked.items() <= fingerprints(holder.get("properties")).items()


def _is_located(effect: Effect, metadata: Metadata) -> bool:
    return "location" not in effect or effect["location"] == trim(metadata.get("location"))


def _first_and_current(
    items: list[Metadata], id_name: str, metadata: Metadata, current_name: str
) -> list[Metadata]:
    first = min((item.get(id_name, 0) for item in items), default=None)
    return [item for item in items if item.get(id_name, 0) in (first, metadata.get(current_name))]


def _named(
    content: Callable[[Metadata, Mapping[Any, str]], str],
    items: list[Metadata],
    schemas: list[Metadata],
) -> set[str]:
    """A column may have been renamed since, so that either schema may have its name."""
    return {content(item, column_names(schema)) for item, schema in product(items, schemas)}
