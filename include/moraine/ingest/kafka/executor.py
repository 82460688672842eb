"""What an executor does with messages: those that fit go to the table, the others to the table of
dead letters, with where they came from and why."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile

from moraine.ingest.coercion import LineRejected, arrow_type, coerce_each
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
_FILES_PER_TASK = 1_000


@dataclass(frozen=True, slots=True)
class KafkaOrder:
    topic: str
    rows: Order
    letters: Order
    letters_there: frozenset[tuple[int, int]]
    """Messages, by partition and offset, that an earlier attempt made dead letters of. They stay
    that, whatever the table's schema has become since."""
    received_at: datetime
    """The same in every attempt of a task, so that each writes the same file."""


@dataclass(slots=True)
class Written:
    rows: int = 0
    letters: int = 0
    bytes: int = 0
    row_files: list[DataFile] = field(default_factory=list)
    letter_files: list[DataFile] = field(default_factory=list)

    def add(self, other: Written) -> None:
        self.rows += other.rows
        self.letters += other.letters
        self.bytes += other.bytes
        self.row_files += other.row_files
        self.letter_files += other.letter_files


class _Files:
    """Rows that become files of a table as soon as they are enough for one."""

    def __init__(self, order: Order, task: int) -> None:
        self._order = order
        self._number = task * _FILES_PER_TASK
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self.written: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._waiting.append(rows)
            self._bytes += rows.nbytes
        if self._bytes > _WRITE_BYTES:
            self.write()

    def write(self) -> None:
        if self._waiting:
            rows = pa.concat_tables(self._waiting)
            self.written += write_files(self._order, rows, self._number)
            self._waiting, self._bytes, self._number = [], 0, self._number + 1


def work_in_spark(order: KafkaOrder, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    task = context.partitionId() if context else 0
    try:
        done = write_messages(order, batches, task)
        yield pa.record_batch([pa.array([pickle.dumps(done)], pa.binary())], schema=_RESULT)
    finally:
        keep_lean()


def write_messages(order: KafkaOrder, batches: Iterator[pa.RecordBatch], task: int) -> Written:
    """Batches have partition, offset and value."""
    written = Written()
    columns = expected_fields(order.rows)
    rows, letters = _Files(order.rows, task), _Files(order.letters, task)
    for batch in batches:
        partitions: list[Any] = batch["partition"].to_pylist()
        offsets: list[Any] = batch["offset"].to_pylist()
        places = list(zip(partitions, offsets, strict=True))
        values = batch["value"].to_pylist()
        if order.letters_there:
            new = [place not in order.letters_there for place in places]
            places = [place for place, is_new in zip(places, new, strict=True) if is_new]
            values = [value for value, is_new in zip(values, new, strict=True) if is_new]
        each = coerce_each(values, columns)
        rows.add(as_columns(order.rows, each.table))
        if each.rejected:
            letters.add(_letters(order, places, values, each.rejected))
        written.rows += each.table.num_rows
        written.letters += len(each.rejected)
        written.bytes += sum(len(value) for value in values if value is not None)
    for files in (rows, letters):
        files.write()
    written.row_files, written.letter_files = rows.written, letters.written
    return written


def _letters(
    order: KafkaOrder,
    places: Sequence[tuple[int, int]],
    values: Sequence[bytes | None],
    rejected: Sequence[tuple[int, LineRejected]],
) -> pa.Table:
    letters: list[dict[str, Any]] = [
        {
            "topic": order.topic,
            "partition": places[number][0],
            "offset": places[number][1],
            "error": str(error),
            "value": values[number],
            "received_at": order.received_at,
        }
        for number, error in rejected
    ]
    return pa.Table.from_pylist(letters, schema=_LETTERS)
