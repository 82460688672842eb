"""The Spark side of a purge: whatever grows with the table's size runs on the executors."""

from __future__ import annotations

import hashlib
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from moraine.operations.purge.order import PHASE_OF, FileKind, Phase
from moraine.operations.purge.plan import Entry
from moraine.settings import CatalogSettings
from moraine.storage.files import DELETED, MISSING, delete_files, remaining_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# A kind's place is its number; the first three are Iceberg's own numbers for content.
_CODES = list(FileKind)
_DELETED = (
    "phase string, deleted bigint, missing bigint, bytes bigint, missing_bytes bigint, "
    "failed array<string>"
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
    phase: Phase
    deleted: int
    missing: int
    bytes: int
    missing_bytes: int
    failed: list[str]


def spark_table(spark: SparkSession, name: str, catalog: CatalogSettings, parts: list[str]) -> str:
    """The table's name in Spark SQL, in a Spark catalog that reads it fresh.

    A catalog is set up once in a session, for good; so its alias stands for all its settings.
    """
    settings = f"{name}\n{catalog.model_dump_json()}"
    alias = f"moraine_{hashlib.sha256(settings.encode()).hexdigest()[:16]}"
    key = f"spark.sql.catalog.{alias}"
    options = {
        f"{key}.type": "rest",
        f"{key}.uri": catalog.uri,
        f"{key}.cache-enabled": "false",
        f"{key}.warehouse": catalog.warehouse,
        key: "org.apache.iceberg.spark.SparkCatalog",
    }
    # The last option is what makes it a catalog: if it is there, so are the others.
    if spark.conf.get(key, None) is None:
        for option, value in options.items():
            if value:
                spark.conf.set(option, value)
    return ".".join(f"`{part.replace('`', '``')}`" for part in [alias, *parts])


def write_inventory(
    spark: SparkSession, table: str, named: Iterable[Entry], roots: Sequence[str], target: str
) -> tuple[list[KindCount], int]:
    """Every file that any snapshot reaches, once, durable before the first delete.

    Returns the files by kind, and how many lie outside the table's own folders. `all_entries`
    also shows entries that a later snapshot marked deleted: their files are still there as long
    as an older snapshot holds them.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    reachable = spark.sql(
        f"""
        SELECT data_file.file_path AS path, data_file.content AS code,
               data_file.file_size_in_bytes AS size FROM {table}.all_entries
        UNION ALL
        SELECT path, {_CODES.index(FileKind.MANIFEST)}, length FROM {table}.all_manifests
        """  # noqa: S608 - the name is quoted, the rest is ours
    )
    rows = [(entry.path, _CODES.index(entry.kind), entry.size) for entry in named]
    # Kinds travel as numbers: the biggest of two texts cannot be found by hashing.
    once = (
        reachable.unionByName(spark.createDataFrame(rows, "path string, code int, size bigint"))
        .groupBy("path")
        .agg(F.max("code").alias("code"), F.max("size").alias("size"))
    )
    inventory = once.select(
        "path",
        F.get(F.array(*(F.lit(str(kind)) for kind in _CODES)), "code").alias("kind"),
        F.get(F.array(*(F.lit(str(PHASE_OF[kind])) for kind in _CODES)), "code").alias("phase"),
        "size",
    )
    counts = [
        measure.alias(f"{name}_{kind}")
        for kind in FileKind
        for name, measure in (
            ("files", F.count_if(F.col("kind") == kind)),
            ("bytes", F.sum(F.when(F.col("kind") == kind, F.col("size")))),
        )
    ]
    # Counted while it is written: no second pass.
    seen = Observation()
    inventory.observe(seen, F.count_if(_outside(roots)).alias("outside"), *counts).write.mode(
        "overwrite"
    ).parquet(target)
    found = seen.get
    kinds = [KindCount(k, found[f"files_{k}"], found[f"bytes_{k}"] or 0) for k in FileKind]
    return [count for count in kinds if count.files], found["outside"]


def list_outsiders(
    spark: SparkSession, inventory: str, roots: Sequence[str], most: int
) -> list[str]:
    """The first files of the inventory that lie outside the table's own folders."""
    files = spark.read.parquet(inventory).where(_outside(roots)).select("path").limit(most)
    return [row["path"] for row in files.collect()]


def _outside(roots: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    path = F.regexp_replace("path", "^(file:)?/+", "/")
    inside = F.lit(False)
    for root in roots:
        inside = inside | F.startswith(path, F.lit(root))
    return ~inside | F.contains(path, F.lit("/../"))


def stages(files_by_phase: Mapping[str, int]) -> Iterator[list[Phase]]:
    """Phases that are deleted in one Spark job: as many in a row as fit in one partition.

    One task takes its files in order, so the phases of a small table need not wait for one job
    each. A phase too large for that has a job, and all executors, to itself.
    """
    group: list[Phase] = []
    total = 0
    for phase in Phase:
        files = files_by_phase.get(phase, 0)
        if not files:
            continue
        if group and total + files > _FILES_PER_PARTITION:
            yield group
            group, total = [], 0
        group.append(phase)
        total += files
    if group:
        yield group


def delete_stage(
    spark: SparkSession, inventory: str, phases: Sequence[Phase], files: int
) -> Iterator[BatchOutcome]:
    """Delete the files of these phases, in order; outcomes come in as batches are done."""
    from pyspark.sql import functions as F

    listed = spark.read.parquet(inventory).where(F.col("phase").isin([str(p) for p in phases]))
    if len(phases) > 1:
        order = F.array(*(F.lit(str(phase)) for phase in Phase))
        listed = listed.coalesce(1).sortWithinPartitions(F.array_position(order, F.col("phase")))
    for row in _map_files(listed, files, _delete, _DELETED):
        yield BatchOutcome(**row | {"phase": Phase(row["phase"])})


def find_remaining(
    spark: SparkSession, inventory: str, files: int, most: int
) -> tuple[int, list[str]]:
    """How many files of the inventory are still there, and the first of them."""
    total = 0
    paths: list[str] = []
    for row in _map_files(spark.read.parquet(inventory), files, _remaining, _REMAINING):
        total += row["remaining"]
        paths += row["paths"][: most - len(paths)]
    return total, paths


def _map_files(
    listed: DataFrame, files: int, function: Any, schema: str
) -> Iterator[dict[str, Any]]:
    chosen = listed.select("path", "phase", "size")
    if files > _FILES_PER_PARTITION:
        chosen = chosen.repartition(math.ceil(files / _FILES_PER_PARTITION))
    for row in chosen.mapInArrow(function, schema).toLocalIterator():
        yield row.asDict()


def _delete(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = zip(
            _column(batch, "phase"), _column(batch, "path"), _column(batch, "size"), strict=True
        )
        for phase, members in itertools.groupby(rows, key=operator.itemgetter(0)):
            outcome = _delete_rows(phase, list(members))
            yield pa.RecordBatch.from_pylist([outcome], schema=_arrow_schema(_DELETED))
            if outcome["failed"]:
                # What names the files that are left must not go before them.
                return


def _delete_rows(phase: str, rows: list[tuple[str, str, int | None]]) -> dict[str, Any]:
    paths, sizes = [row[1] for row in rows], [row[2] for row in rows]
    outcomes = delete_files(paths)
    return {
        "phase": phase,
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
    types: dict[str, pa.DataType] = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "array<string>": pa.list_(pa.string()),
    }
    pairs = (column.split(" ") for column in ddl.split(", "))
    return pa.schema([(name, types[kind]) for name, kind in pairs])
