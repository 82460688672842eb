"""JSON lines into Arrow tables, by the contract of ingest's columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from moraine.ingest.coercion.json_lines import ONE_OBJECT, WHITESPACE
from moraine.ingest.coercion.rejection import LineRejected
from moraine.ingest.coercion.rows import Rows
from moraine.ingest.columns import Column


@dataclass(frozen=True)
class Coerced:
    table: pa.Table
    unknown: tuple[str, ...]
    """Names of fields that have no column, in the order of first sight."""


@dataclass(frozen=True)
class Each:
    table: pa.Table
    rejected: list[tuple[int, LineRejected]]
    """By the message's place among all of them."""


def coerce(
    block: bytes, columns: Sequence[Column], *, keep_unknown: bool, first_line: int = 1
) -> Coerced:
    """One JSON object per line. A line that does not fit is raised as LineRejected.

    With `keep_unknown` fields without a column are named in the answer, and kept in the column
    `props` if that is there and dynamic; otherwise they are dropped.
    """
    rows = Rows(columns, keep_unknown=keep_unknown)
    for number, line in enumerate(block.split(b"\n"), first_line):
        if line.strip(WHITESPACE):
            rows.add(line, number)
    return Coerced(rows.table(), tuple(rows.unknown))


def coerce_each(messages: Sequence[bytes | None], columns: Sequence[Column]) -> Each:
    """One JSON object per message, on one line or several; those that do not fit are left out."""
    rows = Rows(columns, keep_unknown=False)
    rejected: list[tuple[int, LineRejected]] = []
    for place, message in enumerate(messages):
        try:
            if message is None:
                raise LineRejected(1, None, None, ONE_OBJECT, "the message has no value")
            rows.add(message, 1)
        except LineRejected as rejection:
            rejected.append((place, rejection))
    return Each(rows.table(), rejected)
