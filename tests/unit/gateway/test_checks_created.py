"""What a look at the catalog says of a table, view or namespace whose create lost its answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import SortOrder

from moraine.gateway.checks import answer_of, check
from moraine.gateway.model import Verdict
from moraine.iceberg.endpoints import Endpoint
from support.iceberg_bodies import (
    ASKED_VIEW,
    CREATE_SIMPLE,
    DAY_FIELD,
    DAY_SPEC,
    FILE,
    ID_FIELD,
    ID_ORDER,
    NAMESPACE,
    NEXT_VERSION,
    ROOT,
    SCHEMA,
    TABLE,
    VERSION,
    VIEW,
    WIDER_SCHEMA,
    loaded,
    table_metadata,
    view_metadata,
)
from support.intents import intent

Json = dict[str, Any]

APPLIED, NOT_APPLIED, INCOMPATIBLE = Verdict

# --- Creating tables ------------------------------------------------------------------------

# Ids as a client generates them; a server renumbers the columns, from the outside in.
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


def created(asked: Json = ASKED) -> Json:
    """What a catalog makes of the request, by PyIceberg's implementation."""
    made = new_table_metadata(
        Schema.model_validate(asked["schema"]),
        PartitionSpec.model_validate(asked["partition-spec"]),
        SortOrder.model_validate(asked["write-order"]),
        location=asked["location"].rstrip("/"),
        properties={**asked["properties"], "added.by": "server"},
    )
    metadata: Json = json.loads(made.model_dump_json())
    metadata["properties"].pop("format-version", None)
    return metadata


def check_table(asked: Json, metadata: Json | None, **before: Any) -> Verdict:
    state = {TABLE: loaded(metadata) if metadata is not None else None}
    return check(intent(Endpoint.CREATE_TABLE, NAMESPACE, asked, **before), state)


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


def test_partitions_and_sorting_by_default_are_none() -> None:
    partitioned = table_metadata(partition_specs=[DAY_SPEC], default_spec_id=1)
    ordered = table_metadata(sort_orders=[ID_ORDER], default_sort_order_id=1)

    assert check_table(CREATE_SIMPLE, table_metadata()) is APPLIED
    assert check_table(CREATE_SIMPLE, partitioned) is INCOMPATIBLE
    assert check_table(CREATE_SIMPLE, ordered) is INCOMPATIBLE


# --- Creating views and namespaces ----------------------------------------------------------


def check_view(asked: Json, metadata: Json | None, **before: Any) -> Verdict:
    state = {VIEW: loaded(metadata) if metadata is not None else None}
    return check(intent(Endpoint.CREATE_VIEW, NAMESPACE, asked, **before), state)


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

    assert check(intent(Endpoint.CREATE_NAMESPACE, ROOT, body, **before), state) is expected


def test_a_namespace_of_a_catalog_without_properties() -> None:
    made = intent(Endpoint.CREATE_NAMESPACE, ROOT, {"namespace": ["sales"]})
    state = {NAMESPACE: {"namespace": ["sales"], "properties": None}}

    assert check(made, state) is APPLIED
    assert answer_of(made, state).body == {"namespace": ["sales"], "properties": {}}


# --- Registering ----------------------------------------------------------------------------

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

    made = intent(Endpoint.REGISTER_TABLE, NAMESPACE, body, **before)

    assert check(made, {TABLE: present}) is expected


def test_registering_a_view() -> None:
    body = {"name": "totals", "metadata-location": FILE}
    made = intent(Endpoint.REGISTER_VIEW, NAMESPACE, body)

    assert check(made, {VIEW: None}) is NOT_APPLIED
    assert check(made, {VIEW: loaded(view_metadata(), FILE)}) is APPLIED
    assert check(made, {VIEW: loaded(view_metadata())}) is INCOMPATIBLE
