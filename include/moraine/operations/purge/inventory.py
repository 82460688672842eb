"""The inventory: every file of the table, once, durable before the first delete."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from moraine.catalog.access import TableAccess, spark_options
from moraine.log import get_logger
from moraine.operations.purge import survivors
from moraine.operations.purge.order import PHASE_OF, FileKind, Phase
from moraine.operations.purge.plan import Entry
from moraine.operations.purge.survivors import code_of
from moraine.python_workers import keep_lean
from moraine.storage.locations import Roots
from moraine.storage.stores import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = get_logger(__name__)

FILES_PER_SLICE = 10_000
INVENTORY_DDL = "path string, kind string, size bigint, outside boolean, phase string"
_KINDS = list(FileKind)
_ROWS = "path string, code int, size bigint"
_SIZES_AT_ONCE = 32
_MANIFEST_OPEN_COST = 256 * 1024
_CONCURRENT_WRITERS = "spark.sql.maxConcurrentOutputFileWriters"


@dataclass(frozen=True, slots=True)
class KindCount:
    kind: FileKind
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Inventory:
    counts: list[KindCount]
    outside: int
    """Files outside the table's own places."""
    unreadable: list[str]
    """Manifests and manifest lists that are gone: what only they named, nobody knows."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How executors come to the table's files, and where those may lie."""

    access: TableAccess
    roots: Roots
    storage: functools.partial[Storage]


def write_inventory(
    spark: SparkSession, reach: Reach, named: Iterable[Entry], target: str
) -> Inventory:
    """Every file that any snapshot reaches, once, with its kind, phase and size.

    Iceberg's own reader is the fastest way to list them, but it needs every manifest. Where some
    are gone, from a purge that something else began, the others are read one by one; and so are
    those that a snapshot names itself, which that reader cannot list.
    """
    from pyspark.errors import PySparkException

    entries = list(named)
    if not any(entry.kind is FileKind.MANIFEST for entry in entries):
        try:
            return _write(spark, _read_by_iceberg(spark, reach.access), reach, entries, target, [])
        except PySparkException as error:
            if "NotFoundException" not in str(error):
                raise
            log.warning("purge.plan.metadata_missing", table=reach.access.table)
    rows, unreadable = survivors.read_surviving(spark, reach.storage, entries)
    return _write(spark, rows, reach, entries, target, unreadable)


def list_outsiders(spark: SparkSession, inventory: str, most: int) -> list[str]:
    """The first files of the inventory that lie outside the table's own places."""
    files = spark.read.parquet(inventory).where("outside").select("path").limit(most)
    return [row["path"] for row in files.collect()]


def spark_table(spark: SparkSession, access: TableAccess) -> str:
    """The table's name in Spark SQL, in a Spark catalog that reads it fresh.

    A catalog is set up once in a session, for good; so its alias stands for all its settings.
    """
    options = {"type": "rest", "cache-enabled": "false", **spark_options(access.catalog)}
    digest = hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()
    alias = f"moraine_{digest[:16]}"
    key = f"spark.sql.catalog.{alias}"
    # The last option is what makes it a catalog: if it is there, so are the others.
    if spark.conf.get(key, None) is None:
        for option, value in options.items():
            spark.conf.set(f"{key}.{option}", value)
        spark.conf.set(key, "org.apache.iceberg.spark.SparkCatalog")
    parts = [alias, *access.namespace, access.table]
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def _read_by_iceberg(spark: SparkSession, access: TableAccess) -> DataFrame:
    """`all_entries` also shows entries that a later snapshot marked deleted: their files are still
    there as long as an older snapshot holds them."""
    table = spark_table(spark, access)
    # Iceberg reckons with 4 MB for opening a file; so a task would read a few manifests only.
    read = spark.read.option("file-open-cost", _MANIFEST_OPEN_COST)
    vectors = code_of(FileKind.DELETION_VECTORS)
    files = read.table(f"{table}.all_entries").selectExpr(
        "data_file.file_path AS path",
        f"IF(data_file.file_format = 'PUFFIN', {vectors}, data_file.content) AS code",
        "data_file.file_size_in_bytes AS size",
    )
    manifests = read.table(f"{table}.all_manifests").selectExpr(
        "path", f"{code_of(FileKind.MANIFEST)} AS code", "length AS size"
    )
    return files.unionAll(manifests)


def _write(
    spark: SparkSession,
    reachable: DataFrame,
    reach: Reach,
    named: list[Entry],
    target: str,
    unreadable: list[str],
) -> Inventory:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    # From an Arrow table the JVM makes rows itself; from a list, a Python worker does.
    rows = pa.table(
        {
            "path": pa.array([entry.path for entry in named], pa.string()),
            "code": pa.array([code_of(entry.kind) for entry in named], pa.int32()),
            "size": pa.array([entry.size for entry in named], pa.int64()),
        }
    )
    # Kinds travel as numbers: the biggest of two texts cannot be found by hashing.
    once = (
        reachable.unionByName(spark.createDataFrame(rows))
        .groupBy("path")
        .agg(F.max("code").alias("code"), F.max("size").alias("size"))
        .mapInArrow(functools.partial(_examine, reach), f"{_ROWS}, outside boolean")
    )
    # Written as text: each function called here would be a question to the JVM.
    counts = [
        F.expr(measure)
        for code, kind in enumerate(_KINDS)
        for measure in (
            f"count_if(NOT outside AND code = {code}) AS files_{kind}",
            f"sum(IF(NOT outside AND code = {code}, size, NULL)) AS bytes_{kind}",
        )
    ]
    # Counted while it is written: no second pass.
    seen = Observation()
    inventory = once.observe(seen, F.expr("count_if(outside) AS outside"), *counts).selectExpr(
        "path",
        f"get(array({_quoted(_KINDS)}), code) AS kind",
        "size",
        "outside",
        f"get(array({_quoted(PHASE_OF[kind] for kind in _KINDS)}), code) AS phase",
    )
    # With fewer Spark would sort all files by their phase before it writes any.
    spark.conf.set(_CONCURRENT_WRITERS, len(Phase))
    (
        inventory.write.mode("overwrite")
        .option("maxRecordsPerFile", FILES_PER_SLICE)
        # No two paths are equal: a dictionary of them is in vain.
        .option("parquet.enable.dictionary#path", "false")
        .partitionBy("phase")
        .parquet(target)
    )
    # A busy server sends its answer without waiting for what was observed.
    found = seen.get or _count_again(spark, target)
    kinds = [KindCount(k, found[f"files_{k}"], found[f"bytes_{k}"] or 0) for k in FileKind]
    return Inventory([count for count in kinds if count.files], found["outside"], unreadable)


def _count_again(spark: SparkSession, inventory: str) -> dict[str, Any]:
    from pyspark.sql import functions as F

    files = spark.read.schema(INVENTORY_DDL).parquet(inventory).groupBy("kind", "outside")
    rows = files.agg(F.count("*").alias("files"), F.sum("size").alias("bytes")).collect()
    counts: dict[str, Any] = dict.fromkeys([f"files_{kind}" for kind in _KINDS], 0)
    counts |= dict.fromkeys([f"bytes_{kind}" for kind in _KINDS], 0)
    for row in rows:
        if not row["outside"]:
            counts[f"files_{row['kind']}"] = row["files"]
            counts[f"bytes_{row['kind']}"] = row["bytes"]
    return {**counts, "outside": sum(row["files"] for row in rows if row["outside"])}


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


def _examine(reach: Reach, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Tell the files outside the table's places, and find the sizes that no metadata knows.

    Nobody asks after a file outside: Moraine may not be able, or allowed, to look there.
    """
    storage = reach.storage()
    try:
        for batch in batches:
            path, size = batch.column("path"), batch.column("size")
            outside = reach.roots.outside(path)
            wanted = pc.and_not(pc.is_null(size), outside)
            if pc.any(wanted).as_py():
                found = _find_sizes(storage, path.filter(wanted).to_pylist())
                size = pc.replace_with_mask(size, wanted, pa.array(found, pa.int64()))
            columns = [path, batch.column("code"), size, outside]
            yield pa.RecordBatch.from_arrays(columns, names=["path", "code", "size", "outside"])
    finally:
        storage.close()
        keep_lean()


def _find_sizes(storage: Storage, paths: list[Any]) -> list[int | None]:
    with ThreadPoolExecutor(min(_SIZES_AT_ONCE, len(paths))) as pool:
        return list(pool.map(storage.size, paths))
