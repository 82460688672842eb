"""Reads what is left of a table whose manifests are partly gone.

Iceberg's own readers give up at the first missing manifest. These read every manifest list and
manifest that is still there, on the executors, and say which are not. One that is there but damaged
is an error: unlike what is gone, it may be restored.
"""

from __future__ import annotations

import functools
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa

from moraine.errors import MetadataDamaged
from moraine.operations.purge.order import FileKind
from moraine.operations.purge.plan import Entry
from moraine.storage.stores import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES_PER_TASK = 50
_ROWS_PER_BATCH = 10_000
_GONE = -1
_TYPES: dict[str, pa.DataType] = {"path": pa.string(), "code": pa.int32(), "size": pa.int64()}
_ROWS = pa.schema(_TYPES)
_DDL = "path string, code int, size bigint"
_CODES = {kind: code for code, kind in enumerate(FileKind)}

Row = tuple[str, int, int | None]


def code_of(kind: FileKind) -> int:
    """A kind's place is its number; the first three are Iceberg's own numbers for content."""
    return _CODES[kind]


def read_surviving(
    spark: SparkSession, storage: Callable[[], Storage], named: Sequence[Entry]
) -> tuple[DataFrame, list[str]]:
    """Manifests and the files they name, as rows of path, code and size; and what is gone."""
    from pyspark.sql import functions as F

    lists = [entry.path for entry in named if entry.kind is FileKind.MANIFEST_LIST]
    manifests = _map(spark, storage, lists, _manifests_of).distinct().collect()
    gone = [row["path"] for row in manifests if row["code"] == _GONE]
    there = [(row["path"], row["code"], row["size"]) for row in manifests if row["code"] != _GONE]
    there += [(e.path, code_of(e.kind), e.size) for e in named if e.kind is FileKind.MANIFEST]
    files = _map(spark, storage, [path for path, _, _ in there], _files_of)
    gone += [row["path"] for row in files.where(F.col("code") == _GONE).collect()]
    found = files.where(F.col("code") != _GONE)
    return found.unionByName(spark.createDataFrame(there, _DDL)), gone


def _map(
    spark: SparkSession,
    storage: Callable[[], Storage],
    paths: Sequence[str],
    read: Callable[[bytes], Iterator[Row]],
) -> DataFrame:
    listed = spark.createDataFrame([(path,) for path in paths], "path string")
    tasks = max(1, len(paths) // _FILES_PER_TASK)
    function = functools.partial(_read_each, storage, read)
    return listed.repartition(tasks).mapInArrow(function, _DDL)


def _read_each(
    storage: Callable[[], Storage],
    read: Callable[[bytes], Iterator[Row]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    opened = storage()
    try:
        for batch in batches:
            paths: list[Any] = batch.column("path").to_pylist()
            for path in paths:
                content = opened.read(path)
                gone: Iterator[Row] = iter([(path, _GONE, None)])
                rows = gone if content is None else _decoded(path, read(content))
                yield from _batched(rows)
    finally:
        opened.close()


def _decoded(path: str, rows: Iterator[Row]) -> Iterator[Row]:
    """Whatever goes wrong with bytes that are at hand, they are what is wrong."""
    try:
        yield from rows
    except Exception as error:
        raise MetadataDamaged(
            f"{path} is damaged ({type(error).__name__}): which files it names nobody knows, and "
            "nothing was deleted."
        ) from error


def _batched(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    while batch := list(itertools.islice(rows, _ROWS_PER_BATCH)):
        columns = zip(zip(*batch, strict=True), _TYPES.values(), strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(c, kind) for c, kind in columns], schema=_ROWS)


def _manifests_of(manifest_list: bytes) -> Iterator[Row]:
    for entry in fastavro.reader(io.BytesIO(manifest_list)):
        assert isinstance(entry, dict)
        yield entry["manifest_path"], code_of(FileKind.MANIFEST), entry["manifest_length"]


def _files_of(manifest: bytes) -> Iterator[Row]:
    for entry in fastavro.reader(io.BytesIO(manifest)):
        assert isinstance(entry, dict)
        file = entry["data_file"]
        # Format version 1 knows data files only.
        code = file.get("content", 0)
        if str(file["file_format"]).upper() == "PUFFIN":
            code = code_of(FileKind.DELETION_VECTORS)
        yield file["file_path"], code, file["file_size_in_bytes"]
