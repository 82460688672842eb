"""What each update of the REST spec states, and when metadata shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import TypeAdapter
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import TableUpdate, update_table_metadata

from moraine.gateway.commits import _TABLE_ACTIONS, _VIEW_ACTIONS
from moraine.gateway.model import Verdict
from support.iceberg_bodies import (
    OTHER_UUID,
    SCHEMA,
    VIEW,
    WIDER_SCHEMA,
    table_metadata,
    view_metadata,
)
from support.iceberg_updates import (
    ADD_ORDER,
    ADD_SNAPSHOT,
    ADD_SPEC,
    ADD_VERSION,
    ADD_WIDER,
    BOTH_VERSIONS,
    SET_STATISTICS,
    TAG,
)
from support.intents import verdict

Json = dict[str, Any]

PARTITION_STATISTICS = {
    "snapshot-id": 11,
    "statistics-path": "s3://lake/p.parquet",
    "file-size-in-bytes": 10,
}
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
