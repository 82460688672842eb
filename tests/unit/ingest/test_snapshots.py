"""Which snapshots of a table are old, and what keeps them all the same."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from moraine.ingest.tables.snapshots import ancestry, old_snapshots

MINUTE = 60_000
NOW = 1_700_000_000_000


def table(count: int = 10, **changes: Any) -> Any:
    """Snapshots 1 to `count`, a minute apart, all on the main branch and all appended."""
    metadata = {
        "format-version": 2,
        "table-uuid": "00000000-0000-0000-0000-000000000001",
        "location": "s3://lake/t",
        "last-sequence-number": count,
        "last-updated-ms": NOW,
        "last-column-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "current-snapshot-id": count,
        "snapshots": [
            snapshot(number, NOW - (count - number) * MINUTE) for number in range(1, count + 1)
        ],
        "refs": {"main": {"snapshot-id": count, "type": "branch"}},
    }
    return {**metadata, **changes}


def snapshot(number: int, at: int, operation: str = "append") -> dict[str, Any]:
    return {
        "snapshot-id": number,
        "parent-snapshot-id": number - 1 or None,
        "sequence-number": number,
        "timestamp-ms": at,
        "manifest-list": f"s3://lake/t/metadata/snap-{number}.avro",
        "summary": {"operation": operation},
    }


def old(metadata: Any, keep: int = 3) -> set[int]:
    parsed = TableMetadataUtil.parse_obj(metadata)
    return {one.snapshot_id for one in old_snapshots(parsed, keep=keep, now_ms=NOW)}


def main(**options: int) -> dict[str, Any]:
    return {"main": {"snapshot-id": 10, "type": "branch", **options}}


def test_the_newest_are_kept() -> None:
    assert old(table()) == {1, 2, 3, 4, 5, 6, 7}
    assert old(table(3)) == set()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"properties": {"gc.enabled": "false"}}, set(), id="no garbage collection"),
        pytest.param(
            {"properties": {"history.expire.min-snapshots-to-keep": "8"}}, {1, 2}, id="at least 8"
        ),
        pytest.param(
            {"properties": {"history.expire.min-snapshots-to-keep": "1"}},
            {1, 2, 3, 4, 5, 6, 7},
            id="at least 1 is fewer than are kept anyway",
        ),
        pytest.param(
            {"properties": {"history.expire.max-snapshot-age-ms": str(8 * MINUTE)}},
            {1, 2},
            id="the last eight minutes",
        ),
        pytest.param({"refs": main(**{"min-snapshots-to-keep": 9})}, {1}, id="the branch: 9"),
        pytest.param(
            {"refs": main(**{"max-snapshot-age-ms": 9 * MINUTE})}, {1}, id="the branch: its age"
        ),
        pytest.param(
            {"refs": {**main(), "v1": {"snapshot-id": 2, "type": "tag", "max-ref-age-ms": 1}}},
            {1, 3, 4, 5, 6, 7},
            id="a tag",
        ),
        pytest.param(
            {"refs": {**main(), "dev": {"snapshot-id": 5, "type": "branch"}}},
            {6, 7},
            id="a branch, with all that led to it",
        ),
    ],
)
def test_what_the_table_asks_for_is_respected(changes: Any, expected: set[int]) -> None:
    assert old(table(**changes)) == expected


def test_a_number_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="many"):
        old(table(properties={"history.expire.min-snapshots-to-keep": "many"}))


@pytest.mark.parametrize("operation", ["overwrite", "delete", "replace"])
def test_a_table_that_others_rewrite_is_left_to_them(operation: str) -> None:
    metadata = table()
    metadata["snapshots"][4] = snapshot(5, NOW, operation)
    assert old(metadata) == set()


def test_snapshots_beside_the_main_branch_stay() -> None:
    metadata = table(**{"current-snapshot-id": 8, "refs": main()})
    metadata["refs"]["main"]["snapshot-id"] = 8
    assert old(metadata) == {1, 2, 3, 4, 5}


def test_parents_in_a_circle_end_the_line() -> None:
    metadata = table(3)
    metadata["snapshots"][0]["parent-snapshot-id"] = 3
    parsed = TableMetadataUtil.parse_obj(metadata)
    assert [one.snapshot_id for one in ancestry(parsed, 3)] == [3, 2, 1]
