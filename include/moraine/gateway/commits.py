"""What the updates of a commit change, and whether metadata shows the change.

Both are written as the same facts. An update states what must be seen of one aspect of the metadata
under one key: `property`, `owner` → `ana`, or None if nothing may be there. The metadata is read
into the same form. So the later of two contradicting updates simply replaces the earlier, and an
update is applied if the metadata shows what the update states.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from moraine.gateway.bodies import JsonObject, storable, storable_properties
from moraine.iceberg.metadata import (
    Metadata,
    digest,
    encryption_keys_of,
    order_digest,
    refs_of,
    schema_digest,
    schemas_of,
    snapshots_of,
    sort_orders_of,
    spec_digest,
    specs_of,
    statistics_of,
    trim,
    uuid_of,
    version_digest,
    versions_of,
)
from moraine.iceberg.model import ObjectKind

Facts = Mapping[str, Mapping[str, Any]]
"""What must be seen, by aspect and key: JSON, so that an intent can keep it."""

_ONLY = ""  # the key of an aspect that metadata has only once
_LAST_ADDED = -1
_RETENTION = ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")


# --- What updates state ---------------------------------------------------------------------


@dataclass(slots=True)
class Draft:
    """The facts of a commit while its updates are being read."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    """Actions that this module does not know: no check can say whether they were applied."""
    _added: dict[tuple[str, int], str] = field(default_factory=dict)

    def state(self, aspect: str, expected: Any, key: object = _ONLY) -> None:
        self.facts.setdefault(aspect, {})[str(key)] = expected

    def add(self, aspect: str, content: str, own_id: int | None, expected: Any = True) -> None:
        """Something to which the server may assign another id than the client did."""
        self.state(aspect, expected, content)
        self._added[aspect, _LAST_ADDED] = content
        if own_id is not None:
            self._added[aspect, own_id] = content

    def resolve(self, aspect: str, chosen_id: int) -> str | int:
        """The content behind an id that this commit added: the server may change the id."""
        return self._added.get((aspect, chosen_id), chosen_id)


def read_updates(kind: ObjectKind, updates: Iterable[JsonObject]) -> Draft:
    draft = Draft()
    actions = _VIEW_ACTIONS if kind is ObjectKind.VIEW else _TABLE_ACTIONS
    for update in updates:
        action = update.text("action").lower()
        if read := actions.get(action):
            read(update, draft)
        else:
            draft.unknown.append(action)
    return draft


def _own_id(item: JsonObject, name: str) -> int | None:
    return item.integer(name) if item.has(name) else None


def _assign_uuid(update: JsonObject, draft: Draft) -> None:
    draft.state("uuid", update.text("uuid").lower())


def _upgrade_format(update: JsonObject, draft: Draft) -> None:
    draft.state("format-version", update.integer("format-version"))


def _add_schema(update: JsonObject, draft: Draft) -> None:
    schema = update.object("schema")
    schema.objects("fields")
    content = schema_digest(schema.fields, with_ids=True)
    draft.add("schema", content, _own_id(schema, "schema-id"))


def _add_spec(update: JsonObject, draft: Draft) -> None:
    spec = update.object("spec")
    spec.objects("fields")
    draft.add("spec", spec_digest(spec.fields), _own_id(spec, "spec-id"))


def _add_sort_order(update: JsonObject, draft: Draft) -> None:
    order = update.object("sort-order")
    order.objects("fields")
    draft.add("sort-order", order_digest(order.fields), _own_id(order, "order-id"))


def _add_view_version(update: JsonObject, draft: Draft) -> None:
    version = update.object("view-version")
    version.objects("representations")
    content = version_digest(version.fields)
    made_at = version.integer("timestamp-ms")
    draft.add("view-version", content, _own_id(version, "version-id"), expected=made_at)


def _choose(aspect: str, id_name: str) -> Callable[[JsonObject, Draft], None]:
    def read(update: JsonObject, draft: Draft) -> None:
        draft.state(f"current-{aspect}", draft.resolve(aspect, update.integer(id_name)))

    return read


def _add_snapshot(update: JsonObject, draft: Draft) -> None:
    draft.state("snapshot", True, update.object("snapshot").integer("snapshot-id"))


def _set_ref(update: JsonObject, draft: Draft) -> None:
    ref = {"snapshot-id": update.integer("snapshot-id"), "type": update.text("type").lower()}
    ref |= {name: update.integer(name) for name in _RETENTION if update.has(name)}
    draft.state("ref", ref, update.text("ref-name"))


def _set_location(update: JsonObject, draft: Draft) -> None:
    draft.state("location", trim(update.text("location")))


def _set_properties(update: JsonObject, draft: Draft) -> None:
    for name, value in update.text_map(_spelling(update, "updates", "updated")).items():
        draft.state("property", storable(name, value), name)


def _remove_properties(update: JsonObject, draft: Draft) -> None:
    for name in update.texts(_spelling(update, "removals", "removed")):
        draft.state("property", None, name)


def _spelling(update: JsonObject, name: str, old_name: str) -> str:
    """Old Iceberg clients send the old names, and Iceberg's server still reads them."""
    return old_name if update.has(old_name) and not update.has(name) else name


def _set_statistics(aspect: str) -> Callable[[JsonObject, Draft], None]:
    def read(update: JsonObject, draft: Draft) -> None:
        file = update.object(aspect)
        draft.state(aspect, file.text("statistics-path"), file.integer("snapshot-id"))

    return read


def _remove(aspect: str, id_name: str) -> Callable[[JsonObject, Draft], None]:
    def read(update: JsonObject, draft: Draft) -> None:
        draft.state(aspect, None, update.integer(id_name))

    return read


def _remove_all(aspect: str, ids_name: str) -> Callable[[JsonObject, Draft], None]:
    def read(update: JsonObject, draft: Draft) -> None:
        for removed in update.integers(ids_name):
            draft.state(aspect, None, removed)

    return read


def _remove_ref(update: JsonObject, draft: Draft) -> None:
    draft.state("ref", None, update.text("ref-name"))


def _add_encryption_key(update: JsonObject, draft: Draft) -> None:
    key = update.object("encryption-key")
    draft.state("encryption-key", _key_digest(key.fields), key.text("key-id"))


def _remove_encryption_key(update: JsonObject, draft: Draft) -> None:
    draft.state("encryption-key", None, update.text("key-id"))


def _enable_row_lineage(_: JsonObject, draft: Draft) -> None:
    draft.state("row-lineage", True)


_COMMON_ACTIONS: dict[str, Callable[[JsonObject, Draft], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade_format,
    "add-schema": _add_schema,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
}

_TABLE_ACTIONS = _COMMON_ACTIONS | {
    "set-current-schema": _choose("schema", "schema-id"),
    "remove-schemas": _remove_all("schema-id", "schema-ids"),
    "add-spec": _add_spec,
    "set-default-spec": _choose("spec", "spec-id"),
    "remove-partition-specs": _remove_all("spec-id", "spec-ids"),
    "add-sort-order": _add_sort_order,
    "set-default-sort-order": _choose("sort-order", "sort-order-id"),
    "add-snapshot": _add_snapshot,
    "remove-snapshots": _remove_all("snapshot", "snapshot-ids"),
    "set-snapshot-ref": _set_ref,
    "remove-snapshot-ref": _remove_ref,
    "set-statistics": _set_statistics("statistics"),
    "remove-statistics": _remove("statistics", "snapshot-id"),
    "set-partition-statistics": _set_statistics("partition-statistics"),
    "remove-partition-statistics": _remove("partition-statistics", "snapshot-id"),
    "add-encryption-key": _add_encryption_key,
    "remove-encryption-key": _remove_encryption_key,
    "enable-row-lineage": _enable_row_lineage,
}

_VIEW_ACTIONS = _COMMON_ACTIONS | {
    "add-view-version": _add_view_version,
    "set-current-view-version": _choose("view-version", "view-version-id"),
}


# --- What metadata shows --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Aspect:
    """How an aspect of metadata is read, and when it agrees with what a fact expects."""

    see: Callable[[Metadata], Mapping[str, Any]]
    agrees: Callable[[Any, Any], bool] = operator.eq
    proves: Callable[[Any, Any], bool] = operator.eq
    """Stricter, for the aspects in `_PROOFS`: only this commit can have caused it."""


def _is_among(seen: Any, expected: Any) -> bool:
    return expected in (seen or ())


def _is_there(seen: Any, _: Any) -> bool:
    return seen is not None


def _is_at_least(seen: Any, expected: Any) -> bool:
    return seen is not None and bool(seen >= expected)


def _by_id(items: Iterable[Metadata], id_name: str) -> dict[str, Any]:
    return {str(item.get(id_name)): True for item in items}


def _paths(name: str) -> Callable[[Metadata], Mapping[str, Any]]:
    return lambda metadata: {
        str(file.get("snapshot-id")): file.get("statistics-path")
        for file in statistics_of(metadata, name)
    }


def _ref_shape(ref: Metadata) -> dict[str, Any]:
    names = ("snapshot-id", "type", *_RETENTION)
    return {name: ref[name] for name in names if ref.get(name) is not None}


def _key_digest(key: Metadata) -> str:
    return digest([key.get("encrypted-key-metadata"), key.get("encrypted-by-id")])


def _made_at(metadata: Metadata) -> dict[str, list[Any]]:
    times: dict[str, list[Any]] = {}
    for version in versions_of(metadata):
        times.setdefault(version_digest(version), []).append(version.get("timestamp-ms"))
    return times


def _current(
    items: Callable[[Metadata], list[Metadata]],
    id_name: str,
    current_name: str,
    content: Callable[[Metadata], str],
) -> Callable[[Metadata], Mapping[str, Any]]:
    """Shown as its id and as its content, because a fact expects either of them."""

    def see(metadata: Metadata) -> Mapping[str, Any]:
        current = metadata.get(current_name)
        contents = [content(item) for item in items(metadata) if item.get(id_name) == current]
        return {_ONLY: [current, *contents]}

    return see


def _schema_content(schema: Metadata) -> str:
    return schema_digest(schema, with_ids=True)


def _has_row_lineage(metadata: Metadata) -> bool:
    # From format version 3 on every table has it, and metadata may omit it.
    return bool(metadata.get("row-lineage")) or metadata.get("format-version", 1) >= 3


_ASPECTS: dict[str, Aspect] = {
    "uuid": Aspect(lambda m: {_ONLY: uuid_of(m)}),
    "format-version": Aspect(lambda m: {_ONLY: m.get("format-version")}, _is_at_least),
    "location": Aspect(lambda m: {_ONLY: trim(m.get("location"))}),
    "property": Aspect(lambda m: storable_properties(m.get("properties"))),
    "schema": Aspect(lambda m: {_schema_content(item): True for item in schemas_of(m)}),
    "schema-id": Aspect(lambda m: _by_id(schemas_of(m), "schema-id")),
    "current-schema": Aspect(
        _current(schemas_of, "schema-id", "current-schema-id", _schema_content), _is_among
    ),
    "spec": Aspect(lambda m: {spec_digest(item): True for item in specs_of(m)}),
    "spec-id": Aspect(lambda m: _by_id(specs_of(m), "spec-id")),
    "current-spec": Aspect(
        _current(specs_of, "spec-id", "default-spec-id", spec_digest), _is_among
    ),
    "sort-order": Aspect(lambda m: {order_digest(item): True for item in sort_orders_of(m)}),
    "current-sort-order": Aspect(
        _current(sort_orders_of, "order-id", "default-sort-order-id", order_digest), _is_among
    ),
    "snapshot": Aspect(lambda m: _by_id(snapshots_of(m), "snapshot-id")),
    "ref": Aspect(lambda m: {name: _ref_shape(ref) for name, ref in refs_of(m).items()}),
    "statistics": Aspect(_paths("statistics")),
    "partition-statistics": Aspect(_paths("partition-statistics")),
    "encryption-key": Aspect(
        lambda m: {str(key.get("key-id")): _key_digest(key) for key in encryption_keys_of(m)}
    ),
    "row-lineage": Aspect(lambda m: {_ONLY: _has_row_lineage(m)}),
    "view-version": Aspect(_made_at, _is_there, proves=_is_among),
    "current-view-version": Aspect(
        _current(versions_of, "version-id", "current-version-id", version_digest), _is_among
    ),
}

# Traces that only one commit can leave, the strongest first: ids of snapshots are random, while the
# statistics of a snapshot may be replaced later, and old versions of a view expire.
_PROOFS = (("snapshot",), ("statistics", "partition-statistics", "view-version"))


def all_hold(facts: Facts, metadata: Metadata) -> bool:
    return all(
        seen is None if expected is None else aspect.agrees(seen, expected)
        for aspect, seen, expected in _compare(facts, metadata, facts)
    )


def find_proofs(facts: Facts, metadata: Metadata) -> list[bool]:
    """For each trace that only this commit can leave, whether it is there."""
    for names in _PROOFS:
        proofs = [
            aspect.proves(seen, expected)
            for aspect, seen, expected in _compare(facts, metadata, names)
            if expected is not None
        ]
        if proofs:
            return proofs
    return []


def _compare(
    facts: Facts, metadata: Metadata, names: Iterable[str]
) -> Iterator[tuple[Aspect, Any, Any]]:
    """Each fact of these aspects: what the metadata shows, and what is expected."""
    for name in names:
        if expectations := facts.get(name):
            aspect = _ASPECTS[name]
            seen = aspect.see(metadata)
            for key, expected in expectations.items():
                yield aspect, seen.get(key), expected
