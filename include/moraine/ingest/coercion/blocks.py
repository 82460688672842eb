"""Blocks of JSON lines or messages coerced to Arrow tables, by the contract of columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from moraine.ingest.coercion.fast_reader import FastReader
from moraine.ingest.coercion.json_lines import ONE_OBJECT, WHITESPACE, LineRejected
from moraine.ingest.coercion.row_builder import RowBuilder
from moraine.ingest.columns import Column, arrow_schema


@dataclass(frozen=True)
class Coerced:
    table: pa.Table
    unknown: tuple[str, ...]
    """Names of fields without a column, in the order of their first occurrence."""


@dataclass(frozen=True)
class Each:
    table: pa.Table
    rejected: list[tuple[int, LineRejected]]
    """With the index of each message."""


PIECE = 2 * 1024 * 1024
"""Bytes that are read at once: enough for speed, and little to read again for one odd line."""
MIN_PIECE = 32 * 1024
"""A smaller piece with an odd line is read line by line."""
MIN_MESSAGES = 64
CUTS = 8
"""How many parts a piece with an odd line is cut into; all of them are read again."""


def coerce(block: bytes, columns: Sequence[Column], *, keep_unknown: bool) -> Coerced:
    """One JSON object per line. Raises LineRejected for a line that does not fit.

    With `keep_unknown`, fields without a column are named in the result, and stored in the column
    `props` if it exists and is dynamic; otherwise they are dropped.
    """
    fast = FastReader(columns, keep_unknown=keep_unknown)
    tables = [arrow_schema(columns).empty_table()]
    unknown: dict[str, None] = {}
    number = 1
    for piece in _cut(block, PIECE):
        # A piece with an odd line is cut until little of it has to be read line by line.
        waiting = [piece]
        while waiting:
            part = waiting.pop()
            table = fast.read(part)
            if table is not None:
                unknown.update(fast.unknown)
            elif len(part) > MIN_PIECE and len(slices := [*_cut(part, len(part) // CUTS)]) > 1:
                waiting.extend(reversed(slices))
                continue
            else:
                rows = RowBuilder(columns, keep_unknown=keep_unknown)
                for place, line in enumerate(part.split(b"\n"), number):
                    if line.strip(WHITESPACE):
                        rows.add(line, place)
                unknown.update(rows.unknown)
                table = rows.table()
            tables.append(table)
            number += part.count(b"\n")
    return Coerced(pa.concat_tables(tables), tuple(unknown))


def coerce_each(messages: Sequence[bytes | None], columns: Sequence[Column]) -> Each:
    """One JSON object per message, on one line or several; unfit messages are left out."""
    fast = FastReader(columns, keep_unknown=False)
    tables = [arrow_schema(columns).empty_table()]
    rejected: list[tuple[int, LineRejected]] = []
    for span in _spans(messages):
        waiting = [span]
        while waiting:
            start, end = waiting.pop()
            table = _read_together(fast, messages[start:end])
            if table is None and end - start > MIN_MESSAGES:
                step = -(-(end - start) // CUTS)
                slices = [(first, min(first + step, end)) for first in range(start, end, step)]
                waiting.extend(reversed(slices))
                continue
            if table is None:
                rows = RowBuilder(columns, keep_unknown=False)
                for place in range(start, end):
                    try:
                        rows.add(_present(messages[place]), 1)
                    except LineRejected as rejection:
                        rejected.append((place, rejection))
                table = rows.table()
            tables.append(table)
    return Each(pa.concat_tables(tables), rejected)


def _cut(block: bytes, size: int) -> Iterator[bytes]:
    """Pieces of about that size, made of whole lines."""
    start = 0
    while start < len(block):
        end = block.find(b"\n", start + size - 1) + 1 or len(block)
        yield block[start:end]
        start = end


def _spans(messages: Sequence[bytes | None]) -> Iterator[tuple[int, int]]:
    """Ranges of messages that make up a piece, so that memory stays bounded."""
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
