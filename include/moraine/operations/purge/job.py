"""The Spark side of a purge: whatever grows with the table's size runs on the executors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from moraine.operations.purge.order import CONTENT_KINDS, PHASE_OF, FileKind, Phase
from moraine.operations.purge.plan import Entry
from moraine.settings import CatalogSettings
from moraine.storage.files import DELETED, MISSING, delete_files, remaining_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_INVENTORY = "path string, kind string, phase string, size bigint"
_DELETED = (
    "deleted bigint, missing bigint, bytes bigint, missing_bytes bigint, failed array<string>"
)
_REMAINING = "remaining bigint, paths array<string>"
_FILES_PER_PARTITION = 10_000


@dataclass(frozen=True, slots=True)
class KindCount:
    kind: FileKind
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    deleted: int
    missing: int
    bytes: int
    missing_bytes: int
    failed: list[str]


def spark_table(spark: SparkSession, name: str, catalog: CatalogSettings, parts: list[str]) -> str:
    """The table's name in Spark SQL, in a Spark catalog that reads it fresh."""
    alias = "moraine_" + re.sub(r"\W", "_", name)
    key = f"spark.sql.catalog.{alias}"
    options = {
        key: "org.apache.iceberg.spark.SparkCatalog",
        f"{key}.type": "rest",
        f"{key}.uri": catalog.uri,
        f"{key}.cache-enabled": "false",
        **({f"{key}.warehouse": catalog.warehouse} if catalog.warehouse else {}),
    }
    for option, value in options.items():
        spark.conf.set(option, value)
    return ".".join(f"`{part.replace('`', '``')}`" for part in [alias, *parts])


def write_inventory(spark: SparkSession, table: str, named: Iterable[Entry], target: str) -> None:
    """Every file that any snapshot reaches, once, by phase, durable before the first delete.

    `all_entries` also shows entries that a later snapshot marked deleted: their files are still
    there as long as an older snapshot holds them.
    """
    content_kind = " ".join(
        f"WHEN {number} THEN '{kind}'" for number, kind in CONTENT_KINDS.items()
    )
    reachable = spark.sql(
        f"""
        SELECT data_file.file_path AS path, CASE max(data_file.content) {content_kind} END AS kind,
               '{Phase.CONTENT}' AS phase, max(data_file.file_size_in_bytes) AS size
        FROM {table}.all_entries GROUP BY data_file.file_path
        UNION ALL
        SELECT path, '{FileKind.MANIFEST}', '{Phase.MANIFESTS}', max(length)
        FROM {table}.all_manifests GROUP BY path
        """  # noqa: S608 - the name is quoted, the rest is ours
    )
    rows = [(entry.path, str(entry.kind), str(PHASE_OF[entry.kind]), entry.size) for entry in named]
    roots = spark.createDataFrame(rows, _INVENTORY)
    reachable.unionByName(roots).write.mode("overwrite").partitionBy("phase").parquet(target)


def count_inventory(
    spark: SparkSession, inventory: str, roots: Sequence[str], most: int
) -> tuple[list[KindCount], list[str], int]:
    """Files by kind, and those outside the table's own folders: the first few, and how many."""
    from pyspark.sql import functions as F

    path = F.regexp_replace("path", "^(file:)?/+", "/")
    inside = F.lit(False)
    for root in roots:
        inside = inside | F.startswith(path, F.lit(root))
    outside = ~inside | F.contains(path, F.lit("/../"))
    files = spark.read.parquet(inventory)
    rows = (
        files.groupBy("kind")
        .agg(
            F.count("*").alias("files"),
            F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"),
            F.count_if(outside).alias("outside"),
        )
        .collect()
    )
    counts = [KindCount(FileKind(row["kind"]), row["files"], row["bytes"]) for row in rows]
    total_outside = sum(row["outside"] for row in rows)
    outsiders = files.where(outside).select("path").limit(most).collect() if total_outside else []
    return counts, [row["path"] for row in outsiders], total_outside


def delete_phase(
    spark: SparkSession, inventory: str, phase: Phase, files: int, batch: int
) -> Iterator[BatchOutcome]:
    """Delete the files of one phase; outcomes come in as batches are done."""
    for row in _map_files(spark, f"{inventory}/phase={phase}", files, batch, _delete, _DELETED):
        yield BatchOutcome(**row)


def find_remaining(
    spark: SparkSession, inventory: str, files: int, batch: int, most: int
) -> tuple[int, list[str]]:
    """How many files of the inventory are still there, and the first of them."""
    total = 0
    paths: list[str] = []
    for row in _map_files(spark, inventory, files, batch, _remaining, _REMAINING):
        total += row["remaining"]
        paths += row["paths"][: most - len(paths)]
    return total, paths


def _map_files(
    spark: SparkSession, source: str, files: int, batch: int, function: Any, schema: str
) -> Iterator[dict[str, Any]]:
    listed: DataFrame = spark.read.parquet(source).select("path", "size")
    if files > _FILES_PER_PARTITION:
        listed = listed.repartition(math.ceil(files / _FILES_PER_PARTITION))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(batch))
    for row in listed.mapInArrow(function, schema).toLocalIterator():
        yield row.asDict()


def _delete(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        paths, sizes = _column(batch, "path"), _column(batch, "size")
        outcomes = delete_files(paths)
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "deleted": outcomes.count(DELETED),
                    "missing": outcomes.count(MISSING),
                    "bytes": _total(outcomes, sizes, DELETED),
                    "missing_bytes": _total(outcomes, sizes, MISSING),
                    "failed": [
                        f"{path}: {outcome}"
                        for path, outcome in zip(paths, outcomes, strict=True)
                        if outcome not in (DELETED, MISSING)
                    ],
                }
            ],
            schema=_arrow_schema(_DELETED),
        )


def _remaining(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        paths = remaining_files(_column(batch, "path"))
        yield pa.RecordBatch.from_pylist(
            [{"remaining": len(paths), "paths": paths[:100]}], schema=_arrow_schema(_REMAINING)
        )


def _column(batch: pa.RecordBatch, name: str) -> list[Any]:
    return batch.column(name).to_pylist()


def _total(outcomes: list[str], sizes: list[int | None], wanted: str) -> int:
    return sum(
        size or 0 for outcome, size in zip(outcomes, sizes, strict=True) if outcome == wanted
    )


def _arrow_schema(ddl: str) -> pa.Schema:
    types = {"bigint": pa.int64(), "array<string>": pa.list_(pa.string())}
    pairs = (column.split(" ") for column in ddl.split(", "))
    return pa.schema([(name, types[kind]) for name, kind in pairs])
