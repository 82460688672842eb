"""JSON lines into Arrow tables, by the contract of ingest's columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from moraine.ingest.coercion.arrow_types import schema_of
from moraine.ingest.coercion.fast import FastReader
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


PIECE = 2 * 1024 * 1024
"""Bytes that are read at once: much in a cache, and little to read again if a line is odd."""
SMALLEST_PIECE = 32 * 1024
"""Of what is odd, the least that is worth another try before it is read line by line."""
FEWEST_MESSAGES = 64
CUTS = 8
"""Into how many what is odd is cut: each time all of it is read again."""


def coerce(
    block: bytes, columns: Sequence[Column], *, keep_unknown: bool, first_line: int = 1
) -> Coerced:
    """One JSON object per line. A line that does not fit is raised as LineRejected.

    With `keep_unknown` fields without a column are named in the answer, and kept in the column
    `props` if that is there and dynamic; otherwise they are dropped.
    """
    fast = FastReader(columns, keep_unknown=keep_unknown)
    tables = [schema_of(columns).empty_table()]
    unknown: dict[str, None] = {}
    number = first_line
    for piece in _cut(block, PIECE):
        # What is odd is cut up until little of it is left to be read line by line.
        waiting = [piece]
        while waiting:
            part = waiting.pop()
            table = fast.read(part)
            if table is not None:
                unknown.update(fast.unknown)
            elif len(part) > SMALLEST_PIECE and len(slices := [*_cut(part, len(part) // CUTS)]) > 1:
                waiting.extend(reversed(slices))
                continue
            else:
                rows = _read_lines(part, Rows(columns, keep_unknown=keep_unknown), number)
                unknown.update(rows.unknown)
                table = rows.table()
            tables.append(table)
            number += part.count(b"\n")
    return Coerced(pa.concat_tables(tables), tuple(unknown))


def coerce_each(messages: Sequence[bytes | None], columns: Sequence[Column]) -> Each:
    """One JSON object per message, on one line or several; those that do not fit are left out."""
    fast = FastReader(columns, keep_unknown=False)
    tables = [schema_of(columns).empty_table()]
    rejected: list[tuple[int, LineRejected]] = []
    for span in _spans(messages):
        waiting = [span]
        while waiting:
            start, end = waiting.pop()
            table = _read_together(fast, messages[start:end])
            if table is None and end - start > FEWEST_MESSAGES:
                step = -(-(end - start) // CUTS)
                slices = [(first, min(first + step, end)) for first in range(start, end, step)]
                waiting.extend(reversed(slices))
                continue
            if table is None:
                rows = Rows(columns, keep_unknown=False)
                for place in range(start, end):
                    try:
                        rows.add(_present(messages[place]), 1)
                    except LineRejected as rejection:
                        rejected.append((place, rejection))
                table = rows.table()
            tables.append(table)
    return Each(pa.concat_tables(tables), rejected)


def _read_lines(part: bytes, rows: Rows, first_line: int) -> Rows:
    for number, line in enumerate(part.split(b"\n"), first_line):
        if line.strip(WHITESPACE):
            rows.add(line, number)
    return rows


def _cut(block: bytes, size: int) -> Iterator[bytes]:
    """Pieces of about that size, each of whole lines."""
    start = 0
    while start < len(block):
        end = block.find(b"\n", start + size - 1) + 1 or len(block)
        yield block[start:end]
        start = end


def _spans(messages: Sequence[bytes | None]) -> Iterator[tuple[int, int]]:
    """From where to where messages make up a piece, so that many large ones do no harm."""
    start = size = 0
    for place, message in enumerate(messages):
        size += len(message or b"")
        if size >= PIECE:
            yield start, place + 1
            start, size = place + 1, 0
    if start < len(messages):
        yield start, len(messages)


def _read_together(fast: FastReader, messages: Sequence[bytes | None]) -> pa.Table | None:
    lines = [message.strip(WHITESPACE) for message in messages if message is not None]
    together = b"\n".join(lines)
    if len(lines) != len(messages) or together.count(b"\n") != len(lines) - 1:
        return None
    table = fast.read(together)
    # An empty first or last message is no row.
    return table if table is not None and table.num_rows == len(messages) else None


def _present(message: bytes | None) -> bytes:
    if message is None:
        raise LineRejected(1, None, None, ONE_OBJECT, "the message has no value")
    return message
