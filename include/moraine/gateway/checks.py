"""Whether the catalog shows the change of a request that got no answer, and what to answer if so.

A wrong "applied" loses a change; a wrong "not applied" is caught by the catalog's own checks when
the request is executed again. So a change counts as applied only if it is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from moraine.gateway.bodies import storable_properties
from moraine.gateway.commits import all_hold, find_proofs
from moraine.gateway.model import Answer, Intent, State, Verdict
from moraine.iceberg.endpoints import Endpoint
from moraine.iceberg.metadata import (
    Metadata,
    column_names,
    order_digest,
    schema_digest,
    schemas_of,
    sort_orders_of,
    spec_digest,
    specs_of,
    trim,
    uuid_of,
    version_digest,
    versions_of,
)
from moraine.iceberg.model import VENDED_FIELDS

_Loaded = Mapping[str, Any]
_Effect = Mapping[str, Any]


def check(intent: Intent, state: State) -> Verdict:
    """What the current `state` of all targets says about an attempt to execute `intent`."""
    return _CHECKS[intent.endpoint](intent, state)


def answer_of(intent: Intent, state: State) -> Answer:
    """The answer that the catalog would have given to an intent that `check` calls applied."""
    return _ANSWERS[intent.endpoint](intent, state)


def _only(intent: Intent, state: State) -> _Loaded | None:
    return state[intent.targets[0]]


def _uuid(loaded: _Loaded) -> str | None:
    return uuid_of(loaded.get("metadata") or {})


def _is_the_same(loaded: _Loaded, before: Mapping[str, Any]) -> bool:
    """True if the loaded object has the uuid recorded before the request, or none was recorded."""
    known = before.get("uuid")
    return not known or _uuid(loaded) in (None, str(known).lower())


# --- Creates and registrations --------------------------------------------------------------
#
# Servers assign all ids of a new table themselves, so names are compared instead. The object may
# have been changed since: its first state counts as much as its current one.


def _check_create(
    is_such: Callable[[_Effect, _Loaded], bool], intent: Intent, state: State
) -> Verdict:
    loaded = _only(intent, state)
    # A name that was taken before was not created by this request: the catalog refuses it.
    if intent.effect.get("staged") or intent.before.get("exists") or loaded is None:
        return Verdict.NOT_APPLIED
    return Verdict.APPLIED if is_such(intent.effect, loaded) else Verdict.INCOMPATIBLE


def _is_such_table(effect: _Effect, metadata: Metadata) -> bool:
    schemas = _first_and_current(schemas_of(metadata), "schema-id", metadata, "current-schema-id")
    specs = _first_and_current(specs_of(metadata), "spec-id", metadata, "default-spec-id")
    orders = _first_and_current(
        sort_orders_of(metadata), "order-id", metadata, "default-sort-order-id"
    )
    return (
        effect["schema"] in {schema_digest(schema, with_ids=False) for schema in schemas}
        and effect["spec"] in _named(spec_digest, specs, schemas)
        and effect["sort-order"] in _named(order_digest, orders, schemas)
        and metadata.get("format-version", 1) >= effect.get("format-version", 1)
        and _is_located(effect, metadata)
        and _has_properties(effect, metadata)
    )


def _is_such_view(effect: _Effect, metadata: Metadata) -> bool:
    schemas = {schema.get("schema-id"): schema for schema in schemas_of(metadata)}
    versions = _first_and_current(
        versions_of(metadata), "version-id", metadata, "current-version-id"
    )
    return (
        any(
            effect["version"] == version_digest(version)
            and effect["schema"]
            == schema_digest(schemas.get(version.get("schema-id"), {}), with_ids=False)
            for version in versions
        )
        and _is_located(effect, metadata)
        and _has_properties(effect, metadata)
    )


def _has_properties(effect: _Effect, holder: Mapping[str, Any]) -> bool:
    """Whether a table, view or namespace has those asked for. Servers add their own."""
    asked: Mapping[str, Any] = effect["properties"]
    return asked.items() <= storable_properties(holder.get("properties")).items()


def _is_located(effect: _Effect, metadata: Metadata) -> bool:
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
    """A column may have been renamed since, so either schema may have the name asked for."""
    return {content(item, column_names(schema)) for item, schema in product(items, schemas)}


def _check_registration(intent: Intent, state: State) -> Verdict:
    loaded, overwrite = _only(intent, state), intent.effect["overwrite"]
    if loaded is None or (intent.before.get("exists") and not overwrite):
        return Verdict.NOT_APPLIED
    if intent.effect["metadata-location"] in _metadata_files(loaded):
        return Verdict.APPLIED
    return Verdict.NOT_APPLIED if overwrite else Verdict.INCOMPATIBLE


def _metadata_files(loaded: _Loaded) -> set[Any]:
    """All that the table still lists; a view lists only the current one."""
    log = loaded["metadata"].get("metadata-log") or []
    return {loaded.get("metadata-location"), *(entry.get("metadata-file") for entry in log)}


# --- Commits --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Finding:
    verdict: Verdict
    is_certain: bool = True
    """False if the same state could also have come about without this commit."""


def _examine_commit(effect: _Effect, loaded: _Loaded | None) -> _Finding:
    if loaded is None:
        return _Finding(Verdict.NOT_APPLIED)
    metadata, facts = loaded["metadata"], effect["facts"]
    is_known, is_create = not effect.get("unknown"), bool(effect.get("create"))
    if _is_another(effect, metadata):
        return _Finding(Verdict.INCOMPATIBLE)
    if not facts and is_known:
        return _Finding(Verdict.NOT_APPLIED, is_certain=False)

    proofs = find_proofs(facts, metadata)
    if is_create and "uuid" in facts:
        # Generated for this table alone, when it was staged.
        proofs = [*proofs, uuid_of(metadata) == _assigned_uuid(effect)]
    if any(proofs):
        return _Finding(Verdict.APPLIED if all(proofs) else Verdict.INCOMPATIBLE)
    if is_known and all_hold(facts, metadata):
        return _Finding(Verdict.APPLIED, is_certain=False)
    return _Finding(Verdict.INCOMPATIBLE if is_create else Verdict.NOT_APPLIED)


def _is_another(effect: _Effect, metadata: Metadata) -> bool:
    """Whether the table is neither the one required nor one whose uuid this commit assigns."""
    required = effect.get("uuid")
    allowed = (required, _assigned_uuid(effect), None)
    return required is not None and uuid_of(metadata) not in allowed


def _assigned_uuid(effect: _Effect) -> str | None:
    return next(iter(effect["facts"].get("uuid", {}).values()), None)


def _check_commit(intent: Intent, state: State) -> Verdict:
    return _examine_commit(intent.effect, _only(intent, state)).verdict


def _check_transaction(intent: Intent, state: State) -> Verdict:
    findings = [
        _examine_commit(effect, state[target])
        for target, effect in zip(intent.targets, intent.effect["tables"], strict=True)
    ]
    certain = {finding.verdict for finding in findings if finding.is_certain}
    if not certain:
        seen = any(finding.verdict is Verdict.APPLIED for finding in findings)
        return Verdict.APPLIED if seen else Verdict.NOT_APPLIED
    return certain.pop() if len(certain) == 1 else Verdict.INCOMPATIBLE


# --- Drops, renames, properties -------------------------------------------------------------


def _check_drop(intent: Intent, state: State) -> Verdict:
    loaded = _only(intent, state)
    # Another object of that name may have been created after the drop.
    is_gone = loaded is None or not _is_the_same(loaded, intent.before)
    was_there = intent.before.get("exists") is not False
    return Verdict.APPLIED if is_gone and was_there else Verdict.NOT_APPLIED


def _check_rename(intent: Intent, state: State) -> Verdict:
    source, destination = (state[target] for target in intent.targets)
    if intent.before.get("exists") is False:
        return Verdict.NOT_APPLIED
    if source is not None and _is_the_same(source, intent.before):
        return Verdict.NOT_APPLIED
    if destination is not None and _is_the_same(destination, intent.before):
        return Verdict.APPLIED
    return Verdict.INCOMPATIBLE if intent.before.get("exists") else Verdict.NOT_APPLIED


def _check_properties(intent: Intent, state: State) -> Verdict:
    loaded = _only(intent, state)
    if loaded is None:
        return Verdict.NOT_APPLIED
    present = storable_properties(loaded.get("properties"))
    is_updated = intent.effect["updates"].items() <= present.items()
    is_removed = not present.keys() & set(intent.effect["removals"])
    return Verdict.APPLIED if is_updated and is_removed else Verdict.NOT_APPLIED


_CHECKS: dict[Endpoint, Callable[[Intent, State], Verdict]] = {
    Endpoint.CREATE_NAMESPACE: partial(_check_create, _has_properties),
    Endpoint.DROP_NAMESPACE: _check_drop,
    Endpoint.UPDATE_NAMESPACE: _check_properties,
    Endpoint.CREATE_TABLE: partial(
        _check_create, lambda effect, loaded: _is_such_table(effect, loaded["metadata"])
    ),
    Endpoint.REGISTER_TABLE: _check_registration,
    Endpoint.COMMIT_TABLE: _check_commit,
    Endpoint.DROP_TABLE: _check_drop,
    Endpoint.RENAME_TABLE: _check_rename,
    Endpoint.COMMIT_TRANSACTION: _check_transaction,
    Endpoint.CREATE_VIEW: partial(
        _check_create, lambda effect, loaded: _is_such_view(effect, loaded["metadata"])
    ),
    Endpoint.REGISTER_VIEW: _check_registration,
    Endpoint.REPLACE_VIEW: _check_commit,
    Endpoint.DROP_VIEW: _check_drop,
    Endpoint.RENAME_VIEW: _check_rename,
}


# --- Answers --------------------------------------------------------------------------------

_COMMITTED = ("metadata-location", "metadata")
_LOADED_VIEW = (*_COMMITTED, "config")
_LOADED_TABLE = (*_COMMITTED, *VENDED_FIELDS)


def _answer_with(names: tuple[str, ...], intent: Intent, state: State) -> Answer:
    loaded = _present(intent, state)
    return Answer(200, {name: loaded[name] for name in names if name in loaded})


def _answer_namespace(intent: Intent, state: State) -> Answer:
    properties = _present(intent, state).get("properties") or {}
    return Answer(
        200, {"namespace": list(intent.targets[0].namespace), "properties": dict(properties)}
    )


def _answer_properties(intent: Intent, _: State) -> Answer:
    updated, removed = list(intent.effect["updates"]), list(intent.effect["removals"])
    return Answer(200, {"updated": updated, "removed": removed, "missing": []})


def _answer_nothing(_: Intent, __: State) -> Answer:
    return Answer(204)


def _present(intent: Intent, state: State) -> _Loaded:
    loaded = _only(intent, state)
    if loaded is None:
        raise LookupError(f"{intent.targets[0]} does not exist: there is no answer to make")
    return loaded


_ANSWERS: dict[Endpoint, Callable[[Intent, State], Answer]] = {
    Endpoint.CREATE_NAMESPACE: _answer_namespace,
    Endpoint.DROP_NAMESPACE: _answer_nothing,
    Endpoint.UPDATE_NAMESPACE: _answer_properties,
    Endpoint.CREATE_TABLE: partial(_answer_with, _LOADED_TABLE),
    Endpoint.REGISTER_TABLE: partial(_answer_with, _LOADED_TABLE),
    Endpoint.COMMIT_TABLE: partial(_answer_with, _COMMITTED),
    Endpoint.DROP_TABLE: _answer_nothing,
    Endpoint.RENAME_TABLE: _answer_nothing,
    Endpoint.COMMIT_TRANSACTION: _answer_nothing,
    Endpoint.CREATE_VIEW: partial(_answer_with, _LOADED_VIEW),
    Endpoint.REGISTER_VIEW: partial(_answer_with, _LOADED_VIEW),
    Endpoint.REPLACE_VIEW: partial(_answer_with, _LOADED_VIEW),
    Endpoint.DROP_VIEW: _answer_nothing,
    Endpoint.RENAME_VIEW: _answer_nothing,
}
