"""What a request is meant to change, in a form that is kept with its key: digests instead of
schemas, and no secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from moraine.gateway.bodies import JsonObject, MalformedBody, storable_properties
from moraine.gateway.commits import read_updates
from moraine.gateway.model import Intent
from moraine.iceberg.endpoints import Endpoint
from moraine.iceberg.metadata import (
    column_names,
    order_digest,
    schema_digest,
    spec_digest,
    trim,
    version_digest,
)
from moraine.iceberg.model import Identifier, ObjectKind

_Effect = dict[str, Any]
_Read = tuple[tuple[Identifier, ...], _Effect]
_UUID_REQUIREMENTS = {"assert-table-uuid", "assert-view-uuid"}
# Iceberg removes these from a new table's properties: they are fields of its metadata, or dropped.
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


def intent_of(endpoint: Endpoint, target: Identifier, body: Mapping[str, Any]) -> Intent:
    """`target` is what the request's path names; the body may name others.

    Raises nothing but `MalformedBody`, whatever JSON object a client sends.
    """
    try:
        targets, effect = _READERS[endpoint](target, JsonObject.of(body))
    except RecursionError:
        raise MalformedBody("body: is nested too deeply") from None
    return Intent(endpoint, targets, effect)


def _read_create(
    kind: ObjectKind, ask: Callable[[JsonObject], _Effect], target: Identifier, body: JsonObject
) -> _Read:
    return (Identifier(kind, target.namespace, body.text("name")),), ask(body)


def _read_create_namespace(_: Identifier, body: JsonObject) -> _Read:
    return (Identifier(ObjectKind.NAMESPACE, tuple(body.texts("namespace"))),), _ask_namespace(body)


def _read_update_namespace(target: Identifier, body: JsonObject) -> _Read:
    return (target,), {
        "updates": storable_properties(_properties(body, "updates")),
        "removals": body.texts("removals") if body.has("removals") else [],
    }


def _read_commit(target: Identifier, body: JsonObject) -> _Read:
    return (target,), _read_changes(target.kind, body)


def _read_transaction(_: Identifier, body: JsonObject) -> _Read:
    changes = body.objects("table-changes")
    if not changes:
        raise MalformedBody("table-changes: is empty")
    targets = tuple(_identified(ObjectKind.TABLE, change, "identifier") for change in changes)
    return targets, {"tables": [_read_changes(ObjectKind.TABLE, change) for change in changes]}


def _read_rename(kind: ObjectKind, _: Identifier, body: JsonObject) -> _Read:
    return tuple(_identified(kind, body, end) for end in ("source", "destination")), {}


def _read_drop(target: Identifier, _: JsonObject) -> _Read:
    return (target,), {}


def _ask_registration(body: JsonObject) -> _Effect:
    return {
        "metadata-location": body.text("metadata-location"),
        "overwrite": body.flag("overwrite"),
    }


def _identified(kind: ObjectKind, body: JsonObject, name: str) -> Identifier:
    identifier = body.object(name)
    return Identifier(kind, tuple(identifier.texts("namespace")), identifier.text("name"))


def _read_changes(kind: ObjectKind, body: JsonObject) -> _Effect:
    draft = read_updates(kind, body.objects("updates"))
    effect: _Effect = {"facts": draft.facts}
    if draft.unknown:
        effect["unknown"] = sorted(set(draft.unknown))
    for requirement in body.objects("requirements") if body.has("requirements") else []:
        match requirement.text("type"):
            case "assert-create":
                effect["create"] = True
            case name if name in _UUID_REQUIREMENTS:
                effect["uuid"] = requirement.text("uuid").lower()
    return effect


# --- Creates --------------------------------------------------------------------------------


def _ask_table(body: JsonObject) -> _Effect:
    if body.flag("stage-create"):
        return {"staged": True}
    schema = _checked(body, "schema")
    spec, order = (
        _checked(body, name) if body.has(name) else None
        for name in ("partition-spec", "write-order")
    )
    names = column_names(schema)
    asked = _properties(body)
    effect = {
        "schema": schema_digest(schema, with_ids=False),
        "spec": spec_digest(spec, names),
        "sort-order": order_digest(order, names),
        **_location(body),
        "properties": storable_properties(
            {name: value for name, value in asked.items() if name not in _RESERVED_PROPERTIES}
        ),
    }
    version = asked.get("format-version", "")
    if version.isdecimal() and len(version) < 5:
        effect["format-version"] = int(version)
    return effect


def _ask_view(body: JsonObject) -> _Effect:
    version = body.object("view-version")
    version.objects("representations")
    return {
        "schema": schema_digest(_checked(body, "schema"), with_ids=False),
        "version": version_digest(version.fields),
        **_location(body),
        "properties": storable_properties(_properties(body)),
    }


def _ask_namespace(body: JsonObject) -> _Effect:
    return {"properties": storable_properties(_properties(body))}


def _properties(body: JsonObject, name: str = "properties") -> dict[str, str]:
    return body.text_map(name) if body.has(name) else {}


def _location(body: JsonObject) -> _Effect:
    return {"location": trim(body.text("location"))} if body.has("location") else {}


def _checked(body: JsonObject, name: str) -> Mapping[str, Any]:
    part = body.object(name)
    part.objects("fields")
    return part.fields


_READERS: dict[Endpoint, Callable[[Identifier, JsonObject], _Read]] = {
    Endpoint.CREATE_NAMESPACE: _read_create_namespace,
    Endpoint.DROP_NAMESPACE: _read_drop,
    Endpoint.UPDATE_NAMESPACE: _read_update_namespace,
    Endpoint.CREATE_TABLE: partial(_read_create, ObjectKind.TABLE, _ask_table),
    Endpoint.REGISTER_TABLE: partial(_read_create, ObjectKind.TABLE, _ask_registration),
    Endpoint.COMMIT_TABLE: _read_commit,
    Endpoint.DROP_TABLE: _read_drop,
    Endpoint.RENAME_TABLE: partial(_read_rename, ObjectKind.TABLE),
    Endpoint.COMMIT_TRANSACTION: _read_transaction,
    Endpoint.CREATE_VIEW: partial(_read_create, ObjectKind.VIEW, _ask_view),
    Endpoint.REGISTER_VIEW: partial(_read_create, ObjectKind.VIEW, _ask_registration),
    Endpoint.REPLACE_VIEW: _read_commit,
    Endpoint.DROP_VIEW: _read_drop,
    Endpoint.RENAME_VIEW: partial(_read_rename, ObjectKind.VIEW),
}
