"""What is kept of a request: enough to check it by, small, storable, and nothing secret."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moraine.gateway.bodies import MalformedBody
from moraine.gateway.checks import check
from moraine.gateway.intents import intent_of
from moraine.gateway.model import Intent, Verdict
from moraine.iceberg.endpoints import OPERATION_IDS, Endpoint
from moraine.iceberg.model import Identifier, ObjectKind
from support.iceberg_bodies import (
    DAY_SPEC,
    NAMESPACE,
    NEXT_VERSION,
    ROOT,
    SCHEMA,
    TABLE,
    TABLE_UUID,
    VIEW,
)

Json = dict[str, Any]

OTHER_TABLE = Identifier(ObjectKind.TABLE, ("a", "b"), "t")
IDENTIFIER = {"namespace": ["sales"], "name": "orders"}
OTHER_IDENTIFIER = {"namespace": ["a", "b"], "name": "t"}
COMMIT = {
    "requirements": [{"type": "assert-table-uuid", "uuid": TABLE_UUID}],
    "updates": [{"action": "set-properties", "updates": {"a": "1"}}],
}

# Of every endpoint: what its path names, a good body, and what it is about.
REQUESTS: dict[Endpoint, tuple[Identifier, Json, tuple[Identifier, ...]]] = {
    Endpoint.CREATE_NAMESPACE: (
        ROOT,
        {"namespace": ["sales"], "properties": {"owner": "ana"}},
        (NAMESPACE,),
    ),
    Endpoint.DROP_NAMESPACE: (NAMESPACE, {}, (NAMESPACE,)),
    Endpoint.UPDATE_NAMESPACE: (
        NAMESPACE,
        {"updates": {"owner": "ana"}, "removals": ["old"]},
        (NAMESPACE,),
    ),
    Endpoint.CREATE_TABLE: (
        NAMESPACE,
        {"name": "orders", "schema": SCHEMA, "partition-spec": DAY_SPEC, "location": "s3://b/t"},
        (TABLE,),
    ),
    Endpoint.REGISTER_TABLE: (
        NAMESPACE,
        {"name": "orders", "metadata-location": "s3://b/m.json"},
        (TABLE,),
    ),
    Endpoint.COMMIT_TABLE: (TABLE, COMMIT, (TABLE,)),
    Endpoint.DROP_TABLE: (TABLE, {}, (TABLE,)),
    Endpoint.RENAME_TABLE: (
        ROOT,
        {"source": IDENTIFIER, "destination": OTHER_IDENTIFIER},
        (TABLE, OTHER_TABLE),
    ),
    Endpoint.COMMIT_TRANSACTION: (
        ROOT,
        {
            "table-changes": [
                {"identifier": OTHER_IDENTIFIER, **COMMIT},
                {"identifier": IDENTIFIER, **COMMIT},
            ]
        },
        (OTHER_TABLE, TABLE),
    ),
    Endpoint.CREATE_VIEW: (
        NAMESPACE,
        {"name": "totals", "schema": SCHEMA, "view-version": NEXT_VERSION, "properties": {}},
        (VIEW,),
    ),
    Endpoint.REGISTER_VIEW: (
        NAMESPACE,
        {"name": "totals", "metadata-location": "s3://b/m.json"},
        (VIEW,),
    ),
    Endpoint.REPLACE_VIEW: (
        VIEW,
        {"updates": [{"action": "add-view-version", "view-version": NEXT_VERSION}]},
        (VIEW,),
    ),
    Endpoint.DROP_VIEW: (VIEW, {}, (VIEW,)),
    Endpoint.RENAME_VIEW: (
        ROOT,
        {"source": {"namespace": ["sales"], "name": "totals"}, "destination": OTHER_IDENTIFIER},
        (VIEW, Identifier(ObjectKind.VIEW, ("a", "b"), "t")),
    ),
}


def kept(intent: Intent) -> str:
    return json.dumps(intent.to_json(), allow_nan=False)


@pytest.mark.parametrize("endpoint", sorted(OPERATION_IDS))
def test_an_intent_is_about_what_the_request_changes(endpoint: Endpoint) -> None:
    target, body, targets = REQUESTS[endpoint]

    intent = intent_of(endpoint, target, body)

    assert (intent.endpoint, intent.targets) == (endpoint, targets)
    assert Intent.from_json(json.loads(kept(intent))) == intent


@pytest.mark.parametrize(
    ("endpoint", "change", "message"),
    [
        (Endpoint.CREATE_NAMESPACE, {"namespace": None}, "namespace: is missing"),
        (Endpoint.CREATE_NAMESPACE, {"namespace": "sales"}, "namespace: must be an array"),
        (Endpoint.CREATE_NAMESPACE, {"namespace": ["a", 1]}, r"namespace\[1\]: must be a string"),
        (Endpoint.CREATE_NAMESPACE, {"properties": {"a": 1}}, r"properties\.a: must be a string"),
        (Endpoint.UPDATE_NAMESPACE, {"updates": []}, "updates: must be an object"),
        (Endpoint.UPDATE_NAMESPACE, {"removals": {"a": 1}}, "removals: must be an array"),
        (Endpoint.CREATE_TABLE, {"name": None}, "name: is missing"),
        (Endpoint.CREATE_TABLE, {"name": "a\x00b"}, "name: has a character"),
        (Endpoint.CREATE_TABLE, {"name": "\ud800"}, "name: has a character"),
        (Endpoint.CREATE_TABLE, {"schema": None}, "schema: is missing"),
        (Endpoint.CREATE_TABLE, {"schema": {}}, r"schema\.fields: is missing"),
        (Endpoint.CREATE_TABLE, {"schema": {"fields": [1]}}, r"schema\.fields\[0\]: must be an o"),
        (Endpoint.CREATE_TABLE, {"partition-spec": []}, "partition-spec: must be an object"),
        (Endpoint.CREATE_TABLE, {"stage-create": "yes"}, "stage-create: must be true or false"),
        (Endpoint.CREATE_TABLE, {"location": 5}, "location: must be a string"),
        (Endpoint.REGISTER_TABLE, {"metadata-location": None}, "metadata-location: is missing"),
        (Endpoint.REGISTER_VIEW, {"overwrite": 1}, "overwrite: must be true or false"),
        (Endpoint.CREATE_VIEW, {"view-version": {}}, r"view-version\.representations: is missing"),
        (Endpoint.RENAME_TABLE, {"destination": None}, "destination: is missing"),
        (Endpoint.RENAME_VIEW, {"source": {"namespace": []}}, r"source\.name: is missing"),
        (Endpoint.COMMIT_TRANSACTION, {"table-changes": []}, "table-changes: is empty"),
        (Endpoint.COMMIT_TRANSACTION, {"table-changes": [COMMIT]}, r"\[0\]\.identifier: is miss"),
        (Endpoint.COMMIT_TABLE, {"updates": None}, "updates: is missing"),
        (Endpoint.COMMIT_TABLE, {"updates": [{}]}, r"updates\[0\]\.action: is missing"),
        (Endpoint.COMMIT_TABLE, {"requirements": [{}]}, r"requirements\[0\]\.type: is missing"),
        (
            Endpoint.COMMIT_TABLE,
            {"requirements": [{"type": "assert-table-uuid"}]},
            r"requirements\[0\]\.uuid: is missing",
        ),
    ],
)
def test_a_malformed_body_is_refused_by_the_name_of_its_field(
    endpoint: Endpoint, change: Json, message: str
) -> None:
    target, body, _ = REQUESTS[endpoint]

    with pytest.raises(MalformedBody, match=message):
        intent_of(endpoint, target, {**body, **change})


@pytest.mark.parametrize(
    ("update", "field"),
    [
        ({"action": "assign-uuid"}, "uuid"),
        ({"action": "upgrade-format-version", "format-version": "2"}, "format-version"),
        ({"action": "add-schema"}, "schema"),
        ({"action": "set-current-schema", "schema-id": True}, "schema-id"),
        ({"action": "add-spec", "spec": {}}, r"spec\.fields"),
        ({"action": "set-default-spec"}, "spec-id"),
        ({"action": "add-sort-order"}, "sort-order"),
        ({"action": "set-default-sort-order", "sort-order-id": 1.5}, "sort-order-id"),
        ({"action": "add-snapshot", "snapshot": {"snapshot-id": 2**63}}, r"snapshot\.snapshot-id"),
        ({"action": "set-snapshot-ref", "snapshot-id": 1, "type": "tag"}, "ref-name"),
        ({"action": "remove-snapshots", "snapshot-ids": ["1"]}, r"snapshot-ids\[0\]"),
        ({"action": "remove-snapshot-ref"}, "ref-name"),
        ({"action": "set-location"}, "location"),
        ({"action": "set-properties"}, "updates"),
        ({"action": "remove-properties"}, "removals"),
        ({"action": "set-statistics", "statistics": {"snapshot-id": 1}}, "statistics-path"),
        ({"action": "remove-statistics"}, "snapshot-id"),
        ({"action": "set-partition-statistics"}, "partition-statistics"),
        ({"action": "remove-partition-statistics"}, "snapshot-id"),
        ({"action": "remove-partition-specs"}, "spec-ids"),
        ({"action": "remove-schemas", "schema-ids": 1}, "schema-ids"),
        ({"action": "add-encryption-key", "encryption-key": {}}, "key-id"),
        ({"action": "remove-encryption-key"}, "key-id"),
    ],
)
def test_a_malformed_update_is_refused_by_its_place(update: Json, field: str) -> None:
    body = {"updates": [{"action": "enable-row-lineage"}, update]}

    with pytest.raises(MalformedBody, match=rf"updates\[1\]\..*{field}"):
        intent_of(Endpoint.COMMIT_TABLE, TABLE, body)


def test_a_body_nested_too_deeply_is_refused() -> None:
    kind: Any = "int"
    for _ in range(5000):
        kind = {"type": "list", "element-id": 1, "element-required": True, "element": kind}
    fields = [{"id": 1, "name": "deep", "required": True, "type": kind}]

    with pytest.raises(MalformedBody, match="nested too deeply"):
        intent_of(Endpoint.CREATE_TABLE, NAMESPACE, {"name": "t", "schema": {"fields": fields}})


# --- Small, and nothing secret --------------------------------------------------------------


def columns(count: int) -> list[Json]:
    return [
        {
            "id": number,
            "name": f"column_{number}",
            "type": "string",
            "required": False,
            "doc": "What this column is for, at some length.",
        }
        for number in range(1, count + 1)
    ]


def test_a_wide_table_has_a_small_intent() -> None:
    body = {
        "name": "wide",
        "schema": {"type": "struct", "fields": columns(500)},
        "partition-spec": {
            "fields": [
                {"source-id": number, "transform": "identity", "name": f"p{number}"}
                for number in range(1, 100)
            ]
        },
        "properties": {"comment": "x" * 10_000},
    }
    assert len(json.dumps(body)) > 60_000

    assert len(kept(intent_of(Endpoint.CREATE_TABLE, NAMESPACE, body))) < 1_000


def test_a_large_commit_has_a_small_intent() -> None:
    snapshot = {"snapshot-id": 2**62, "summary": {f"k{n}": "v" * 100 for n in range(200)}}
    view = {**NEXT_VERSION, "representations": [{"type": "sql", "sql": "x" * 9999, "dialect": "s"}]}
    updates = [
        {"action": "add-schema", "schema": {"type": "struct", "fields": columns(500)}},
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-properties", "updates": {"comment": "x" * 10_000}},
    ]

    assert len(kept(intent_of(Endpoint.COMMIT_TABLE, TABLE, {"updates": updates}))) < 1_000
    replace = {"updates": [{"action": "add-view-version", "view-version": view}]}
    assert len(kept(intent_of(Endpoint.REPLACE_VIEW, VIEW, replace))) < 1_000


SECRETS = {
    "s3.secret-access-key": "hunter2",
    "adls.sas-token.account": "hunter22",
    "jdbc.password": "hunter222",
    "gcs.oauth2.token": "hunter" * 100,
}
KEY = {"key-id": "k1", "encrypted-key-metadata": "hunter2"}


@pytest.mark.parametrize(
    ("endpoint", "change"),
    [
        (Endpoint.CREATE_NAMESPACE, {"properties": SECRETS}),
        (Endpoint.UPDATE_NAMESPACE, {"updates": SECRETS}),
        (Endpoint.CREATE_TABLE, {"properties": SECRETS}),
        (Endpoint.CREATE_VIEW, {"properties": SECRETS}),
        (Endpoint.COMMIT_TABLE, {"updates": [{"action": "set-properties", "updates": SECRETS}]}),
        (Endpoint.REPLACE_VIEW, {"updates": [{"action": "set-properties", "updates": SECRETS}]}),
        (
            Endpoint.COMMIT_TABLE,
            {"updates": [{"action": "add-encryption-key", "encryption-key": KEY}]},
        ),
        (Endpoint.COMMIT_TABLE, {"updates": [{"action": "unheard-of", "token": "hunter2"}]}),
    ],
)
def test_no_secret_is_kept(endpoint: Endpoint, change: Json) -> None:
    target, body, _ = REQUESTS[endpoint]

    intent = intent_of(endpoint, target, {**body, **change})

    assert "hunter" not in kept(intent)
    assert "hunter" not in repr(intent)


def test_properties_that_are_short_and_no_secret_are_kept_as_they_are() -> None:
    body = {"namespace": ["sales"], "properties": {"owner": "ana", "comment": "x" * 200}}

    effect = intent_of(Endpoint.CREATE_NAMESPACE, ROOT, body).effect

    assert effect == {"properties": {"owner": "ana", "comment": "x" * 200}}


# --- Whatever a client may send -------------------------------------------------------------

WORDS = st.sampled_from(
    [
        "name", "namespace", "schema", "fields", "type", "struct", "list", "map", "id", "key-id",
        "identifier-field-ids", "source-id", "source-ids", "partition-spec", "write-order",
        "properties", "updates", "removals", "requirements", "action", "uuid", "location",
        "add-schema", "add-spec", "spec", "set-properties", "set-snapshot-ref", "view-version",
        "representations", "table-changes", "identifier", "source", "destination", "element",
        "metadata-location", "stage-create", "format-version",
    ]
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=25,
)
NOISE = st.dictionaries(WORDS, JSON, max_size=4)


@pytest.mark.parametrize("endpoint", sorted(OPERATION_IDS))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_body_makes_an_intent_or_is_malformed(endpoint: Endpoint, data: Any) -> None:
    target, good, _ = REQUESTS[endpoint]
    if good and data.draw(st.booleans()):
        # Deeper than chance gets: one part of a good body is exchanged for something else.
        body = _exchange(good, data)
    else:
        body = {**good, **data.draw(NOISE)}

    try:
        intent = intent_of(endpoint, target, body)
    except MalformedBody:
        return  # what it says is told by the tests above

    again = Intent.from_json(json.loads(kept(intent)))
    assert again == intent
    assert check(again, dict.fromkeys(again.targets)) in Verdict


def _exchange(value: Any, data: Any) -> Any:
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = data.draw(st.sampled_from(keys))
    inner = value[key]
    goes_on = isinstance(inner, dict | list) and inner and data.draw(st.booleans())
    changed = _exchange(inner, data) if goes_on else data.draw(JSON)
    if isinstance(value, dict):
        return {**value, key: changed}
    return [*value[:key], changed, *value[key + 1 :]]


TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"))
TARGETS = st.builds(
    Identifier,
    st.sampled_from(ObjectKind),
    st.lists(TEXT, max_size=3).map(tuple),
    st.text(max_size=5),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(sorted(OPERATION_IDS)),
    st.lists(TARGETS, max_size=3).map(tuple),
    st.dictionaries(TEXT, VALUES, max_size=4),
    st.fixed_dictionaries({}, optional={"exists": st.booleans(), "uuid": st.uuids().map(str)}),
)
def test_an_intent_survives_being_kept(
    endpoint: Endpoint, targets: tuple[Identifier, ...], effect: Json, before: Json
) -> None:
    intent = Intent(endpoint, targets, effect, before)

    assert Intent.from_json(json.loads(json.dumps(intent.to_json()))) == intent


def test_a_kept_intent_has_the_operation_id_of_the_spec() -> None:
    """Intents of earlier versions are in ledgers."""
    intent = Intent(Endpoint.COMMIT_TABLE, (TABLE,))
    kept = {
        "operation": "updateTable",
        "targets": [{"kind": "table", "namespace": ["sales"], "name": "orders"}],
        "effect": {},
        "before": {},
    }
    assert json.loads(json.dumps(intent.to_json())) == kept
    assert Intent.from_json(kept) == intent
