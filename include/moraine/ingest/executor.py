"""What an executor does: bytes become rows, rows become data files of the table.

A unit is what one Spark task writes together. Small requests share a unit and so a file; one of
them that is refused is left out of it. A request too large for that is cut into pieces, each a unit
of its own, so that what was written of it can be left uncommitted if another piece is refused.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata

from moraine.ingest.coercion import LineRejected, coerce
from moraine.ingest.columns import Column
from moraine.ingest.schemas import can_be_column
from moraine.python_workers import keep_lean

RESULT_DDL = "result binary"
_RESULT = pa.schema([pa.field("result", pa.binary())])
_READ_AHEAD = 64 << 10
_FILES_PER_UNIT = 1_000_000


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines of a request: all of a small one, or those that begin in a part of a file."""

    request: int
    keep_unknown: bool
    """Whether fields without a column are kept in `props`."""
    may_widen: bool
    """Whether fields without a column are told of first, and nothing is written."""
    body: bytes = b""
    path: str = ""
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Unit:
    number: int
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Order:
    """What executors are sent with."""

    batch: UUID
    metadata: TableMetadata
    """Of the table, without its history."""
    io: Mapping[str, str]
    """For the table's files, with secrets: not to be logged."""
    columns: Sequence[Column]
    promoted: Mapping[str, str]
    """The columns that take fields of other names."""


@dataclass(frozen=True, slots=True)
class PieceResult:
    request: int
    rows: int = 0
    unknown: Sequence[str] = ()
    """Fields that should have columns first; then nothing was written."""
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class UnitResult:
    number: int
    pieces: Sequence[PieceResult]
    files: Sequence[DataFile]


def work_in_spark(order: Order, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        for batch in batches:
            for packed in batch.column(0):
                done = write_unit(order, pickle.loads(packed.as_py()))  # noqa: S301 - our own
                yield pa.record_batch([pa.array([pickle.dumps(done)], pa.binary())], schema=_RESULT)
    finally:
        keep_lean()


def write_unit(order: Order, unit: Unit) -> UnitResult:
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
    """Where a unit's rows go: known before they are written, so that they can be found again by
    whoever comes after a writer that was killed. Partitions have paths of their own."""
    locations = load_location_provider(metadata.location, metadata.properties)
    name = f"00000-{unit * _FILES_PER_UNIT}-{batch}.parquet"
    return str(locations.new_data_location(name))


def write_files(order: Order, rows: pa.Table, unit: int) -> list[DataFile]:
    """Their names say whose they are: the batch's, of this unit."""
    return list(
        _dataframe_to_data_files(
            order.metadata,
            rows,
            load_file_io(dict(order.io), order.metadata.location),
            write_uuid=order.batch,
            counter=itertools.count(unit * _FILES_PER_UNIT),
        )
    )


def _coerce_piece(order: Order, piece: Piece) -> tuple[PieceResult, pa.Table | None]:
    block = piece.body or _lines_of(piece)
    try:
        coerced = coerce(block, expected_fields(order), keep_unknown=piece.keep_unknown)
    except LineRejected as rejected:
        error = _with_line_of_request(rejected, piece)
        return PieceResult(piece.request, error=_describe(error)), None
    wanted = [name for name in coerced.unknown if can_be_column(name)] if piece.may_widen else []
    if wanted:
        return PieceResult(piece.request, unknown=wanted), None
    if not coerced.table.num_rows:
        return PieceResult(piece.request), None
    return PieceResult(piece.request, coerced.table.num_rows), as_columns(order, coerced.table)


def expected_fields(order: Order) -> list[Column]:
    """What lines may have: the columns by the names of their fields."""
    fields = {column: field for field, column in order.promoted.items()}
    return [
        Column(fields.get(column.name, column.name), column.type, column.required)
        for column in order.columns
        if column.name not in order.promoted
    ]


def as_columns(order: Order, fields: pa.Table) -> pa.Table:
    """What was read by the names of fields, as the table has it. Columns that nothing is written
    to any more are null."""
    if not order.promoted:
        return _without_foreign(fields)
    names = [order.promoted.get(name, name) for name in fields.column_names]
    return _without_foreign(fields.rename_columns(names))


def _without_foreign(rows: pa.Table) -> pa.Table:
    """pyiceberg fills what is missing with null; of a null column it does not know the type."""
    null = [field.name for field in rows.schema if pa.types.is_null(field.type)]
    return rows.drop_columns(null) if null else rows


def _lines_of(piece: Piece) -> bytes:
    """The lines that begin between start and end. The last may end after it."""
    with open(piece.path, "rb") as file:
        start = piece.start
        if start:
            file.seek(start - 1)
            start = start - 1 + len(file.readline())  # a line that began before
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
    before, left = 0, piece.start - 1
    with open(piece.path, "rb") as file:
        while left > 0:
            chunk = file.read(min(left, 1 << 20))
            before += chunk.count(b"\n")
            left -= len(chunk)
        file.readline()
    return LineRejected(
        rejected.line + before + 1,
        rejected.column,
        rejected.value,
        rejected.expected,
        rejected.reason,
    )


def _describe(error: LineRejected) -> dict[str, Any]:
    return {
        "code": error.code,
        "message": str(error),
        "line": error.line,
        "column": error.column,
    }
