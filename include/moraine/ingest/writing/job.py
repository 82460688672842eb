"""The Spark job of the writer: bytes become rows, rows become data files of the table.

A unit is what one Spark task writes. Small requests share a unit and its file; a refused one is
left out. A large request is cut into pieces, each a unit of its own, so that its files can be left
uncommitted if another piece is refused.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata

from moraine.ingest.coercion import LineRejected, coerce
from moraine.ingest.columns import Column
from moraine.ingest.tables.schemas import PROMOTED, can_be_column, columns_of
from moraine.ingest.writing.answers import (
    RESULT_DDL,
    FileAnswer,
    LineError,
    PieceResult,
    UnitAnswer,
    damaged,
    data_files,
    packed,
    unpacked,
)
from moraine.spark.python_workers import keep_lean
from moraine.spark.session import translated_errors
from moraine.threads import contained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILES_PER_UNIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines of a request: all of a small one, or those that begin in one part of a file."""

    request: int
    keep_unknown: bool
    """Whether fields without a column are stored in `props`."""
    may_widen: bool
    """Whether fields without a column are reported, and nothing is written, before widening."""
    body: bytes = b""
    path: str = ""
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    number: int
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class WriteOrder:
    """What an executor needs to write files of a table."""

    batch: UUID
    metadata: TableMetadata
    """The table's metadata without its history."""
    io: Mapping[str, str]
    """FileIO properties, with secrets: never log them."""
    columns: Sequence[Column]
    promoted: Mapping[str, str]
    """The columns of promoted fields, by field."""


@dataclass(frozen=True, slots=True)
class UnitResult:
    number: int
    pieces: Sequence[PieceResult]
    files: Sequence[DataFile]


# --- On the driver ---------------------------------------------------------------------------


def order_for(batch: UUID, table: Table) -> WriteOrder:
    history: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "current_snapshot_id": None,
        "statistics": [],
    }
    properties = table.metadata.properties
    return WriteOrder(
        batch,
        table.metadata.model_copy(update=history),
        # The client's own principal may be among them; it is no text and stays here.
        {name: text for name, text in table.io.properties.items() if isinstance(text, str)},
        columns_of(table.schema()),
        {
            name.removeprefix(PROMOTED): column
            for name, column in properties.items()
            if name.startswith(PROMOTED)
        },
    )


def job_tag(batch: UUID) -> str:
    return f"moraine-ingest-{batch}"


def interrupt_jobs(spark: SparkSession, batches: Iterable[UUID]) -> None:
    """Stop the jobs of lost batches: they outlive a process that was killed."""
    for batch in batches:
        with translated_errors():
            spark.interruptTag(job_tag(batch))


def run_on_spark(spark: SparkSession, order: WriteOrder, units: Sequence[Unit]) -> list[UnitResult]:
    sent = pa.table({"unit": pa.array([pickle.dumps(unit) for unit in units], pa.binary())})
    function = partial(work_in_spark, order)
    with translated_errors():
        spark.addTag(job_tag(order.batch))
        try:
            frame = spark.createDataFrame(sent).mapInArrow(function, RESULT_DDL)
            rows = frame.collect()
        finally:
            spark.removeTag(job_tag(order.batch))
    return results_of([row["result"] for row in rows], order, units)


def results_of(
    answers: Sequence[str], order: WriteOrder, units: Sequence[Unit]
) -> list[UnitResult]:
    """What executors answered, if it is about these units, each of them once."""
    left = {unit.number: [piece.request for piece in unit.pieces] for unit in units}
    results = []
    for text in answers:
        answer = unpacked(UnitAnswer, text)
        if left.pop(answer.number, None) != [piece.request for piece in answer.pieces]:
            raise damaged("it is about other requests")
        files = data_files(answer.files, order.metadata, order.batch)
        results.append(UnitResult(answer.number, answer.pieces, files))
    if left:
        raise damaged("a part of it is missing")
    return results


# --- On executors ----------------------------------------------------------------------------


def work_in_spark(order: WriteOrder, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        for batch in batches:
            for sent in batch.column(0):
                # From the driver: the direction in which code travels, too.
                unit = pickle.loads(sent.as_py())  # noqa: S301
                done = contained(partial(write_unit, order, unit))
                yield packed(
                    UnitAnswer(
                        number=done.number,
                        pieces=list(done.pieces),
                        files=[FileAnswer.of(file) for file in done.files],
                    )
                )
    finally:
        keep_lean()


def write_unit(order: WriteOrder, unit: Unit) -> UnitResult:
    """Coerce every piece; write those that can be written in as few files as they need."""
    results, tables = [], []
    for piece in unit.pieces:
        result, table = _coerce_piece(order, piece)
        results.append(result)
        if table is not None:
            tables.append(table)
    files: list[DataFile] = []
    if tables:
        files = write_files(order, pa.concat_tables(tables), unit.number)
    return UnitResult(unit.number, results, files)


def expected_file(metadata: TableMetadata, batch: UUID, unit: int) -> str:
    """The path of a unit's file, known before it is written, so that the successor of a killed
    writer can find it. Files of partitions have other paths."""
    locations = load_location_provider(metadata.location, metadata.properties)
    name = f"00000-{unit * _FILES_PER_UNIT}-{batch}.parquet"
    return str(locations.new_data_location(name))


def write_files(order: WriteOrder, rows: pa.Table, unit: int) -> list[DataFile]:
    """The file names contain the batch and the unit."""
    return list(
        _dataframe_to_data_files(
            order.metadata,
            rows,
            load_file_io(dict(order.io), order.metadata.location),
            write_uuid=order.batch,
            counter=itertools.count(unit * _FILES_PER_UNIT),
        )
    )


def _coerce_piece(order: WriteOrder, piece: Piece) -> tuple[PieceResult, pa.Table | None]:
    block = piece.body or _lines_of(piece)
    try:
        coerced = coerce(block, expected_fields(order), keep_unknown=piece.keep_unknown)
    except LineRejected as rejected:
        error = _with_line_of_request(rejected, piece)
        return PieceResult(request=piece.request, error=_describe(error)), None
    wanted = [name for name in coerced.unknown if can_be_column(name)] if piece.may_widen else []
    if wanted:
        return PieceResult(request=piece.request, unknown=wanted), None
    if not coerced.table.num_rows:
        return PieceResult(request=piece.request), None
    done = PieceResult(request=piece.request, rows=coerced.table.num_rows)
    return done, as_columns(order, coerced.table)


def expected_fields(order: WriteOrder) -> list[Column]:
    """The columns under the names that their fields have in the lines."""
    fields = {column: field for field, column in order.promoted.items()}
    return [
        Column(fields.get(column.name, column.name), column.type, column.required)
        for column in order.columns
        if column.name not in order.promoted
    ]


def as_columns(order: WriteOrder, fields: pa.Table) -> pa.Table:
    """Rows with field names, renamed to the table's columns. Columns that a promotion replaced are
    null."""
    if not order.promoted:
        return _without_foreign(fields)
    names = [order.promoted.get(name, name) for name in fields.column_names]
    return _without_foreign(fields.rename_columns(names))


def _without_foreign(rows: pa.Table) -> pa.Table:
    """PyIceberg fills missing columns with null, but does not know the type of a null column."""
    null = [field.name for field in rows.schema if pa.types.is_null(field.type)]
    return rows.drop_columns(null) if null else rows


def _lines_of(piece: Piece) -> bytes:
    """The lines that begin between start and end. The last one may end later."""
    with open(piece.path, "rb") as file:
        start = piece.start
        if start:
            file.seek(start - 1)
            start = start - 1 + len(file.readline())  # skips a line that began before
        if start >= piece.end:
            return b""
        file.seek(start)
        lines = [file.read(piece.end - start)]
        if not lines[0].endswith(b"\n"):
            lines.append(file.readline())
        return b"".join(lines)


def _with_line_of_request(rejected: LineRejected, piece: Piece) -> LineRejected:
    if not piece.start:
        return rejected
    before, left = 1, piece.start - 1
    with open(piece.path, "rb") as file:
        while left > 0:
            chunk = file.read(min(left, 1 << 20))
            before += chunk.count(b"\n")
            left -= len(chunk)
    return rejected.after(before)


def _describe(error: LineRejected) -> LineError:
    return LineError(code=error.code, message=str(error), line=error.line, column=error.column)
