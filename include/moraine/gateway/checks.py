"""Whether a change is in the catalog whose request got no answer, and what to answer if it is.

A wrong "applied" loses a change, a wrong "not applied" is caught by the catalog's own checks when
the request is executed again. So only what is seen counts as applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from moraine.gateway.creations import has_properties, is_such_table, is_such_view
from moraine.gateway.effects import all_hold, find_proofs
from moraine.gateway.metadata import Metadata, uuid_of
from moraine.gateway.model import Answer, Intent, Operation, State, Verdict
from moraine.gateway.shapes import fingerprints

_Loaded = Mapping[str, Any]
_Effect = Mapping[str, Any]


def check(intent: Intent, state: State) -> Verdict:
    """What the present `state` of all targets says of an attempt to carry out `intent`."""
    return _CHECKS[intent.operation](intent, state)


def answer_of(intent: Intent, state: State) -> Answer:
    """What the catalog would have answered, for an intent of which `check` says applied."""
    return _ANSWERS[intent.operation](intent, state)


def _only(intent: Intent, state: State) -> _Loaded | None:
    return state[intent.targets[0]]


def _uuid(loaded: _Loaded) -> str | None:
    return uuid_of(loaded.get("metadata") or {})


def _is_the_same(loaded: _Loaded, before: Mapping[str, Any]) -> bool:
    """The very thing that was there before, as far as it is known which that was."""
    known = before.get("uuid")
    return not known or _uuid(loaded) in (None, str(known).lower())


# --- Creates and registrations --------------------------------------------------------------


def _check_create(
    is_such: Callable[[_Effect, _Loaded], bool], intent: Intent, state: State
) -> Verdict:
    loaded = _only(intent, state)
    # A name that was taken before cannot have been given by this request: the catalog says so.
    if intent.effect.get("staged") or intent.before.get("exists") or loaded is None:
        return Verdict.NOT_APPLIED
    return Verdict.APPLIED if is_such(intent.effect, loaded) else Verdict.INCOMPATIBLE


def _check_registration(intent: Intent, state: State) -> Verdict:
    loaded, overwrite = _only(intent, state), intent.effect["overwrite"]
    if loaded is None or (intent.before.get("exists") and not overwrite):
        return Verdict.NOT_APPLIED
    if intent.effect["metadata-location"] in _metadata_files(loaded):
        return Verdict.APPLIED
    return Verdict.NOT_APPLIED if overwrite else Verdict.INCOMPATIBLE


def _metadata_files(loaded: _Loaded) -> set[Any]:
    """All that the table has had, as far as it remembers; a view remembers only the last."""
    log = loaded["metadata"].get("metadata-log") or []
    return {loaded.get("metadata-location"), *(entry.get("metadata-file") for entry in log)}


# --- Commits --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Finding:
    verdict: Verdict
    is_certain: bool = True
    """Whether it could not have been the other one just as well."""


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
        # Made up for this table alone, when it was staged.
        proofs = [*proofs, uuid_of(metadata) == _assigned_uuid(effect)]
    if any(proofs):
        return _Finding(Verdict.APPLIED if all(proofs) else Verdict.INCOMPATIBLE)
    if is_known and all_hold(facts, metadata):
        return _Finding(Verdict.APPLIED, is_certain=False)
    return _Finding(Verdict.INCOMPATIBLE if is_create else Verdict.NOT_APPLIED)


def _is_another(effect: _Effect, metadata: Metadata) -> bool:
    """A table that is not the one required, nor made to be another by this very commit."""
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
    # What bears the name now may have been made after the drop.
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
    present = fingerprints(loaded.get("properties"))
    is_updated = intent.effect["updates"].items() <= present.items()
    is_removed = not present.keys() & set(intent.effect["removals"])
    return Verdict.APPLIED if is_updated and is_removed else Verdict.NOT_APPLIED


_CHECKS: dict[Operation, Callable[[Intent, State], Verdict]] = {
    Operation.CREATE_NAMESPACE: partial(_check_create, has_properties),
    Operation.DROP_NAMESPACE: _check_drop,
    Operation.UPDATE_NAMESPACE: _check_properties,
    Operation.CREATE_TABLE: partial(
        _check_create, lambda effect, loaded: is_such_table(effect, loaded["metadata"])
    ),
    Operation.REGISTER_TABLE: _check_registration,
    Operation.COMMIT_TABLE: _check_commit,
    Operation.DROP_TABLE: _check_drop,
    Operation.RENAME_TABLE: _check_rename,
    Operation.COMMIT_TRANSACTION: _check_transaction,
    Operation.CREATE_VIEW: partial(
        _check_create, lambda effect, loaded: is_such_view(effect, loaded["metadata"])
    ),
    Operation.REGISTER_VIEW: _check_registration,
    Operation.REPLACE_VIEW: _check_commit,
    Operation.DROP_VIEW: _check_drop,
    Operation.RENAME_VIEW: _check_rename,
}


# --- Answers --------------------------------------------------------------------------------

_COMMITTED = ("metadata-location", "metadata")
_LOADED_VIEW = (*_COMMITTED, "config")
_LOADED_TABLE = (*_LOADED_VIEW, "storage-credentials")


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
        raise LookupError(f"{intent.targets[0]} is not there, so there is nothing to answer with")
    return loaded


_ANSWERS: dict[Operation, Callable[[Intent, State], Answer]] = {
    Operation.CREATE_NAMESPACE: _answer_namespace,
    Operation.DROP_NAMESPACE: _answer_nothing,
    Operation.UPDATE_NAMESPACE: _answer_properties,
    Operation.CREATE_TABLE: partial(_answer_with, _LOADED_TABLE),
    Operation.REGISTER_TABLE: partial(_answer_with, _LOADED_TABLE),
    Operation.COMMIT_TABLE: partial(_answer_with, _COMMITTED),
    Operation.DROP_TABLE: _answer_nothing,
    Operation.RENAME_TABLE: _answer_nothing,
    Operation.COMMIT_TRANSACTION: _answer_nothing,
    Operation.CREATE_VIEW: partial(_answer_with, _LOADED_VIEW),
    Operation.REGISTER_VIEW: partial(_answer_with, _LOADED_VIEW),
    Operation.REPLACE_VIEW: partial(_answer_with, _LOADED_VIEW),
    Operation.DROP_VIEW: _answer_nothing,
    Operation.RENAME_VIEW: _answer_nothing,
}
