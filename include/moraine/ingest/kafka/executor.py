"""What an executor does with messages: those that fit go to the table, the others to the table of
dead letters, with where they came from and why."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile

from moraine.ingest.coercion import arrow_type, coerce_each
from moraine.ingest.columns import Column, ColumnType, Kind
from moraine.ingest.executor import Order, as_columns, expected_fields, write_files
from moraine.python_workers import keep_lean

RESULT_DDL = "result binary"
_RESULT = pa.schema([pa.field("result", pa.binary())])
DEAD_LETTERS = (
    Column("topic", ColumnType(Kind.STRING)),
    Column("partition", ColumnType(Kind.INT)),
    Column("offset", ColumnType(Kind.LONG)),
    Column("error", ColumnType(Kind.STRING)),
    Column("value", ColumnType(Kind.DYNAMIC)),
    Column("received_at", ColumnType(Kind.TIMESTAMP)),
)
_LETTERS = pa.schema([pa.field(one.name, arrow_type(one.type)) for one in DEAD_LETTERS])
_WRITE_BYTES = 64 << 20
# So that the files of two tasks have different names.
_FILES_PER_PARTITION = 1_000


@dataclass(frozen=True, slots=True)
class KafkaOrder:
    topic: str
    rows: Order
    letters: Order
    letters_from: Mapping[int, int]
    """Dead letters before these offsets were written by an earlier attempt, by partition."""


@dataclass(slots=True)
class Written:
    rows: int = 0
    letters: int = 0
    bytes: int = 0
    row_files: list[DataFile] = field(default_factory=list)
    letter_files: list[DataFile] = field(default_factory=list)


def work_in_spark(order: KafkaOrder, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield pa.record_batch(
            [pa.array([pickle.dumps(write_messages(order, batches))], pa.binary())], schema=_RESULT
        )
    finally:
        keep_lean()


def write_messages(order: KafkaOrder, batches: Iterator[pa.RecordBatch]) -> Written:
    """Batches have partition, offset and value."""
    written = Written()
    waiting: list[pa.Table] = []
    size = 0
    number = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        number = number or _number(batch)
        values = batch.column("value").to_pylist()
        each = coerce_each(values, expected_fields(order.rows))
        written.bytes += sum(len(value) for value in values if value is not None)
        written.letters += len(each.rejected)
        letters = list(_letters(order, batch, each.rejected))
        if letters:
            table = pa.Table.from_pylist(letters, schema=_LETTERS)
            written.letter_files += write_files(order.letters, table, number)
            number += 1
        if each.table.num_rows:
            written.rows += each.table.num_rows
            waiting.append(as_columns(order.rows, each.table))
            size += each.table.nbytes
        if size > _WRITE_BYTES:
            written.row_files += write_files(order.rows, pa.concat_tables(waiting), number)
            waiting, size, number = [], 0, number + 1
    if waiting:
        written.row_files += write_files(order.rows, pa.concat_tables(waiting), number)
    return written


def _number(batch: pa.RecordBatch) -> int:
    """Of this task's first file. No two tasks read the same message."""
    partition, offset = batch.column("partition")[0].as_py(), batch.column("offset")[0].as_py()
    return int((offset * 4096 + partition % 4096 + 1) * _FILES_PER_PARTITION)


def _letters(
    order: KafkaOrder, batch: pa.RecordBatch, rejected: list[tuple[int, Any]]
) -> Iterator[dict[str, Any]]:
    partitions, offsets, values = (batch.column(name) for name in ("partition", "offset", "value"))
    for place, error in rejected:
        partition, offset = partitions[place].as_py(), offsets[place].as_py()
        if offset >= order.letters_from.get(partition, 0):
            yield {
                "topic": order.topic,
                "partition": partition,
                "offset": offset,
                "error": str(error),
                "value": values[place].as_py(),
                "received_at": datetime.now(UTC),
            }
