"""Offsets: how far a table has read a topic, and what to read next. Pure.

The table itself records its position, in the commit that reaches it. The newest snapshot of the
current branch that names the topic is valid, so a rollback also rolls the position back. Where old
snapshots are expired, a table property has it; the same commit writes both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from moraine.errors import FinalError, TransientError
from moraine.ingest.tables.snapshots import ancestry

Offsets = dict[int, int]
"""The next message to read, by partition."""
_PREFIX = "moraine.kafka."


class MessagesMissing(TransientError, code="KAFKA_MESSAGES_MISSING", http_status=409):
    """The topic has lost messages that were not read yet."""


class OffsetsUnknown(FinalError, code="KAFKA_OFFSETS_UNKNOWN", http_status=409):
    """The table was rolled back to a snapshot that does not say how far it has read a topic."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a table in a topic."""

    next: Offsets = field(default_factory=dict)
    topic_id: str = ""
    """A topic that is deleted and created again has another id. Empty: unknown to the broker."""

    def moved(self, ends: Mapping[int, int], topic_id: str) -> Position:
        return Position({**self.of(topic_id).next, **ends}, topic_id or self.topic_id)

    def advanced(self, ends: Mapping[int, int], topic_id: str) -> Position:
        """Moved, except partitions that are further already."""
        before = self.of(topic_id).next
        further = {one: max(end, before.get(one, 0)) for one, end in ends.items()}
        return self.moved(further, topic_id)

    def of(self, topic_id: str) -> Position:
        """The position in the topic with this id: empty if the topic was created again."""
        return self if self.is_of(topic_id) else Position({}, topic_id)

    def is_of(self, topic_id: str) -> bool:
        return not (self.topic_id and topic_id) or self.topic_id == topic_id


def position_in(table: Table, topic: str) -> Position:
    name = f"{_PREFIX}{topic}"
    oldest: Snapshot | None = None
    for snapshot in ancestry(table.metadata, table.metadata.current_snapshot_id):
        if snapshot.summary and (text := snapshot.summary.additional_properties.get(name)):
            return _parse(json.loads(text))
        oldest = snapshot
    if oldest is None or oldest.parent_snapshot_id is None:
        return Position()  # the whole history is known, and the topic is not in it
    recorded = json.loads(table.metadata.properties.get(name, "{}"))
    sequence = recorded.get("sequence")  # tables of format 1 have none
    if sequence and sequence >= (oldest.sequence_number or 0):
        # A later snapshot set it, and that one is no longer part of the table's history.
        raise OffsetsUnknown(
            f"The table was rolled back to a snapshot that does not name the topic {topic}, and "
            f"those before it are expired. Set the table's property {name} to what to read next, "
            'such as {"next": {"0": 1200, "1": 1300}}.'
        )
    return _parse(recorded)


def position_summary(topic: str, position: Position) -> dict[str, str]:
    """The position for the summary of a snapshot."""
    return {f"{_PREFIX}{topic}": _serialize(position)}


def position_properties(topic: str, position: Position, table: Table) -> dict[str, str]:
    """The position for the table's properties, set by a commit based on this table."""
    sequence = table.metadata.next_sequence_number()
    return {f"{_PREFIX}{topic}": _serialize(position, sequence=sequence)}


def _serialize(position: Position, **more: int) -> str:
    offsets = {str(partition): offset for partition, offset in sorted(position.next.items())}
    known = {"id": position.topic_id} if position.topic_id else {}
    return json.dumps({"next": offsets, **known, **more}, separators=(",", ":"))


def _parse(recorded: Mapping[str, Any]) -> Position:
    offsets = recorded.get("next", {})
    return Position(
        {int(partition): int(offset) for partition, offset in offsets.items()},
        recorded.get("id", ""),
    )


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first offset of each partition of a topic, and the one after the last."""

    first: Offsets
    end: Offsets
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """The range of offsets that is read at once."""

    starts: Offsets
    ends: Offsets
    topic_id: str

    @property
    def messages(self) -> int:
        """The maximum: control records and compacted messages count too."""
        return sum(end - self.starts[partition] for partition, end in self.ends.items())


def next_range(
    known: Position,
    bounds: Bounds,
    *,
    from_end: bool,
    max_messages: int,
    skip_missing: bool,
) -> Span:
    """The range to read next.

    A partition that was never read begins at its first message, or at its end if the whole topic is
    to begin there. Raises MessagesMissing if the broker no longer has messages that were not read,
    or never had those that were.
    """
    if not known.is_of(bounds.topic_id) and not skip_missing:
        raise MessagesMissing(
            "The topic was deleted and created again: it is unknown what was not read of the old "
            "one. Set ingest.kafka.missing-messages to skip to read the new one from its beginning."
        )
    before = known.of(bounds.topic_id).next
    starts, ends = {}, {}
    for partition, end in sorted(bounds.end.items()):
        first = bounds.first[partition]
        start = before.get(partition, end if from_end and not known.next else first)
        if not first <= start <= end:
            if not skip_missing:
                raise MessagesMissing(
                    f"Partition {partition} is to be read from offset {start}, but has {first} to "
                    f"{end}. Set ingest.kafka.missing-messages to skip to go on with {first}."
                )
            start = first
        starts[partition], ends[partition] = start, min(end, start + max_messages)
    return Span(starts, ends, bounds.topic_id)
