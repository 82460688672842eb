"""Updates and metadata are compared by content, because servers assign their own ids."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moraine.gateway.model import Verdict
from support.iceberg_bodies import (
    DAY_SPEC,
    ID_FIELD,
    ID_ORDER,
    NEXT_VERSION,
    NOTE_FIELD,
    SCHEMA,
    VERSION,
    VIEW,
    WIDER_SCHEMA,
    table_metadata,
    view_metadata,
)
from support.iceberg_updates import ADD_ORDER, ADD_SPEC, ADD_VERSION, ADD_WIDER
from support.intents import verdict

Json = dict[str, Any]


def renumbered(item: Json, name: str, own_id: int) -> Json:
    return {**item, name: own_id}


@pytest.mark.parametrize("chosen", [-1, 1], ids=["the last added", "by the client's id"])
def test_a_current_schema_is_known_by_its_content_when_the_server_gives_it_another_id(
    chosen: int,
) -> None:
    updates = (ADD_WIDER, {"action": "set-current-schema", "schema-id": chosen})
    others = {"type": "struct", "schema-id": 1, "fields": [ID_FIELD]}
    schemas = [SCHEMA, others, renumbered(WIDER_SCHEMA, "schema-id", 7)]

    assert verdict(table_metadata(schemas=schemas, current_schema_id=7), *updates) == "applied"
    assert verdict(table_metadata(schemas=schemas, current_schema_id=1), *updates) == "not applied"


@pytest.mark.parametrize("chosen", [-1, 1])
def test_so_are_a_default_spec_and_a_default_sort_order(chosen: int) -> None:
    updates = (
        ADD_SPEC,
        {"action": "set-default-spec", "spec-id": chosen},
        ADD_ORDER,
        {"action": "set-default-sort-order", "sort-order-id": chosen},
    )
    specs = [{"spec-id": 1, "fields": []}, renumbered(DAY_SPEC, "spec-id", 7)]
    orders = [{"order-id": 1, "fields": []}, renumbered(ID_ORDER, "order-id", 7)]
    shown = {"partition_specs": specs, "sort_orders": orders}

    after = table_metadata(**shown, default_spec_id=7, default_sort_order_id=7)
    assert verdict(after, *updates) is Verdict.APPLIED
    for half in ({"default_spec_id": 1, "default_sort_order_id": 7}, {"default_spec_id": 7}):
        assert verdict(table_metadata(**shown, **half), *updates) is Verdict.NOT_APPLIED


@pytest.mark.parametrize("chosen", [-1, 2])
def test_so_is_a_current_view_version(chosen: int) -> None:
    # A server that had the same version already keeps that one, with its older timestamp.
    kept = {**NEXT_VERSION, "version-id": 9, "timestamp-ms": 5, "summary": {}}
    updates = (ADD_VERSION, {"action": "set-current-view-version", "view-version-id": chosen})
    versions = [VERSION, kept]

    after = view_metadata(versions=versions, current_version_id=9)
    assert verdict(after, *updates, target=VIEW) is Verdict.APPLIED
    before = view_metadata(versions=versions, current_version_id=1)
    assert verdict(before, *updates, target=VIEW) is Verdict.NOT_APPLIED


def test_the_last_added_of_nothing_is_never_current() -> None:
    update = {"action": "set-current-schema", "schema-id": -1}

    assert verdict(table_metadata(), update) is Verdict.NOT_APPLIED


NESTED = {
    "type": "struct",
    "fields": [
        {
            "id": 1,
            "name": "tags",
            "required": True,
            "type": {
                "type": "map",
                "key-id": 2,
                "key": "string",
                "value-id": 3,
                "value-required": False,
                "value": {
                    "type": "list",
                    "element-id": 4,
                    "element-required": True,
                    "element": {
                        "type": "struct",
                        "fields": [
                            {"id": 5, "name": "n", "required": True, "type": "decimal(9,2)"}
                        ],
                    },
                },
            },
        }
    ],
    "identifier-field-ids": [1],
}


def _replace(text: str, by: str) -> Json:
    before = json.dumps(NESTED)
    after = before.replace(text, by)
    assert after != before
    changed: Json = json.loads(after)
    return changed


@pytest.mark.parametrize(
    ("text", "by", "expected"),
    [
        ("decimal(9,2)", "decimal(9, 2)", Verdict.APPLIED),
        ('"name": "tags",', '"name": "tags", "doc": null,', Verdict.APPLIED),
        ('"type": "struct", "fields": [{"id": 1', '"schema-id": 8, "fields": [{"id": 1', "applied"),
        ("decimal(9,2)", "decimal(9,3)", Verdict.NOT_APPLIED),
        ('"id": 5', '"id": 6', Verdict.NOT_APPLIED),
        ('"value-id": 3', '"value-id": 9', Verdict.NOT_APPLIED),
        ('"name": "n"', '"name": "m"', Verdict.NOT_APPLIED),
        ('"required": true, "type": "dec', '"required": false, "type": "dec', "not applied"),
        ('"element-required": true', '"element-required": false', Verdict.NOT_APPLIED),
        ('"value-required": false', '"value-required": true', Verdict.NOT_APPLIED),
        ('"key": "string"', '"key": "int"', Verdict.NOT_APPLIED),
        ('"name": "tags",', '"name": "tags", "doc": "all of them",', Verdict.NOT_APPLIED),
        ('"name": "n",', '"name": "n", "write-default": "1.00",', Verdict.NOT_APPLIED),
        ('"identifier-field-ids": [1]', '"identifier-field-ids": []', Verdict.NOT_APPLIED),
    ],
)
def test_what_makes_two_schemas_the_same(text: str, by: str, expected: Verdict) -> None:
    metadata = table_metadata(schemas=[_replace(text, by)])

    assert verdict(metadata, {"action": "add-schema", "schema": NESTED}) == expected


@pytest.mark.parametrize(
    ("update", "metadata"),
    [
        (ADD_SPEC, {"partition_specs": [{**DAY_SPEC, "fields": [change]}]})
        for change in (
            {**DAY_SPEC["fields"][0], "name": "d"},
            {**DAY_SPEC["fields"][0], "transform": "year"},
            {**DAY_SPEC["fields"][0], "source-id": 1},
        )
    ]
    + [
        (ADD_ORDER, {"sort_orders": [{**ID_ORDER, "fields": [change]}]})
        for change in (
            {**ID_ORDER["fields"][0], "direction": "desc"},
            {**ID_ORDER["fields"][0], "null-order": "nulls-last"},
        )
    ],
)
def test_what_makes_specs_and_sort_orders_different(update: Json, metadata: Json) -> None:
    assert verdict(table_metadata(**metadata), update) is Verdict.NOT_APPLIED


def test_the_ids_of_partition_fields_and_the_plural_of_source_ids_do_not_matter() -> None:
    part = {"source-ids": [2], "field-id": 1007, "name": "day", "transform": "Identity"}
    metadata = table_metadata(partition_specs=[{"spec-id": 3, "fields": [part]}])

    assert verdict(metadata, ADD_SPEC) is Verdict.APPLIED


def test_metadata_of_the_first_format_is_understood() -> None:
    metadata = {
        "format-version": 1,
        "location": "s3://lake/sales/orders",
        "schema": SCHEMA,
        "partition-spec": DAY_SPEC["fields"],
        "current-snapshot-id": 11,
    }
    main = {
        "action": "set-snapshot-ref",
        "ref-name": "main",
        "type": "branch",
        "snapshot-id": 11,
    }

    add_schema = {"action": "add-schema", "schema": SCHEMA}
    assert verdict(metadata, add_schema, ADD_SPEC, main) is Verdict.APPLIED
    no_main = {"action": "remove-snapshot-ref", "ref-name": "main"}
    assert verdict(metadata, no_main) is Verdict.NOT_APPLIED
    assert verdict({**metadata, "current-snapshot-id": -1}, no_main) is Verdict.APPLIED


def test_a_table_that_was_upgraded_further_was_upgraded() -> None:
    update = {"action": "upgrade-format-version", "format-version": 2}

    assert verdict(table_metadata(format_version=3), update) is Verdict.APPLIED
    assert verdict(table_metadata(format_version=1), update) is Verdict.NOT_APPLIED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("representations", [{"type": "sql", "sql": "SELECT 3", "dialect": "spark"}]),
        ("representations", [{"type": "sql", "sql": "SELECT 2", "dialect": "trino"}]),
        ("default-namespace", ["other"]),
        ("default-catalog", "other"),
    ],
)
def test_what_makes_view_versions_different(name: str, value: object) -> None:
    metadata = view_metadata(versions=[VERSION, {**NEXT_VERSION, name: value}])

    assert verdict(metadata, ADD_VERSION, target=VIEW) is Verdict.NOT_APPLIED


def test_a_dropped_column_added_again_under_its_name_is_another_column() -> None:
    again = {**WIDER_SCHEMA, "fields": [*SCHEMA["fields"], {**NOTE_FIELD, "id": 4}]}
    update = {"action": "add-schema", "schema": again}

    assert verdict(table_metadata(schemas=[WIDER_SCHEMA]), update) is Verdict.NOT_APPLIED
    assert verdict(table_metadata(schemas=[again]), update) is Verdict.APPLIED
