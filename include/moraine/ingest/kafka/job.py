"""The Spark job of the Kafka reader: messages that fit go to the table, the others to the table of
dead letters, with their origin and the error."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.manifest import DataFile

from moraine.ingest.coercion import LineRejected, coerce_each
from moraine.ingest.columns import Column, ColumnKind, ColumnType, arrow_schema
from moraine.ingest.kafka.clients import for_java
from moraine.ingest.kafka.model import Span
from moraine.ingest.writing.answers import (
    RESULT_DDL,
    FileAnswer,
    MessagesAnswer,
    data_files,
    packed,
    unpacked,
)
from moraine.ingest.writing.job import (
    WriteOrder,
    as_columns,
    expected_fields,
    job_tag,
    write_files,
)
from moraine.settings.ingest import KafkaSettings
from moraine.spark.python_workers import keep_lean
from moraine.spark.session import translated_errors
from moraine.threads import contained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEAD_LETTERS = (
    Column("topic", ColumnType(ColumnKind.STRING)),
    Column("partition", ColumnType(ColumnKind.INT)),
    Column("offset", ColumnType(ColumnKind.LONG)),
    Column("error", ColumnType(ColumnKind.STRING)),
    Column("value", ColumnType(ColumnKind.DYNAMIC)),
    Column("received_at", ColumnType(ColumnKind.TIMESTAMP)),
)
_LETTERS = arrow_schema(DEAD_LETTERS)
_WRITE_BYTES = 64 << 20
_FILES_PER_TASK = 1_000


@dataclass(frozen=True, slots=True)
class KafkaOrder:
    topic: str
    rows: WriteOrder
    letters: WriteOrder
    letters_there: frozenset[tuple[int, int]]
    """Partition and offset of messages that an earlier attempt committed as dead letters. They stay
    dead letters, even if they fit the table's schema by now."""
    received_at: datetime
    """The same in every attempt of a task, so that each attempt writes the same file."""


@dataclass(slots=True)
class Written:
    rows: int = 0
    letters: int = 0
    bytes: int = 0
    row_files: list[DataFile] = field(default_factory=list)
    letter_files: list[DataFile] = field(default_factory=list)

    @classmethod
    def of(cls, answer: MessagesAnswer, order: KafkaOrder) -> Written:
        rows, letters = order.rows, order.letters
        return cls(
            answer.rows,
            answer.letters,
            answer.bytes,
            data_files(answer.row_files, rows.metadata, rows.batch),
            data_files(answer.letter_files, letters.metadata, letters.batch),
        )

    def answer(self) -> MessagesAnswer:
        return MessagesAnswer(
            rows=self.rows,
            letters=self.letters,
            bytes=self.bytes,
            row_files=[FileAnswer.of(file) for file in self.row_files],
            letter_files=[FileAnswer.of(file) for file in self.letter_files],
        )

    def add(self, other: Written) -> None:
        self.rows += other.rows
        self.letters += other.letters
        self.bytes += other.bytes
        self.row_files += other.row_files
        self.letter_files += other.letter_files


def read_on_spark(
    spark: SparkSession, order: KafkaOrder, settings: KafkaSettings, span: Span
) -> Written:
    """Read a span of the topic, and write it as files of both tables."""
    busy = [partition for partition, end in span.ends.items() if span.starts[partition] < end]

    def offsets(chosen: Mapping[int, int]) -> str:
        return json.dumps({order.topic: {str(partition): chosen[partition] for partition in busy}})

    properties = for_java(settings.plain_properties)
    options = {
        **{f"kafka.{name}": value for name, value in properties.items()},
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({order.topic: busy}),
        "startingOffsets": offsets(span.starts),
        "endingOffsets": offsets(span.ends),
        "failOnDataLoss": str(settings.missing_messages == "fail").lower(),
    }
    tag = job_tag(order.rows.batch)
    with translated_errors():
        spark.addTag(tag)
        messages = spark.read.format("kafka").options(**options).load()
        wanted = messages.select("partition", "offset", "value")
        try:
            results = wanted.mapInArrow(partial(work_in_spark, order), RESULT_DDL).collect()
        finally:
            spark.removeTag(tag)
    total = Written()
    for row in results:
        total.add(Written.of(unpacked(MessagesAnswer, row["result"]), order))
    return total


class _Files:
    """Collects rows, and writes a file of the table whenever there are enough."""

    def __init__(self, order: WriteOrder, task: int) -> None:
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
        done = contained(partial(write_messages, order, batches, task))
        yield packed(done.answer())
    finally:
        keep_lean()


def write_messages(order: KafkaOrder, batches: Iterator[pa.RecordBatch], task: int) -> Written:
    """Write batches with the columns partition, offset and value."""
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
