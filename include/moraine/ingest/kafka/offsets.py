"""How far a table has come with a topic: said by the table itself, in the commit that got it there.

The newest snapshot that tells of the topic has the word. Where no snapshot does any more, because
old ones were expired, the table's property has it: both are written by the same commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import ancestors_of

Offsets = dict[int, int]
"""The next message to read, by partition."""
_PREFIX = "moraine.kafka."


def offsets_in(table: Table, topic: str) -> Offsets:
    name = f"{_PREFIX}{topic}"
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        if snapshot.summary and (text := snapshot.summary.additional_properties.get(name)):
            return _parse(text)
    return _parse(table.metadata.properties.get(name, "{}"))


def with_offsets(topic: str, offsets: Mapping[int, int]) -> dict[str, str]:
    """For a snapshot's summary, and for the table's properties."""
    told = {str(partition): offset for partition, offset in sorted(offsets.items())}
    return {f"{_PREFIX}{topic}": json.dumps(told, separators=(",", ":"))}


def _parse(text: str) -> Offsets:
    return {int(partition): int(offset) for partition, offset in json.loads(text).items()}
