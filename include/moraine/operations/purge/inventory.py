"""The inventory: every file of the table, once, durable before the first delete."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from moraine.catalog.access import TableAccess, spark_options
from moraine.log import get_logger
from moraine.operations.purge import slicing, survivors
from moraine.operations.purge.order import FileKind
from moraine.operations.purge.plan import Entry
from moraine.operations.purge.survivors import code_of
from moraine.storage.files import local_path, remove_folder
from moraine.storage.locations import Roots
from moraine.storage.stores import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

log = get_logger(__name__)

INVENTORY_DDL = "path string, kind string, size bigint, outside boolean, phase string"
_KINDS = list(FileKind)
# As Iceberg says it: a file is gone, or is none of Avro's.
_UNREADABLE = re.compile(r"NotFoundException|org\.apache\.avro\.|Not an Avro|Failed to open file")
_MANIFEST_OPEN_COST = 256 * 1024
# A file may be spelled in several ways: what differs between them is how they begin.
_BEGINNINGS = ("", "file:", "file://", "s3", "s3a", "s3n")
_SPELLING = """
    CASE WHEN startswith(path, 'file:///') THEN 2
         WHEN startswith(path, 'file:/') AND NOT startswith(path, 'file://') THEN 1
         WHEN startswith(path, 's3://') THEN 3
         WHEN startswith(path, 's3a://') THEN 4
         WHEN startswith(path, 's3n://') THEN 5
         ELSE 0 END AS spelling
"""


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
    trouble: PySparkException | None = None
    if not any(entry.kind is FileKind.MANIFEST for entry in entries):
        try:
            return _write(spark, _read_by_iceberg(spark, reach.access), reach, entries, target, [])
        except PySparkException as error:
            if not _UNREADABLE.search(str(error)):
                raise
            trouble = error
            log.warning("purge.plan.metadata_unreadable", table=reach.access.table)
    rows, unreadable = survivors.read_surviving(spark, reach.storage, entries)
    if trouble and not unreadable:
        # What Iceberg could not read is there and whole: whose mistake that was, nobody knows.
        raise trouble
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
        # Format version 1 knows data files only.
        f"IF(data_file.file_format = 'PUFFIN', {vectors}, coalesce(data_file.content, 0)) AS code",
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
    from pyspark.sql import functions as F

    # From an Arrow table the JVM makes rows itself; from a list, a Python worker does.
    rows = pa.table(
        {
            "path": pa.array([entry.path for entry in named], pa.string()),
            "code": pa.array([code_of(entry.kind) for entry in named], pa.int32()),
            "size": pa.array([entry.size for entry in named], pa.int64()),
        }
    )
    beginning = f"get(array({', '.join(map(repr, _BEGINNINGS))}), spelling)"
    # Kinds and spellings travel as numbers: the biggest of two texts cannot be found by hashing.
    once = (
        reachable.unionByName(spark.createDataFrame(rows))
        .selectExpr("*", _SPELLING)
        .groupBy(F.expr(f"substr(path, length({beginning}) + 1)").alias("rest"))
        .agg(*(F.max(name).alias(name) for name in ("code", "size", "spelling")))
        .selectExpr(f"concat({beginning}, rest) AS path", "code", "size")
    )
    folder = local_path(target)
    remove_folder(folder)
    function = functools.partial(slicing.write_slices, reach.roots, reach.storage, folder)
    written = once.mapInArrow(function, slicing.WRITTEN_DDL).collect()
    slicing.commit_slices(folder, {row["slice"] for row in written})
    return _sum_up(written, unreadable)


def _sum_up(written: list[Row], unreadable: list[str]) -> Inventory:
    files, size = Counter[FileKind](), Counter[FileKind]()
    outside = 0
    for row in written:
        if row["outside"]:
            outside += row["files"]
            continue
        kind = _KINDS[row["code"]]
        files[kind] += row["files"]
        size[kind] += row["bytes"] or 0
    counts = [KindCount(kind, files[kind], size[kind]) for kind in FileKind if files[kind]]
    return Inventory(counts, outside, unreadable)
