"""How far a table has come with a topic: said by the table itself, in the commit that got it there.

The newest snapshot that tells of the topic has the word: one that was rolled back has not. Where
old snapshots were expired, the table's property has it; both are written by the same commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from moraine.errors import FinalError

Offsets = dict[int, int]
"""The next message to read, by partition."""
_PREFIX = "moraine.kafka."


class OffsetsUnknown(FinalError):
    """The table was rolled back to where it no longer says how far it had come with a topic."""

    code = "KAFKA_OFFSETS_UNKNOWN"
    http_status = 409


@dataclass(frozen=True, slots=True)
class Position:
    """Of a table in a topic."""

    next: Offsets = field(default_factory=dict)
    topic_id: str = ""
    """A topic that is deleted and made again has another. Empty: the broker does not say."""

    def moved(self, ends: Mapping[int, int], topic_id: str) -> Position:
        return Position({**self.of(topic_id).next, **ends}, topic_id or self.topic_id)

    def advanced(self, ends: Mapping[int, int], topic_id: str) -> Position:
        """The same, but for what is further already."""
        before = self.of(topic_id).next
        further = {one: max(end, before.get(one, 0)) for one, end in ends.items()}
        return self.moved(further, topic_id)

    def of(self, topic_id: str) -> Position:
        """In the topic that has this id now: nowhere yet, if it was made again since."""
        return self if self.is_of(topic_id) else Position({}, topic_id)

    def is_of(self, topic_id: str) -> bool:
        return not (self.topic_id and topic_id) or self.topic_id == topic_id


def position_in(table: Table, topic: str) -> Position:
    name = f"{_PREFIX}{topic}"
    oldest: Snapshot | None = None
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.summary and (text := snapshot.summary.additional_properties.get(name)):
            return _parse(json.loads(text))
        oldest = snapshot
    if oldest is None or oldest.parent_snapshot_id is None:
        return Position()  # all of the table's history is known, and none of it is of the topic
    told = json.loads(table.metadata.properties.get(name, "{}"))
    sequence = told.get("sequence")  # tables of format 1 have none
    if sequence and sequence >= (oldest.sequence_number or 0):
        # The snapshot that set it would be among those above, were it still one of the table's.
        raise OffsetsUnknown(
            f"The table was rolled back to a snapshot that says nothing of the topic {topic}, and "
            f"those before it are expired. Set the table's property {name} to what to read next, "
            'such as {"next": {"0": 1200, "1": 1300}}.'
        )
    return _parse(told)


def position_summary(topic: str, position: Position) -> dict[str, str]:
    """For a snapshot."""
    return {f"{_PREFIX}{topic}": _told(position)}


def position_properties(topic: str, position: Position, table: Table) -> dict[str, str]:
    """For the table, by the commit that is made on it as it is."""
    sequence = table.metadata.next_sequence_number()
    return {f"{_PREFIX}{topic}": _told(position, sequence=sequence)}


def _told(position: Position, **more: int) -> str:
    offsets = {str(partition): offset for partition, offset in sorted(position.next.items())}
    known = {"id": position.topic_id} if position.topic_id else {}
    return json.dumps({"next": offsets, **known, **more}, separators=(",", ":"))


def _parse(told: Mapping[str, Any]) -> Position:
    offsets = told.get("next", {})
    return Position(
        {int(partition): int(offset) for partition, offset in offsets.items()}, told.get("id", "")
    )
