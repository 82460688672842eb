"""What executors answer, as JSON that the driver checks.

Executors parse bytes of strangers. So the driver unpickles nothing that they send, and takes no
file that is not one of the batch: a path in an answer may be deleted or committed later.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from moraine.catalog.places import claimed_paths
from moraine.errors import SparkJobFailed

RESULT_DDL = "result string"
_RESULT = pa.schema([pa.field("result", pa.string())])

Counts = dict[int, NonNegativeInt] | None
Bounds = dict[int, bytes] | None
PartitionValue = bool | int | float | str | dict[str, str] | None


class ExecutorAnswer(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ser_json_inf_nan="constants",
    )


A = TypeVar("A", bound=ExecutorAnswer)


class FileAnswer(ExecutorAnswer):
    """A data file that was written, with the statistics that go into the manifest."""

    path: str
    rows: NonNegativeInt
    size: NonNegativeInt
    partition: list[PartitionValue] = []
    column_sizes: Counts = None
    value_counts: Counts = None
    null_value_counts: Counts = None
    nan_value_counts: Counts = None
    lower_bounds: Bounds = None
    upper_bounds: Bounds = None
    split_offsets: list[NonNegativeInt] | None = None

    @classmethod
    def of(cls, file: DataFile) -> FileAnswer:
        return cls(
            path=file.file_path,
            rows=file.record_count,
            size=file.file_size_in_bytes,
            partition=[_packed(file.partition[at]) for at in range(len(file.partition))],
            column_sizes=file.column_sizes,
            value_counts=file.value_counts,
            null_value_counts=file.null_value_counts,
            nan_value_counts=file.nan_value_counts,
            lower_bounds=file.lower_bounds,
            upper_bounds=file.upper_bounds,
            split_offsets=file.split_offsets,
        )

    def data_file(self) -> DataFile:
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=Record(*map(_unpacked, self.partition)),
            record_count=self.rows,
            file_size_in_bytes=self.size,
            column_sizes=self.column_sizes,
            value_counts=self.value_counts,
            null_value_counts=self.null_value_counts,
            nan_value_counts=self.nan_value_counts,
            lower_bounds=self.lower_bounds,
            upper_bounds=self.upper_bounds,
            split_offsets=self.split_offsets,
        )


class LineError(ExecutorAnswer):
    code: str
    message: str
    line: int
    column: str | None = None


class PieceResult(ExecutorAnswer):
    request: int
    rows: NonNegativeInt = 0
    unknown: list[str] = []
    """Fields that need columns first; if there are any, nothing was written."""
    error: LineError | None = None


class UnitAnswer(ExecutorAnswer):
    number: int
    pieces: list[PieceResult]
    files: list[FileAnswer]


class MessagesAnswer(ExecutorAnswer):
    """What one Spark task wrote of a Kafka topic."""

    rows: NonNegativeInt
    letters: NonNegativeInt
    bytes: NonNegativeInt
    row_files: list[FileAnswer] = Field(default_factory=list)
    letter_files: list[FileAnswer] = Field(default_factory=list)


def packed(answer: ExecutorAnswer) -> pa.RecordBatch:
    """The answer as a row for Spark."""
    text = answer.model_dump_json(exclude_defaults=True)
    return pa.record_batch([pa.array([text], pa.string())], schema=_RESULT)


def unpacked(kind: type[A], text: object) -> A:
    try:
        return kind.model_validate_json(str(text))
    except ValidationError as error:
        raise damaged("it has another form") from error


def data_files(files: Iterable[FileAnswer], metadata: TableMetadata, batch: UUID) -> list[DataFile]:
    """The files of an answer, if each is in the table's folders and named after the batch."""
    # As written: a percent-encoded value of a partition is one segment of a path.
    folders = [
        f"{p.rstrip('/')}/" for p in (metadata.location, *claimed_paths(metadata.properties))
    ]
    result = []
    for file in files:
        inside = file.path.startswith(tuple(folders)) and ".." not in file.path.split("/")
        if not inside or not file.path.endswith(f"-{batch}.parquet"):
            raise damaged("it names a file that is not one of its batch")
        result.append(file.data_file())
    return result


def damaged(why: str) -> SparkJobFailed:
    """Without the answer's own words: they may be anything."""
    return SparkJobFailed(f"An executor's answer was refused: {why}.")


# --- Values of partitions that JSON has no type for -------------------------------------------


def _packed(value: Any) -> PartitionValue:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, UUID):
        return {"uuid": str(value)}
    raise TypeError(f"no partition has a value of type {type(value).__name__}")


_READERS: dict[str, Any] = {"bytes": base64.b64decode, "decimal": Decimal, "uuid": UUID}


def _unpacked(value: PartitionValue) -> Any:
    if not isinstance(value, dict):
        return value
    try:
        [(kind, text)] = value.items()
        return _READERS[kind](text)
    except (ValueError, LookupError, ArithmeticError) as error:
        raise damaged("a value of a partition has another form") from error
