"""What each update of the REST spec states, and when metadata shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import TableUpdate, update_table_metadata

from moraine.gateway.checks import check
from moraine.gateway.effects import _TABLE_ACTIONS, _VIEW_ACTIONS
from moraine.gateway.intents import intent_of
from moraine.gateway.model import Intent, Operation, Target, Verdict
from support.iceberg_bodies import (
    DAY_SPEC,
    ID_FIELD,
    ID_ORDER,
    NEXT_VERSION,
    NOTE_FIELD,
    OTHER_UUID,
    SCHEMA,
    TABLE,
    VERSION,
    VIEW,
    WIDER_SCHEMA,
    loaded,
    table_metadata,
    view_metadata,
)

Json = dict[str, Any]


def intent(*updates: Json, target: Target = TABLE) -> Intent:
    operation = Operation.COMMIT_TABLE if target is TABLE else Operation.REPLACE_VIEW
    made = intent_of(operation, target, {"requirements": [], "updates": list(updates)})
    return Intent.from_json(json.loads(json.dumps(made.to_json())))


def verdict(metadata: Json, *updates: Json, target: Target = TABLE) -> Verdict:
    return check(intent(*updates, target=target), {target: loaded(metadata)})


def snapshot(snapshot_id: int) -> Json:
    return {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": 11,
        "sequence-number": 2,
        "timestamp-ms": 1_700_000_100_000,
        "manifest-list": f"s3://lake/sales/orders/metadata/snap-{snapshot_id}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }


def statistics(path: str = "s3://lake/a.puffin") -> Json:
    return {
        "snapshot-id": 11,
        "statistics-path": path,
        "file-size-in-bytes": 10,
        "file-footer-size-in-bytes": 2,
        "blob-metadata": [],
    }


PARTITION_STATISTICS = {
    "snapshot-id": 11,
    "statistics-path": "s3://lake/p.parquet",
    "file-size-in-bytes": 10,
}
ADD_WIDER = {"action": "add-schema", "schema": WIDER_SCHEMA}
ADD_SPEC = {"action": "add-spec", "spec": DAY_SPEC}
ADD_ORDER = {"action": "add-sort-order", "sort-order": ID_ORDER}
ADD_SNAPSHOT = {"action": "add-snapshot", "snapshot": snapshot(12)}
TAG = {"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 11}
SET_STATISTICS = {"action": "set-statistics", "snapshot-id": 11, "statistics": statistics()}
SET_PARTITION_STATISTICS = {
    "action": "set-partition-statistics",
    "partition-statistics": PARTITION_STATISTICS,
}

# The updates of one commit, and those that have to be made before it so that it can be.
REAL_COMMITS: dict[str, tuple[list[Json], list[Json]]] = {
    "assign-uuid": ([{"action": "assign-uuid", "uuid": OTHER_UUID}], []),
    "upgrade-format-version": ([{"action": "upgrade-format-version", "format-version": 2}], []),
    "add-schema": ([ADD_WIDER], []),
    "set-current-schema": ([{"action": "set-current-schema", "schema-id": 1}], [ADD_WIDER]),
    "set-current-schema, the last added": (
        [ADD_WIDER, {"action": "set-current-schema", "schema-id": -1}],
        [],
    ),
    "add-spec": ([ADD_SPEC], []),
    "set-default-spec": ([{"action": "set-default-spec", "spec-id": 1}], [ADD_SPEC]),
    "set-default-spec, the last added": (
        [ADD_SPEC, {"action": "set-default-spec", "spec-id": -1}],
        [],
    ),
    "add-sort-order": ([ADD_ORDER], []),
    "set-default-sort-order": (
        [{"action": "set-default-sort-order", "sort-order-id": 1}],
        [ADD_ORDER],
    ),
    "set-default-sort-order, the last added": (
        [ADD_ORDER, {"action": "set-default-sort-order", "sort-order-id": -1}],
        [],
    ),
    "add-snapshot": ([ADD_SNAPSHOT], []),
    "add-snapshot, to a branch": (
        [
            ADD_SNAPSHOT,
            {
                "action": "set-snapshot-ref",
                "ref-name": "main",
                "type": "branch",
                "snapshot-id": 12,
            },
        ],
        [],
    ),
    "set-snapshot-ref": ([TAG], []),
    "set-snapshot-ref, with retention": (
        [
            {
                "action": "set-snapshot-ref",
                "ref-name": "main",
                "type": "branch",
                "snapshot-id": 11,
                "min-snapshots-to-keep": 3,
                "max-snapshot-age-ms": 1000,
                "max-ref-age-ms": 2000,
            }
        ],
        [],
    ),
    "remove-snapshots": ([{"action": "remove-snapshots", "snapshot-ids": [12]}], [ADD_SNAPSHOT]),
    "remove-snapshot-ref": ([{"action": "remove-snapshot-ref", "ref-name": "v1"}], [TAG]),
    "remove-snapshot-ref, of main": ([{"action": "remove-snapshot-ref", "ref-name": "main"}], []),
    "set-location": ([{"action": "set-location", "location": "s3://lake/elsewhere"}], []),
    "set-properties": ([{"action": "set-properties", "updates": {"owner": "bo", "a": "1"}}], []),
    "remove-properties": ([{"action": "remove-properties", "removals": ["owner"]}], []),
    "set-statistics": ([SET_STATISTICS], []),
    "remove-statistics": (
        [{"action": "remove-statistics", "snapshot-id": 11}],
        [SET_STATISTICS],
    ),
    "set-partition-statistics": ([SET_PARTITION_STATISTICS], []),
    "remove-partition-statistics": (
        [{"action": "remove-partition-statistics", "snapshot-id": 11}],
        [SET_PARTITION_STATISTICS],
    ),
    "remove-schemas": ([{"action": "remove-schemas", "schema-ids": [1]}], [ADD_WIDER]),
    "remove-partition-specs": ([{"action": "remove-partition-specs", "spec-ids": [1]}], [ADD_SPEC]),
}


FIRST_FORMAT = table_metadata(
    format_version=1,
    schema=SCHEMA,
    partition_spec=[],
    snapshots=[],
    refs={},
    current_snapshot_id=-1,
)


def carry_out(metadata: Json, updates: list[Json]) -> Json:
    """What PyIceberg's implementation makes of the updates, as a catalog would write it."""
    parsed = tuple(TypeAdapter(TableUpdate).validate_python(update) for update in updates)
    made = update_table_metadata(TableMetadataUtil.parse_obj(metadata), parsed)
    result: Json = json.loads(made.model_dump_json())
    return result


@pytest.mark.parametrize("name", REAL_COMMITS)
def test_metadata_written_by_pyiceberg_shows_a_commit_only_once_it_is_made(name: str) -> None:
    updates, preparation = REAL_COMMITS[name]
    # PyIceberg upgrades no further than to version 2.
    base = FIRST_FORMAT if name == "upgrade-format-version" else table_metadata()
    before = carry_out(base, preparation)

    assert verdict(before, *updates) is Verdict.NOT_APPLIED
    assert verdict(carry_out(before, updates), *updates) is Verdict.APPLIED


KEY = {"key-id": "k1", "encrypted-key-metadata": "c2VjcmV0", "encrypted-by-id": "kms"}

# What PyIceberg cannot carry out: the update, metadata with it, and metadata without.
OTHER_TABLE_UPDATES: dict[str, tuple[Json, Json, Json]] = {
    "add-encryption-key": (
        {"action": "add-encryption-key", "encryption-key": KEY},
        table_metadata(encryption_keys=[KEY]),
        table_metadata(encryption_keys=[{**KEY, "encrypted-key-metadata": "b3RoZXI="}]),
    ),
    "remove-encryption-key": (
        {"action": "remove-encryption-key", "key-id": "k1"},
        table_metadata(),
        table_metadata(encryption_keys=[KEY]),
    ),
    "enable-row-lineage": (
        {"action": "enable-row-lineage"},
        table_metadata(row_lineage=True),
        table_metadata(),
    ),
    "enable-row-lineage, which version 3 implies": (
        {"action": "enable-row-lineage"},
        table_metadata(format_version=3),
        table_metadata(row_lineage=False),
    ),
}


@pytest.mark.parametrize("name", OTHER_TABLE_UPDATES)
def test_other_table_updates(name: str) -> None:
    update, after, before = OTHER_TABLE_UPDATES[name]

    assert verdict(after, update) is Verdict.APPLIED
    assert verdict(before, update) is Verdict.NOT_APPLIED


ADD_VERSION = {"action": "add-view-version", "view-version": NEXT_VERSION}
BOTH_VERSIONS = [VERSION, NEXT_VERSION]

VIEW_UPDATES: dict[str, tuple[list[Json], Json]] = {
    "assign-uuid": (
        [{"action": "assign-uuid", "uuid": OTHER_UUID.upper()}],
        view_metadata(view_uuid=OTHER_UUID),
    ),
    "upgrade-format-version": (
        [{"action": "upgrade-format-version", "format-version": 2}],
        view_metadata(format_version=2),
    ),
    "add-schema": ([ADD_WIDER], view_metadata(schemas=[SCHEMA, WIDER_SCHEMA])),
    "set-location": (
        [{"action": "set-location", "location": "s3://lake/elsewhere/"}],
        view_metadata(location="s3://lake/elsewhere"),
    ),
    "set-properties": (
        [{"action": "set-properties", "updates": {"owner": "bo"}}],
        view_metadata(properties={"owner": "bo"}),
    ),
    "remove-properties": (
        [{"action": "remove-properties", "removals": ["owner"]}],
        view_metadata(properties={}),
    ),
    "add-view-version": ([ADD_VERSION], view_metadata(versions=BOTH_VERSIONS)),
    "set-current-view-version": (
        [{"action": "set-current-view-version", "view-version-id": 2}],
        view_metadata(versions=BOTH_VERSIONS, current_version_id=2),
    ),
}


@pytest.mark.parametrize("name", VIEW_UPDATES)
def test_view_updates(name: str) -> None:
    updates, after = VIEW_UPDATES[name]

    assert verdict(after, *updates, target=VIEW) is Verdict.APPLIED
    assert verdict(view_metadata(), *updates, target=VIEW) is Verdict.NOT_APPLIED


def test_every_action_is_tried() -> None:
    tried = {name.split(",")[0] for name in {**REAL_COMMITS, **OTHER_TABLE_UPDATES}}

    assert tried == set(_TABLE_ACTIONS)
    assert set(VIEW_UPDATES) == set(_VIEW_ACTIONS)


def test_an_action_is_read_in_any_case_of_letters() -> None:
    update = {"action": "SET-LOCATION", "location": "s3://lake/sales/orders"}

    assert verdict(table_metadata(), update) is Verdict.APPLIED


def test_property_updates_are_read_by_their_old_names() -> None:
    updates = (
        {"action": "set-properties", "updated": {"a": "1"}},
        {"action": "remove-properties", "removed": ["owner"]},
    )

    assert verdict(table_metadata(properties={"a": "1"}), *updates) is Verdict.APPLIED
    assert verdict(table_metadata(properties={"a": "2"}), *updates) is Verdict.NOT_APPLIED
    assert verdict(table_metadata(), *updates) is Verdict.NOT_APPLIED


# --- Ids that servers assign anew -----------------------------------------------------------


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


# --- Several updates ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("updates", "metadata"),
    [
        (
            [
                {"action": "set-properties", "updates": {"owner": "bo"}},
                {"action": "set-properties", "updates": {"owner": "ana"}},
            ],
            table_metadata(),
        ),
        (
            [
                {"action": "set-properties", "updates": {"owner": "bo"}},
                {"action": "remove-properties", "removals": ["owner"]},
            ],
            table_metadata(properties={}),
        ),
        (
            [TAG, {"action": "remove-snapshot-ref", "ref-name": "v1"}],
            table_metadata(),
        ),
        (
            [
                {"action": "set-location", "location": "s3://lake/x"},
                {"action": "set-location", "location": "s3://lake/sales/orders"},
            ],
            table_metadata(),
        ),
        (
            [
                ADD_WIDER,
                {"action": "set-current-schema", "schema-id": -1},
                {"action": "set-current-schema", "schema-id": 0},
            ],
            table_metadata(schemas=[SCHEMA, WIDER_SCHEMA]),
        ),
        (
            [
                ADD_SNAPSHOT,
                {"action": "remove-snapshots", "snapshot-ids": [12]},
            ],
            table_metadata(),
        ),
    ],
)
def test_the_later_of_two_contradicting_updates_wins(updates: list[Json], metadata: Json) -> None:
    assert verdict(metadata, *updates) is Verdict.APPLIED
    if updates[0] is not ADD_WIDER:
        assert verdict(metadata, *reversed(updates)) is Verdict.NOT_APPLIED


def test_every_update_of_a_commit_must_show() -> None:
    updates = (
        {"action": "set-properties", "updates": {"owner": "ana"}},
        {"action": "set-location", "location": "s3://lake/elsewhere"},
    )

    assert verdict(table_metadata(), *updates) is Verdict.NOT_APPLIED
    assert verdict(table_metadata(location="s3://lake/elsewhere"), *updates) is Verdict.APPLIED


def test_a_property_too_long_or_too_secret_to_be_kept_is_still_compared() -> None:
    values = {"comment": "x" * 5000, "s3.secret-access-key": "hunter2", "odd": "sha256:abc"}
    update = {"action": "set-properties", "updates": values}

    assert verdict(table_metadata(properties=values), update) is Verdict.APPLIED
    for name in values:
        changed = {**values, name: values[name] + "!"}
        assert verdict(table_metadata(properties=changed), update) is Verdict.NOT_APPLIED


def test_a_value_does_not_pass_for_another_by_looking_like_its_digest() -> None:
    update = {"action": "set-properties", "updates": {"comment": "x" * 5000}}
    digest = intent(update).effect["facts"]["property"]["comment"]

    assert verdict(table_metadata(properties={"comment": digest}), update) is Verdict.NOT_APPLIED


# --- Proofs ---------------------------------------------------------------------------------


def test_snapshots_prove_a_commit_whatever_came_after_it() -> None:
    updates = (
        ADD_SNAPSHOT,
        {"action": "add-snapshot", "snapshot": snapshot(13)},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 13},
        {"action": "set-properties", "updates": {"owner": "bo"}},
        SET_STATISTICS,
    )
    first, second, later = snapshot(12), snapshot(13), snapshot(14)

    assert verdict(table_metadata(snapshots=[first, second, later]), *updates) is Verdict.APPLIED
    assert verdict(table_metadata(snapshots=[first, later]), *updates) is Verdict.INCOMPATIBLE
    assert verdict(table_metadata(), *updates) is Verdict.NOT_APPLIED
    # The statistics are there, say because another commit has named the same file.
    metadata = table_metadata(statistics=[statistics()])
    assert verdict(metadata, *updates) is Verdict.NOT_APPLIED


def test_what_is_not_there_proves_nothing() -> None:
    updates = (
        {"action": "remove-snapshots", "snapshot-ids": [12]},
        {"action": "remove-statistics", "snapshot-id": 12},
        {"action": "set-properties", "updates": {"owner": "bo"}},
    )

    assert verdict(table_metadata(), *updates) is Verdict.NOT_APPLIED
    assert verdict(table_metadata(properties={"owner": "bo"}), *updates) is Verdict.APPLIED


def test_a_statistics_file_proves_a_commit() -> None:
    updates = (SET_STATISTICS, {"action": "set-properties", "updates": {"owner": "bo"}})

    assert verdict(table_metadata(statistics=[statistics()]), *updates) is Verdict.APPLIED
    others = table_metadata(statistics=[statistics("s3://lake/b.puffin")])
    assert verdict(others, *updates) is Verdict.NOT_APPLIED


def test_a_view_version_proves_a_commit_if_it_was_made_at_that_time() -> None:
    updates = (ADD_VERSION, {"action": "set-current-view-version", "view-version-id": -1})
    replaced_since = view_metadata(versions=BOTH_VERSIONS, current_version_id=1)
    made_at_another_time = view_metadata(
        versions=[VERSION, {**NEXT_VERSION, "timestamp-ms": 7}], current_version_id=1
    )

    assert verdict(replaced_since, *updates, target=VIEW) is Verdict.APPLIED
    assert verdict(made_at_another_time, *updates, target=VIEW) is Verdict.NOT_APPLIED


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


UNKNOWN = {"action": "set-colour", "colour": "red"}


@pytest.mark.parametrize(
    ("updates", "metadata", "expected"),
    [
        ([UNKNOWN], table_metadata(), Verdict.NOT_APPLIED),
        (
            [UNKNOWN, {"action": "set-properties", "updates": {"owner": "ana"}}],
            table_metadata(),
            Verdict.NOT_APPLIED,
        ),
        ([UNKNOWN, ADD_SNAPSHOT], table_metadata(snapshots=[snapshot(12)]), Verdict.APPLIED),
        ([UNKNOWN, ADD_SNAPSHOT], table_metadata(), Verdict.NOT_APPLIED),
        ([], table_metadata(), Verdict.NOT_APPLIED),
    ],
)
def test_an_unknown_action_is_never_taken_for_applied(
    updates: list[Json], metadata: Json, expected: Verdict
) -> None:
    assert verdict(metadata, *updates) is expected


def test_an_action_of_tables_is_unknown_to_views() -> None:
    update = {"action": "remove-snapshots", "snapshot-ids": [12]}

    assert verdict(table_metadata(), update) is Verdict.APPLIED
    assert verdict(view_metadata(), update, target=VIEW) is Verdict.NOT_APPLIED
    assert intent(ADD_VERSION).effect == {"facts": {}, "unknown": ["add-view-version"]}


def test_a_dropped_column_added_again_under_its_name_is_another_column() -> None:
    again = {**WIDER_SCHEMA, "fields": [*SCHEMA["fields"], {**NOTE_FIELD, "id": 4}]}
    update = {"action": "add-schema", "schema": again}

    assert verdict(table_metadata(schemas=[WIDER_SCHEMA]), update) is Verdict.NOT_APPLIED
    assert verdict(table_metadata(schemas=[again]), update) is Verdict.APPLIED
