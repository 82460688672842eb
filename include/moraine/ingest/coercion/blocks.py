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
MESSAGES = 4096
FEWEST_MESSAGES = 64


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
    # The last is the next.
    pieces = [*reversed(list(_cut(block, PIECE)))]
    while pieces:
        piece = pieces.pop()
        table = fast.read(piece)
        if table is None and len(piece) > SMALLEST_PIECE:
            halves = list(_cut(piece, len(piece) // 2))
            if len(halves) > 1:
                pieces.extend(reversed(halves))
                continue
        if table is None:
            rows = Rows(columns, keep_unknown=keep_unknown)
            for line_number, line in enumerate(piece.split(b"\n"), number):
                if line.strip(WHITESPACE):
                    rows.add(line, line_number)
            unknown.update(rows.unknown)
            table = rows.table()
        else:
            unknown.update(fast.unknown)
        tables.append(table)
        number += piece.count(b"\n")
    return Coerced(pa.concat_tables(tables), tuple(unknown))


def coerce_each(messages: Sequence[bytes | None], columns: Sequence[Column]) -> Each:
    """One JSON object per message, on one line or several; those that do not fit are left out."""
    fast = FastReader(columns, keep_unknown=False)
    tables = [schema_of(columns).empty_table()]
    rejected: list[tuple[int, LineRejected]] = []
    spans = [
        (start, min(start + MESSAGES, len(messages)))
        for start in reversed(range(0, len(messages), MESSAGES))
    ]
    while spans:
        start, end = spans.pop()
        table = _read_together(fast, messages[start:end])
        if table is None and end - start > FEWEST_MESSAGES:
            middle = (start + end) // 2
            spans += [(middle, end), (start, middle)]
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


def _cut(block: bytes, size: int) -> Iterator[bytes]:
    """Pieces of about that size, each of whole lines."""
    start = 0
    while start < len(block):
        end = block.find(b"\n", start + size - 1) + 1 or len(block)
        yield block[start:end]
        start = end


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
