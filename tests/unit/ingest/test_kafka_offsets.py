"""Offsets: what is read next of a topic, and how a table records its position."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataV2

from moraine.ingest.kafka.model import (
    Bounds,
    MessagesMissing,
    OffsetsUnknown,
    Position,
    next_range,
    position_in,
    position_properties,
    position_summary,
)

NAME = "moraine.kafka.events"


def ranges(known: Position, bounds: Bounds, **changes: Any) -> tuple[dict[int, int], ...]:
    settings: dict[str, Any] = {"from_end": False, "max_messages": 100, "skip_missing": False}
    span = next_range(known, bounds, **settings | changes)
    return span.starts, span.ends


def test_a_topic_that_was_never_read_begins_at_its_first_message_or_its_end() -> None:
    bounds = Bounds({0: 5, 1: 0}, {0: 9, 1: 0})
    assert ranges(Position(), bounds) == ({0: 5, 1: 0}, {0: 9, 1: 0})
    assert ranges(Position(), bounds, from_end=True) == ({0: 9, 1: 0}, {0: 9, 1: 0})


def test_a_partition_that_was_added_is_read_from_its_beginning() -> None:
    bounds = Bounds({0: 0, 1: 0}, {0: 9, 1: 4})
    for from_end in (False, True):
        assert ranges(Position({0: 9}), bounds, from_end=from_end) == (
            {0: 9, 1: 0},
            {0: 9, 1: 4},
        )


def test_a_range_has_a_maximum_of_messages() -> None:
    bounds = Bounds({0: 0, 1: 0}, {0: 1000, 1: 50})
    assert ranges(Position({0: 10, 1: 10}), bounds) == ({0: 10, 1: 10}, {0: 110, 1: 50})


@pytest.mark.parametrize("known", [1, 20], ids=["trimmed", "shorter than it was"])
def test_missing_messages_raise_or_are_skipped(known: int) -> None:
    bounds = Bounds({0: 5}, {0: 9})
    with pytest.raises(MessagesMissing, match=f"from offset {known}, but has 5 to 9"):
        ranges(Position({0: known}), bounds)
    assert ranges(Position({0: known}), bounds, skip_missing=True) == ({0: 5}, {0: 9})


def test_a_topic_that_was_created_again_is_another() -> None:
    bounds = Bounds({0: 0}, {0: 9}, "new")
    with pytest.raises(MessagesMissing, match="created again"):
        ranges(Position({0: 3}, "old"), bounds)
    assert ranges(Position({0: 3}, "old"), bounds, skip_missing=True) == ({0: 0}, {0: 9})
    assert ranges(Position({0: 3}, ""), bounds) == ({0: 3}, {0: 9})
    assert ranges(Position({0: 3}, "old"), Bounds({0: 0}, {0: 9}, "")) == ({0: 3}, {0: 9})


def test_positions_move() -> None:
    known = Position({0: 3, 1: 8}, "a")
    assert known.moved({0: 2}, "a") == Position({0: 2, 1: 8}, "a")
    assert known.moved({0: 2}, "") == Position({0: 2, 1: 8}, "a")
    assert known.moved({0: 2}, "b") == Position({0: 2}, "b")
    assert known.advanced({0: 2, 1: 9, 2: 1}, "a") == Position({0: 3, 1: 9, 2: 1}, "a")
    assert known.advanced({0: 2}, "b") == Position({0: 2}, "b")


# --- In a table -----------------------------------------------------------------------------


def table(*snapshots: tuple[int, int | None, str | None], property: str | None = None) -> Any:
    """With (id, parent, what it tells of the topic); the last is the newest and the current."""
    told = [
        {
            "snapshot-id": id,
            "sequence-number": id,
            **({} if parent is None else {"parent-snapshot-id": parent}),
            "timestamp-ms": 1_700_000_000_000 + id,
            "manifest-list": f"file:///{id}.avro",
            "summary": {"operation": "append", **({NAME: text} if text else {})},
            "schema-id": 0,
        }
        for id, parent, text in snapshots
    ]
    current = {"current-snapshot-id": snapshots[-1][0]} if snapshots else {}
    metadata = TableMetadataV2.model_validate(
        {
            "format-version": 2,
            "table-uuid": "6f0a1f7c-6f0c-4c5f-9f4e-3d6b5b0c7a10",
            "location": "file:///t",
            "last-sequence-number": max((one[0] for one in snapshots), default=0),
            "last-updated-ms": 1_700_000_001_000,
            "last-column-id": 1,
            "schemas": [
                {
                    "type": "struct",
                    "schema-id": 0,
                    "fields": [{"id": 1, "name": "a", "type": "string", "required": False}],
                }
            ],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": {} if property is None else {NAME: property},
            "snapshots": told,
            **current,
        }
    )
    return SimpleNamespace(metadata=metadata, current_snapshot=metadata.current_snapshot)


def text(next: int, **more: Any) -> str:
    return json.dumps({"next": {"0": next}, **more})


def test_the_newest_snapshot_that_names_the_topic_has_the_position() -> None:
    assert position_in(table(), "events") == Position()
    found = table((1, None, text(5)), (2, 1, text(7, id="x")), (3, 2, None), property=text(99))
    assert position_in(found, "events") == Position({0: 7}, "x")
    assert position_in(found, "other") == Position()


def test_a_recorded_position_is_read_back() -> None:
    position = Position({1: 4, 0: 3}, "x")
    summary = position_summary("events", position)
    assert summary == {NAME: '{"next":{"0":3,"1":4},"id":"x"}'}
    assert position_in(table((1, None, summary[NAME])), "events") == position
    property = position_properties("events", position, table((7, None, None)))[NAME]
    assert json.loads(property)["sequence"] == 8
    assert position_in(table((9, 8, None), property=property), "events") == position


def test_a_table_that_was_rolled_back_to_before_the_topic_reads_all_of_it() -> None:
    assert position_in(table((1, None, None), property=text(9, sequence=2)), "events") == Position()


def test_a_property_that_is_newer_than_the_table_raises() -> None:
    rolled_back = table((5, 4, None), property=text(9, sequence=6))
    with pytest.raises(OffsetsUnknown, match=NAME):
        position_in(rolled_back, "events")
    by_hand = table((5, 4, None), property=text(9))
    assert position_in(by_hand, "events") == Position({0: 9})
