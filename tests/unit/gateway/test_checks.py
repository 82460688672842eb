"""What a look at the catalog says of a request whose answer was lost, and what is answered then."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import SortOrder

from moraine.gateway.checks import answer_of, check
from moraine.gateway.intents import intent_of
from moraine.gateway.model import Intent, Kind, Operation, Target, Verdict
from support.iceberg_bodies import (
    DAY_FIELD,
    DAY_SPEC,
    ID_FIELD,
    ID_ORDER,
    NAMESPACE,
    NEXT_VERSION,
    OTHER_UUID,
    SCHEMA,
    TABLE,
    TABLE_UUID,
    VERSION,
    VIEW,
    VIEW_UUID,
    WIDER_SCHEMA,
    loaded,
    table_metadata,
    view_metadata,
)

Json = dict[str, Any]

APPLIED, NOT_APPLIED, INCOMPATIBLE = Verdict
ROOT = Target(Kind.NAMESPACE, ())
MOVED_TABLE = Target(Kind.TABLE, ("archive",), "orders")
MOVED_VIEW = Target(Kind.VIEW, ("archive",), "totals")


def intent(operation: Operation, target: Target, body: Json, **before: Any) -> Intent:
    made = dataclasses.replace(intent_of(operation, target, body), before=before)
    return Intent.from_json(json.loads(json.dumps(made.to_json())))


# --- Creating tables ------------------------------------------------------------------------

# Ids as a client makes them up; a server numbers the columns anew, from the outside in.
ASKED_SCHEMA = {
    "type": "struct",
    "schema-id": 5,
    "fields": [
        {
            "id": 10,
            "name": "place",
            "required": True,
            "type": {
                "type": "struct",
                "fields": [{"id": 77, "name": "city", "required": True, "type": "string"}],
            },
        },
        {"id": 20, "name": "price", "required": False, "type": "decimal(9,2)", "doc": "net"},
    ],
    "identifier-field-ids": [77],
}
ASKED = {
    "name": "orders",
    "schema": ASKED_SCHEMA,
    "partition-spec": {
        "fields": [{"source-id": 77, "field-id": 1000, "transform": "bucket[4]", "name": "c"}]
    },
    "write-order": {
        "order-id": 1,
        "fields": [
            {
                "source-id": 20,
                "transform": "identity",
                "direction": "desc",
                "null-order": "nulls-last",
            }
        ],
    },
    "location": "s3://lake/sales/orders/",
    "properties": {"owner": "ana", "format-version": "2", "s3.session-token": "hunter2"},
}


def created(asked: Json = ASKED, **changes: Any) -> Json:
    """What a catalog makes of the request, by PyIceberg's implementation."""
    made = new_table_metadata(
        Schema.model_validate(asked["schema"]),
        PartitionSpec.model_validate(asked["partition-spec"]),
        SortOrder.model_validate(asked["write-order"]),
        location=asked["location"].rstrip("/"),
        properties={**asked["properties"], "added.by": "server"},
    )
    metadata = json.loads(made.model_dump_json())
    metadata["properties"].pop("format-version", None)
    return {**metadata, **{name.replace("_", "-"): value for name, value in changes.items()}}


def check_table(asked: Json, metadata: Json | None, **before: Any) -> Verdict:
    state = {TABLE: loaded(metadata) if metadata is not None else None}
    return check(intent(Operation.CREATE_TABLE, NAMESPACE, asked, **before), state)


def test_a_created_table_is_known_though_all_its_ids_are_others() -> None:
    metadata = created()
    assert [field["id"] for field in metadata["schemas"][0]["fields"]] == [1, 2]

    assert check_table(ASKED, metadata, exists=False) is APPLIED
    assert check_table(ASKED, metadata) is APPLIED


def test_a_table_that_is_not_there_was_not_created() -> None:
    assert check_table(ASKED, None, exists=False) is NOT_APPLIED


def test_a_table_that_was_there_before_was_not_created_by_the_request() -> None:
    assert check_table(ASKED, created(), exists=True) is NOT_APPLIED


def test_staging_a_table_changes_nothing() -> None:
    assert check_table({**ASKED, "stage-create": True}, created(), exists=False) is NOT_APPLIED
    assert check_table({**ASKED, "stage-create": False}, created(), exists=False) is APPLIED


def _changed_field(index: int, **changes: Any) -> Json:
    fields = [dict(field) for field in ASKED_SCHEMA["fields"]]
    fields[index].update(changes)
    return {**ASKED_SCHEMA, "fields": fields}


@pytest.mark.parametrize(
    "change",
    [
        {"schema": _changed_field(1, name="cost")},
        {"schema": _changed_field(1, type="decimal(9,3)")},
        {"schema": _changed_field(1, required=True)},
        {"schema": _changed_field(1, doc="gross")},
        {"schema": {**ASKED_SCHEMA, "identifier-field-ids": []}},
        {"partition-spec": None},
        {"partition-spec": {"fields": [{"source-id": 20, "transform": "bucket[4]", "name": "c"}]}},
        {"partition-spec": {"fields": [{"source-id": 77, "transform": "bucket[8]", "name": "c"}]}},
        {"partition-spec": {"fields": [{"source-id": 77, "transform": "bucket[4]", "name": "d"}]}},
        {"write-order": None},
        {"location": "s3://lake/elsewhere"},
        {"properties": {"owner": "bo"}},
        {"properties": {"more": "1"}},
        {"properties": {"s3.session-token": "hunter3"}},
        {"properties": {"format-version": "3"}},
    ],
)
def test_a_table_that_was_not_asked_for_is_incompatible(change: Json) -> None:
    assert check_table({**ASKED, **change}, created(), exists=False) is INCOMPATIBLE


def test_what_was_not_asked_for_may_be_anything() -> None:
    asked = {**ASKED, "location": None, "properties": None}

    assert check_table(asked, created(), exists=False) is APPLIED


def test_a_table_that_was_changed_since_it_was_created_is_still_that_table() -> None:
    metadata = created()
    schema, spec, order = (
        metadata[name][0] for name in ("schemas", "partition-specs", "sort-orders")
    )
    place, price = schema["fields"]
    renamed = {
        **schema,
        "schema-id": 1,
        "fields": [{**place, "name": "where"}, price, {**DAY_FIELD, "id": 9}],
    }
    metadata |= {
        "schemas": [schema, renamed],
        "current-schema-id": 1,
        "partition-specs": [spec, {"spec-id": 1, "fields": []}],
        "default-spec-id": 1,
        "sort-orders": [order, {"order-id": 9, "fields": []}],
        "default-sort-order-id": 9,
    }

    assert check_table(ASKED, metadata, exists=False) is APPLIED
    now = {**ASKED, "schema": renamed, "partition-spec": None, "write-order": None}
    assert check_table(now, metadata, exists=False) is APPLIED


def test_what_a_table_was_only_in_between_is_not_what_was_created() -> None:
    metadata = created()
    first = {"type": "struct", "schema-id": 0, "fields": [ID_FIELD]}
    asked = {**metadata["schemas"][0], "schema-id": 1}
    last = {**asked, "schema-id": 2, "fields": [*asked["fields"], {**DAY_FIELD, "id": 9}]}
    metadata |= {"schemas": [first, asked, last], "current-schema-id": 2}

    assert check_table(ASKED, metadata, exists=False) is INCOMPATIBLE
    metadata["current-schema-id"] = 1
    assert check_table(ASKED, metadata, exists=False) is APPLIED


# --- Creating views and namespaces ----------------------------------------------------------

ASKED_VIEW = {
    "name": "totals",
    "schema": SCHEMA,
    "view-version": VERSION,
    "properties": {"owner": "ana"},
}


def check_view(asked: Json, metadata: Json | None, **before: Any) -> Verdict:
    state = {VIEW: loaded(metadata) if metadata is not None else None}
    return check(intent(Operation.CREATE_VIEW, NAMESPACE, asked, **before), state)


def test_a_created_view_is_known_though_the_server_dates_and_numbers_it() -> None:
    columns = [{**ID_FIELD, "id": 7}, {**DAY_FIELD, "id": 8}]
    metadata = view_metadata(
        versions=[{**VERSION, "version-id": 3, "schema-id": 4, "timestamp-ms": 5, "summary": {}}],
        current_version_id=3,
        schemas=[{**SCHEMA, "schema-id": 4, "fields": columns}],
    )

    assert check_view(ASKED_VIEW, metadata, exists=False) is APPLIED
    assert check_view(ASKED_VIEW, None, exists=False) is NOT_APPLIED
    assert check_view(ASKED_VIEW, metadata, exists=True) is NOT_APPLIED


def test_a_view_that_was_replaced_since_it_was_created_is_still_that_view() -> None:
    next_version = {**NEXT_VERSION, "schema-id": 1}
    metadata = view_metadata(
        versions=[VERSION, next_version], current_version_id=2, schemas=[SCHEMA, WIDER_SCHEMA]
    )

    assert check_view(ASKED_VIEW, metadata) is APPLIED
    mixed = {**ASKED_VIEW, "view-version": next_version}
    assert check_view(mixed, metadata) is INCOMPATIBLE
    assert check_view({**mixed, "schema": WIDER_SCHEMA}, metadata) is APPLIED


@pytest.mark.parametrize(
    "change",
    [
        {"schema": WIDER_SCHEMA},
        {"view-version": NEXT_VERSION},
        {"location": "s3://lake/elsewhere"},
        {"properties": {"owner": "bo"}},
    ],
)
def test_a_view_that_was_not_asked_for_is_incompatible(change: Json) -> None:
    assert check_view({**ASKED_VIEW, **change}, view_metadata(), exists=False) is INCOMPATIBLE


@pytest.mark.parametrize(
    ("present", "before", "expected"),
    [
        (None, {"exists": False}, NOT_APPLIED),
        ({"owner": "ana", "location": "s3://x"}, {"exists": False}, APPLIED),
        ({"owner": "ana", "location": "s3://x"}, {}, APPLIED),
        ({"owner": "ana"}, {"exists": True}, NOT_APPLIED),
        ({"owner": "bo"}, {"exists": False}, INCOMPATIBLE),
        ({}, {"exists": False}, INCOMPATIBLE),
    ],
)
def test_creating_a_namespace(present: Json | None, before: Json, expected: Verdict) -> None:
    body = {"namespace": ["sales"], "properties": {"owner": "ana"}}
    state = {
        NAMESPACE: None if present is None else {"namespace": ["sales"], "properties": present}
    }

    assert check(intent(Operation.CREATE_NAMESPACE, ROOT, body, **before), state) is expected


def test_a_namespace_of_a_catalog_without_properties() -> None:
    made = intent(Operation.CREATE_NAMESPACE, ROOT, {"namespace": ["sales"]})
    state = {NAMESPACE: {"namespace": ["sales"], "properties": None}}

    assert check(made, state) is APPLIED
    assert answer_of(made, state).body == {"namespace": ["sales"], "properties": {}}


# --- Registering ----------------------------------------------------------------------------

FILE = "s3://lake/m/1.json"
LOG = [{"metadata-file": "s3://lake/m/0.json", "timestamp-ms": 1}]


@pytest.mark.parametrize(
    ("present", "overwrite", "before", "expected"),
    [
        (None, False, {}, NOT_APPLIED),
        (loaded(table_metadata(), FILE), False, {"exists": False}, APPLIED),
        (
            loaded(table_metadata(metadata_log=[*LOG, {"metadata-file": FILE}])),
            False,
            {},
            APPLIED,
        ),
        (loaded(table_metadata(metadata_log=LOG)), False, {}, INCOMPATIBLE),
        (loaded(table_metadata(metadata_log=LOG)), True, {}, NOT_APPLIED),
        (loaded(table_metadata(), FILE), False, {"exists": True}, NOT_APPLIED),
        (loaded(table_metadata(), FILE), True, {"exists": True}, APPLIED),
    ],
)
def test_registering_a_table(
    present: Json | None, overwrite: bool, before: Json, expected: Verdict
) -> None:
    body = {"name": "orders", "metadata-location": FILE, "overwrite": overwrite}

    made = intent(Operation.REGISTER_TABLE, NAMESPACE, body, **before)

    assert check(made, {TABLE: present}) is expected


def test_registering_a_view() -> None:
    body = {"name": "totals", "metadata-location": FILE}
    made = intent(Operation.REGISTER_VIEW, NAMESPACE, body)

    assert check(made, {VIEW: None}) is NOT_APPLIED
    assert check(made, {VIEW: loaded(view_metadata(), FILE)}) is APPLIED
    assert check(made, {VIEW: loaded(view_metadata())}) is INCOMPATIBLE


# --- Commits --------------------------------------------------------------------------------

SET_OWNER = {"action": "set-properties", "updates": {"owner": "bo"}}
KEEP_OWNER = {"action": "set-properties", "updates": {"owner": "ana"}}
ADD_SNAPSHOT = {"action": "add-snapshot", "snapshot": {"snapshot-id": 12}}
ASSIGN_UUID = {"action": "assign-uuid", "uuid": TABLE_UUID}
ASSERT_CREATE = {"type": "assert-create"}
WITH_SNAPSHOT = table_metadata(snapshots=[{"snapshot-id": 11}, {"snapshot-id": 12}])
RECREATED = table_metadata(table_uuid=OTHER_UUID)


def check_commit(metadata: Json | None, updates: list[Json], *requirements: Json) -> Verdict:
    body = {"requirements": list(requirements), "updates": updates}
    state = {TABLE: loaded(metadata) if metadata is not None else None}
    return check(intent(Operation.COMMIT_TABLE, TABLE, body), state)


def test_a_commit_to_a_table_that_is_gone() -> None:
    assert check_commit(None, [KEEP_OWNER]) is NOT_APPLIED
    assert check_commit(None, []) is NOT_APPLIED


def test_a_commit_to_a_table_that_is_another_by_now() -> None:
    same = {"type": "assert-table-uuid", "uuid": TABLE_UUID.upper()}

    assert check_commit(table_metadata(), [KEEP_OWNER], same) is APPLIED
    assert check_commit(table_metadata(), [SET_OWNER], same) is NOT_APPLIED
    assert check_commit(RECREATED, [KEEP_OWNER], same) is INCOMPATIBLE
    assert check_commit(RECREATED, [], same) is INCOMPATIBLE
    assert check_commit(RECREATED, [KEEP_OWNER]) is APPLIED


def test_a_commit_that_gives_the_table_another_uuid() -> None:
    was = {"type": "assert-table-uuid", "uuid": OTHER_UUID}

    assert check_commit(table_metadata(), [ASSIGN_UUID], was) is APPLIED
    assert check_commit(RECREATED, [ASSIGN_UUID], was) is NOT_APPLIED
    # Outside of a create it may have had that one before.
    assert check_commit(table_metadata(), [ASSIGN_UUID, SET_OWNER]) is NOT_APPLIED


def test_a_table_without_uuid_is_not_another() -> None:
    same = {"type": "assert-table-uuid", "uuid": TABLE_UUID}

    for updates in ([SET_OWNER], [ASSIGN_UUID]):
        assert check_commit(table_metadata(table_uuid=None), updates, same) is NOT_APPLIED


@pytest.mark.parametrize(
    ("metadata", "updates", "expected"),
    [
        (None, [ASSIGN_UUID, SET_OWNER], NOT_APPLIED),
        (table_metadata(), [ASSIGN_UUID, KEEP_OWNER], APPLIED),
        # Its owner was changed since, and yet it is the table that was staged.
        (table_metadata(), [ASSIGN_UUID, SET_OWNER], APPLIED),
        (WITH_SNAPSHOT, [ASSIGN_UUID, ADD_SNAPSHOT], APPLIED),
        (table_metadata(), [ASSIGN_UUID, ADD_SNAPSHOT], INCOMPATIBLE),
        (RECREATED, [ASSIGN_UUID, KEEP_OWNER], INCOMPATIBLE),
        ({**WITH_SNAPSHOT, "table-uuid": OTHER_UUID}, [ASSIGN_UUID, ADD_SNAPSHOT], INCOMPATIBLE),
        (table_metadata(), [KEEP_OWNER], APPLIED),
        (table_metadata(), [SET_OWNER], INCOMPATIBLE),
        (WITH_SNAPSHOT, [ADD_SNAPSHOT], APPLIED),
        (table_metadata(), [ADD_SNAPSHOT], INCOMPATIBLE),
        (table_metadata(), [], NOT_APPLIED),
        (table_metadata(), [KEEP_OWNER, {"action": "unheard-of"}], INCOMPATIBLE),
        (table_metadata(), [ASSIGN_UUID, {"action": "unheard-of"}], APPLIED),
    ],
)
def test_committing_a_staged_table(
    metadata: Json | None, updates: list[Json], expected: Verdict
) -> None:
    assert check_commit(metadata, updates, ASSERT_CREATE) is expected


def test_replacing_a_view() -> None:
    body = {
        "requirements": [{"type": "assert-view-uuid", "uuid": VIEW_UUID}],
        "updates": [{"action": "add-view-version", "view-version": NEXT_VERSION}],
    }
    made = intent(Operation.REPLACE_VIEW, VIEW, body)
    replaced = {"versions": [VERSION, NEXT_VERSION]}

    assert check(made, {VIEW: None}) is NOT_APPLIED
    assert check(made, {VIEW: loaded(view_metadata())}) is NOT_APPLIED
    assert check(made, {VIEW: loaded(view_metadata(**replaced))}) is APPLIED
    another = view_metadata(**replaced, view_uuid=OTHER_UUID)
    assert check(made, {VIEW: loaded(another)}) is INCOMPATIBLE


# --- Transactions ---------------------------------------------------------------------------

SAME = {"type": "assert-table-uuid", "uuid": TABLE_UUID}
PROVEN = (WITH_SNAPSHOT, [ADD_SNAPSHOT])
REFUTED = (table_metadata(), [ADD_SNAPSHOT])
EITHER = (table_metadata(), [KEEP_OWNER])
MISSING = (table_metadata(), [SET_OWNER])
GONE = (None, [KEEP_OWNER])
EMPTY = (table_metadata(), [])
ANOTHER = (RECREATED, [KEEP_OWNER])


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ([PROVEN, PROVEN], APPLIED),
        ([REFUTED, REFUTED], NOT_APPLIED),
        ([MISSING, REFUTED], NOT_APPLIED),
        ([GONE, MISSING], NOT_APPLIED),
        ([EITHER, EITHER], APPLIED),
        ([PROVEN, EITHER], APPLIED),
        ([EITHER, REFUTED], NOT_APPLIED),
        ([EITHER, MISSING], NOT_APPLIED),
        ([EMPTY, PROVEN], APPLIED),
        ([EMPTY, REFUTED], NOT_APPLIED),
        ([EMPTY, EITHER], APPLIED),
        ([EMPTY, EMPTY], NOT_APPLIED),
        ([], NOT_APPLIED),
        ([PROVEN, REFUTED], INCOMPATIBLE),
        ([PROVEN, MISSING], INCOMPATIBLE),
        ([PROVEN, GONE], INCOMPATIBLE),
        ([EITHER, PROVEN, REFUTED], INCOMPATIBLE),
        ([PROVEN, ANOTHER], INCOMPATIBLE),
        ([REFUTED, ANOTHER], INCOMPATIBLE),
        ([EITHER, ANOTHER], INCOMPATIBLE),
    ],
)
def test_a_transaction_is_made_in_all_its_tables_or_in_none(
    tables: list[tuple[Json | None, list[Json]]], expected: Verdict
) -> None:
    names = [Target(Kind.TABLE, ("sales",), f"t{number}") for number in range(len(tables))]
    changes = [
        {
            "identifier": {"namespace": ["sales"], "name": name.name},
            "requirements": [SAME],
            "updates": updates,
        }
        for name, (_, updates) in zip(names, tables, strict=True)
    ]
    state = {
        name: loaded(metadata) if metadata is not None else None
        for name, (metadata, _) in zip(names, tables, strict=True)
    }
    made = intent(Operation.COMMIT_TRANSACTION, ROOT, {"table-changes": changes})

    assert check(made, state) is expected


# --- Drops and renames ----------------------------------------------------------------------

HERE = loaded(table_metadata())
ANOTHER_HERE = loaded(table_metadata(table_uuid=OTHER_UUID))
KNOWN = {"exists": True, "uuid": TABLE_UUID}


@pytest.mark.parametrize(
    ("operation", "target", "here", "another"),
    [
        (Operation.DROP_TABLE, TABLE, HERE, ANOTHER_HERE),
        (
            Operation.DROP_VIEW,
            VIEW,
            loaded(view_metadata(view_uuid=TABLE_UUID)),
            loaded(view_metadata(view_uuid=OTHER_UUID)),
        ),
    ],
)
def test_dropping_a_table_or_view(
    operation: Operation, target: Target, here: Json, another: Json
) -> None:
    def verdict(present: Json | None, **before: Any) -> Verdict:
        return check(intent(operation, target, {}, **before), {target: present})

    assert verdict(None, **KNOWN) is APPLIED
    assert verdict(None) is APPLIED
    assert verdict(None, exists=False) is NOT_APPLIED
    assert verdict(here, **KNOWN) is NOT_APPLIED
    assert verdict(here) is NOT_APPLIED
    assert verdict(another, **KNOWN) is APPLIED
    assert verdict(another, exists=True) is NOT_APPLIED
    assert verdict(loaded({}), **KNOWN) is NOT_APPLIED


def test_dropping_a_namespace() -> None:
    here = {"namespace": ["sales"], "properties": {}}

    def verdict(present: Json | None, **before: Any) -> Verdict:
        return check(
            intent(Operation.DROP_NAMESPACE, NAMESPACE, {}, **before), {NAMESPACE: present}
        )

    assert verdict(None, exists=True) is APPLIED
    assert verdict(None) is APPLIED
    assert verdict(None, exists=False) is NOT_APPLIED
    assert verdict(here, exists=True) is NOT_APPLIED


@pytest.mark.parametrize(
    ("source", "destination", "before", "expected"),
    [
        (None, HERE, KNOWN, APPLIED),
        (None, HERE, {"exists": True}, APPLIED),
        (None, HERE, {}, APPLIED),
        (None, HERE, {"exists": False}, NOT_APPLIED),
        (HERE, None, KNOWN, NOT_APPLIED),
        (HERE, None, {}, NOT_APPLIED),
        (HERE, ANOTHER_HERE, KNOWN, NOT_APPLIED),
        # Renamed, and then somebody took the old name.
        (ANOTHER_HERE, HERE, KNOWN, APPLIED),
        (ANOTHER_HERE, None, KNOWN, INCOMPATIBLE),
        (None, None, KNOWN, INCOMPATIBLE),
        (None, None, {"exists": False}, NOT_APPLIED),
        (None, None, {}, NOT_APPLIED),
        (None, ANOTHER_HERE, KNOWN, INCOMPATIBLE),
    ],
)
def test_renaming_a_table(
    source: Json | None, destination: Json | None, before: Json, expected: Verdict
) -> None:
    body = {
        "source": {"namespace": ["sales"], "name": "orders"},
        "destination": {"namespace": ["archive"], "name": "orders"},
    }
    made = intent(Operation.RENAME_TABLE, ROOT, body, **before)

    assert check(made, {TABLE: source, MOVED_TABLE: destination}) is expected


def test_renaming_a_view() -> None:
    body = {
        "source": {"namespace": ["sales"], "name": "totals"},
        "destination": {"namespace": ["archive"], "name": "totals"},
    }
    made = intent(Operation.RENAME_VIEW, ROOT, body, exists=True, uuid=VIEW_UUID)
    view = loaded(view_metadata())

    assert check(made, {VIEW: None, MOVED_VIEW: view}) is APPLIED
    assert check(made, {VIEW: view, MOVED_VIEW: None}) is NOT_APPLIED


# --- Properties of a namespace --------------------------------------------------------------


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ({"owner": "bo", "s3.secret-access-key": "hunter2", "more": "1"}, APPLIED),
        ({"owner": "bo", "s3.secret-access-key": "hunter3"}, NOT_APPLIED),
        ({"owner": "ana", "s3.secret-access-key": "hunter2"}, NOT_APPLIED),
        ({"owner": "bo", "s3.secret-access-key": "hunter2", "old": "1"}, NOT_APPLIED),
        ({"owner": "bo"}, NOT_APPLIED),
        (None, NOT_APPLIED),
    ],
)
def test_updating_the_properties_of_a_namespace(present: Json | None, expected: Verdict) -> None:
    body = {"updates": {"owner": "bo", "s3.secret-access-key": "hunter2"}, "removals": ["old"]}
    state = {
        NAMESPACE: None if present is None else {"namespace": ["sales"], "properties": present}
    }

    assert check(intent(Operation.UPDATE_NAMESPACE, NAMESPACE, body), state) is expected


# --- Answers --------------------------------------------------------------------------------

LOADED_TABLE = {
    **loaded(table_metadata(), FILE),
    "storage-credentials": [{"prefix": "s3://lake", "config": {}}],
    "etag-of-the-load": "x",
}
LOADED_VIEW = {**loaded(view_metadata(), FILE), "etag-of-the-load": "x"}
RENAME = {
    "source": {"namespace": ["sales"], "name": "orders"},
    "destination": {"namespace": ["archive"], "name": "orders"},
}
COMMITTED = {"metadata-location", "metadata"}
REGISTRATION = {"name": "orders", "metadata-location": FILE}
VIEW_REGISTRATION = {"name": "totals", "metadata-location": FILE}
COMMIT = {"updates": [KEEP_OWNER]}

CREATE_SIMPLE = {"name": "orders", "schema": SCHEMA}


@pytest.mark.parametrize(
    ("operation", "target", "body", "fields"),
    [
        (
            Operation.CREATE_TABLE,
            NAMESPACE,
            CREATE_SIMPLE,
            {*COMMITTED, "config", "storage-credentials"},
        ),
        (
            Operation.REGISTER_TABLE,
            NAMESPACE,
            REGISTRATION,
            {*COMMITTED, "config", "storage-credentials"},
        ),
        (Operation.COMMIT_TABLE, TABLE, COMMIT, COMMITTED),
        (Operation.CREATE_VIEW, NAMESPACE, ASKED_VIEW, {*COMMITTED, "config"}),
        (Operation.REGISTER_VIEW, NAMESPACE, VIEW_REGISTRATION, {*COMMITTED, "config"}),
        (Operation.REPLACE_VIEW, VIEW, COMMIT, {*COMMITTED, "config"}),
    ],
)
def test_the_answer_is_what_the_catalog_loads(
    operation: Operation, target: Target, body: Json, fields: set[str]
) -> None:
    made = intent(operation, target, body)
    present = LOADED_VIEW if made.targets == (VIEW,) else LOADED_TABLE
    state = {made.targets[0]: present}
    assert check(made, state) is APPLIED

    answer = answer_of(made, state)

    assert answer.status == 200
    assert answer.body == {name: present[name] for name in fields}


def test_a_load_without_credentials_makes_an_answer_without() -> None:
    made = intent(Operation.CREATE_TABLE, NAMESPACE, CREATE_SIMPLE)
    present = {"metadata-location": FILE, "metadata": table_metadata()}

    assert answer_of(made, {TABLE: present}).body == present


def test_the_answers_about_namespaces() -> None:
    present = {"namespace": ["sales"], "properties": {"owner": "bo", "location": "s3://x"}}
    create = intent(Operation.CREATE_NAMESPACE, ROOT, {"namespace": ["sales"]})
    changes = {"updates": {"owner": "bo"}, "removals": ["old", "older"]}
    update = intent(Operation.UPDATE_NAMESPACE, NAMESPACE, changes)

    created, updated = (answer_of(made, {NAMESPACE: present}) for made in (create, update))

    assert (created.status, created.body) == (200, present)
    assert (updated.status, updated.body) == (
        200,
        {"updated": ["owner"], "removed": ["old", "older"], "missing": []},
    )


@pytest.mark.parametrize(
    ("operation", "target", "body"),
    [
        (Operation.DROP_TABLE, TABLE, {}),
        (Operation.DROP_VIEW, VIEW, {}),
        (Operation.DROP_NAMESPACE, NAMESPACE, {}),
        (Operation.RENAME_TABLE, ROOT, RENAME),
        (Operation.RENAME_VIEW, ROOT, RENAME),
        (Operation.COMMIT_TRANSACTION, ROOT, {"table-changes": []}),
    ],
)
def test_the_answer_to_what_leaves_nothing_to_show(
    operation: Operation, target: Target, body: Json
) -> None:
    made = intent(operation, target, body)

    answer = answer_of(made, dict.fromkeys(made.targets))

    assert (answer.status, answer.body) == (204, None)


def test_there_is_no_answer_without_what_it_shows() -> None:
    made = intent(Operation.CREATE_TABLE, NAMESPACE, CREATE_SIMPLE)

    with pytest.raises(LookupError, match=r"sales\.orders is not there"):
        answer_of(made, {TABLE: None})


def test_partitions_and_sorting_by_default_are_none() -> None:
    partitioned = table_metadata(partition_specs=[DAY_SPEC], default_spec_id=1)
    ordered = table_metadata(sort_orders=[ID_ORDER], default_sort_order_id=1)

    assert check_table(CREATE_SIMPLE, table_metadata()) is APPLIED
    assert check_table(CREATE_SIMPLE, partitioned) is INCOMPATIBLE
    assert check_table(CREATE_SIMPLE, ordered) is INCOMPATIBLE
