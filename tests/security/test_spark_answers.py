"""A Spark executor that was taken over, and answers the driver with what it likes."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField
from pyspark.sql import Row

import moraine
from moraine.errors import SparkJobFailed
from moraine.ingest.kafka import job as kafka_job
from moraine.ingest.kafka.model import Span
from moraine.ingest.writing.answers import (
    FileAnswer,
    MessagesAnswer,
    PieceResult,
    UnitAnswer,
    data_files,
    packed,
    unpacked,
)
from moraine.ingest.writing.job import Piece, Unit, WriteOrder, run_on_spark
from moraine.settings.ingest import KafkaSettings

BATCH = uuid4()
TABLE = "s3://lake/shop/orders"
UNITS = [Unit(0, [Piece(7, keep_unknown=False, may_widen=False, body=b"{}")])]


class Gadget:
    """Unpickled, it runs code of its own."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


class Spark:
    """A session whose every job ends with these answers."""

    def __init__(self, *answers: object) -> None:
        self._answers = answers
        self.read = self

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_options: self

    def collect(self) -> list[Row]:
        return [Row(result=answer) for answer in self._answers]


def metadata() -> TableMetadata:
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    return TableMetadataV2(
        location=TABLE,
        last_column_id=1,
        schemas=[schema],
        partition_specs=[{"spec-id": 0, "fields": []}],
        properties={},
    )


def order() -> WriteOrder:
    return WriteOrder(BATCH, metadata(), {}, [], {})


def kafka_order() -> kafka_job.KafkaOrder:
    received: Any = None
    return kafka_job.KafkaOrder("topic", order(), order(), frozenset(), received)


def read_topic(spark: Any) -> kafka_job.Written:
    span = Span({0: 0}, {0: 1}, "topic-id")
    return kafka_job.read_on_spark(spark, kafka_order(), KafkaSettings(), span)


def file(path: str, **changes: Any) -> FileAnswer:
    return FileAnswer(path=path, rows=1, size=10, **changes)


def unit(*files: FileAnswer, number: int = 0, request: int = 7) -> str:
    pieces = [PieceResult(request=request, rows=1)]
    return UnitAnswer(number=number, pieces=pieces, files=list(files)).model_dump_json()


def own_file(batch: UUID = BATCH) -> str:
    return f"{TABLE}/data/00000-0-{batch}.parquet"


def test_a_pickle_is_not_run_on_the_worker(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    spark: Any = Spark(pickle.dumps(Gadget(trace)))
    with pytest.raises(SparkJobFailed):
        run_on_spark(spark, order(), UNITS)
    with pytest.raises(SparkJobFailed):
        read_topic(spark)
    assert not trace.exists()


def test_nothing_that_spark_answers_is_unpickled_anywhere() -> None:
    """What is sent to executors may be: `work_in_spark` runs there."""
    assert sorted(unpicklings()) == ["ingest/writing/job.py:work_in_spark"]


def unpicklings() -> Iterator[str]:
    root = Path(moraine.__path__[0])
    for module in root.rglob("*.py"):
        for function in ast.walk(ast.parse(module.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if ast.unparse(node) in ("pickle.load", "pickle.loads", "pickle.Unpickler"):
                    yield f"{module.relative_to(root)}:{function.name}"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("", id="nothing"),
        pytest.param("null", id="null"),
        pytest.param("[" * 100_000, id="depth"),
        pytest.param('{"number": 0, "pieces": [], "files": []}', id="a piece too few"),
        pytest.param(unit(number=3), id="a unit of another batch"),
        pytest.param(unit(request=8), id="a request of another caller"),
        pytest.param(unit(file("file:///etc/passwd")), id="a file of the worker's disk"),
        pytest.param(unit(file(own_file(uuid4()))), id="a file of another batch"),
        pytest.param(
            unit(file(f"{TABLE}/../payroll/00000-0-{BATCH}.parquet")), id="a file of another table"
        ),
        pytest.param(
            unit(file(f"s3://lake/payroll/00000-0-{BATCH}.parquet")), id="a file in another place"
        ),
        pytest.param(
            unit(file(own_file(), partition=[{"code": "x"}])), id="a value of an unknown kind"
        ),
        pytest.param(unit(file(own_file())).replace('"rows":1', '"rows":-1'), id="negative rows"),
    ],
)
def test_an_answer_that_no_honest_executor_gives_is_refused(answer: str) -> None:
    """Paths in an answer are deleted if their rows are not used, and committed otherwise."""
    spark: Any = Spark(answer)
    with pytest.raises(SparkJobFailed, match="refused"):
        run_on_spark(spark, order(), UNITS)


def test_a_unit_cannot_be_left_out_or_answered_twice() -> None:
    for answers in ([], [unit(), unit()]):
        spark: Any = Spark(*answers)
        with pytest.raises(SparkJobFailed, match="refused"):
            run_on_spark(spark, order(), UNITS)


def test_a_topic_cannot_bring_in_files_of_others() -> None:
    for name in ("row_files", "letter_files"):
        files = {name: [file("s3://lake/payroll/a.parquet")]}
        answer = MessagesAnswer(rows=1, letters=0, bytes=1, **files)
        with pytest.raises(SparkJobFailed, match="refused"):
            read_topic(Spark(answer.model_dump_json()))


def test_an_honest_answer_arrives_whole() -> None:
    values = [None, True, 3, 2.5, "a/b", b"\x00\xff", Decimal("1.20"), uuid4()]
    written = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=own_file(),
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=2,
        file_size_in_bytes=100,
        column_sizes={1: 40},
        value_counts={1: 2},
        null_value_counts={1: 0},
        nan_value_counts={},
        lower_bounds={1: b"\x01\x00\x00\x00\x00\x00\x00\x00"},
        upper_bounds={1: b"\xff" * 8},
        split_offsets=[4],
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    sent: pa.RecordBatch = packed(
        UnitAnswer(number=0, pieces=[], files=[FileAnswer.of(written)]),
    )
    answer = unpacked(UnitAnswer, sent.column(0)[0].as_py())
    assert data_files(answer.files, metadata(), BATCH) == [written]
