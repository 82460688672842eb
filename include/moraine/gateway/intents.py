"""What a request is meant to bring about, written down small: digests instead of schemas, and no
secrets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from moraine.gateway.bodies import Body
from moraine.gateway.bodies import MalformedBody as MalformedBody
from moraine.gateway.creations import ask_namespace, ask_table, ask_view, properties_of
from moraine.gateway.effects import read_updates
from moraine.gateway.model import Intent, Kind, Operation, Target
from moraine.gateway.shapes import fingerprints

_Effect = dict[str, Any]
_UUID_REQUIREMENTS = {"assert-table-uuid", "assert-view-uuid"}


def intent_of(operation: Operation, target: Target, body: Mapping[str, Any]) -> Intent:
    """`target` is what the request's path names; the body may name others.

    Raises `MalformedBody`, and nothing else, for whatever JSON object a client may send.
    """
    try:
        targets, effect = _READERS[operation](target, Body.of(body))
    except RecursionError:
        raise MalformedBody("body: is nested too deeply") from None
    return Intent(operation, targets, effect)


def _read_create(
    kind: Kind, ask: Callable[[Body], _Effect], target: Target, body: Body
) -> tuple[tuple[Target, ...], _Effect]:
    return (Target(kind, target.namespace, body.text("name")),), ask(body)


def _read_create_namespace(_: Target, body: Body) -> tuple[tuple[Target, ...], _Effect]:
    return (Target(Kind.NAMESPACE, tuple(body.texts("namespace"))),), ask_namespace(body)


def _read_update_namespace(target: Target, body: Body) -> tuple[tuple[Target, ...], _Effect]:
    return (target,), {
        "updates": fingerprints(properties_of(body, "updates")),
        "removals": body.texts("removals") if body.has("removals") else [],
    }


def _read_commit(target: Target, body: Body) -> tuple[tuple[Target, ...], _Effect]:
    return (target,), _read_changes(target.kind, body)


def _read_transaction(_: Target, body: Body) -> tuple[tuple[Target, ...], _Effect]:
    changes = body.objects("table-changes")
    targets = tuple(_identified(Kind.TABLE, change, "identifier") for change in changes)
    return targets, {"tables": [_read_changes(Kind.TABLE, change) for change in changes]}


def _read_rename(kind: Kind, _: Target, body: Body) -> tuple[tuple[Target, ...], _Effect]:
    return tuple(_identified(kind, body, end) for end in ("source", "destination")), {}


def _read_drop(target: Target, _: Body) -> tuple[tuple[Target, ...], _Effect]:
    return (target,), {}


def _ask_registration(body: Body) -> _Effect:
    return {
        "metadata-location": body.text("metadata-location"),
        "overwrite": body.flag("overwrite"),
    }


def _identified(kind: Kind, body: Body, name: str) -> Target:
    identifier = body.object(name)
    return Target(kind, tuple(identifier.texts("namespace")), identifier.text("name"))


def _read_changes(kind: Kind, body: Body) -> _Effect:
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


_READERS: dict[Operation, Callable[[Target, Body], tuple[tuple[Target, ...], _Effect]]] = {
    Operation.CREATE_NAMESPACE: _read_create_namespace,
    Operation.DROP_NAMESPACE: _read_drop,
    Operation.UPDATE_NAMESPACE: _read_update_namespace,
    Operation.CREATE_TABLE: partial(_read_create, Kind.TABLE, ask_table),
    Operation.REGISTER_TABLE: partial(_read_create, Kind.TABLE, _ask_registration),
    Operation.COMMIT_TABLE: _read_commit,
    Operation.DROP_TABLE: _read_drop,
    Operation.RENAME_TABLE: partial(_read_rename, Kind.TABLE),
    Operation.COMMIT_TRANSACTION: _read_transaction,
    Operation.CREATE_VIEW: partial(_read_create, Kind.VIEW, ask_view),
    Operation.REGISTER_VIEW: partial(_read_create, Kind.VIEW, _ask_registration),
    Operation.REPLACE_VIEW: _read_commit,
    Operation.DROP_VIEW: _read_drop,
    Operation.RENAME_VIEW: partial(_read_rename, Kind.VIEW),
}
