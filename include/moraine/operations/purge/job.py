"""The Spark jobs of a purge: write the inventory of a table, then delete and verify its files."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from moraine.catalog.access import TableAccess, spark_options
from moraine.log import get_logger
from moraine.operations.purge import executor_work
from moraine.operations.purge.executor_work import Assignment, RemainingFile, SliceWork
from moraine.operations.purge.inventory import commit_slices, planned_files
from moraine.operations.purge.metadata import NamedFile
from moraine.operations.purge.model import (
    ROOT,
    VERIFY,
    FileKind,
    FileTotals,
    InventorySummary,
    Phase,
)
from moraine.spark.session import SessionFactory
from moraine.storage.files import local_path, remove_folder
from moraine.storage.locations import Roots
from moraine.storage.stores import Storage
from moraine.tasks.job import session_for
from moraine.tasks.slices import Stop
from moraine.tasks.worker import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

log = get_logger(__name__)

# --- The inventory: every file of the table, once, durable before the first delete ----------

_INVENTORY_DDL = "path string, kind string, size bigint, outside boolean, phase string"
_KINDS = list(FileKind)
# Iceberg's messages for a file that is gone or is not Avro.
_UNREADABLE = re.compile(r"NotFoundException|org\.apache\.avro\.|Not an Avro|Failed to open file")
_MANIFEST_OPEN_COST = 256 * 1024
_MANIFESTS_PER_TASK = 50
_LISTS_READ_HERE = 200
_READS_AT_ONCE = 16
# The same file may be spelled in several ways, which differ in how they begin.
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
class Inventory:
    kinds: dict[FileKind, FileTotals]
    outside: int
    """The number of files outside the table's own folders."""
    unreadable: list[str]
    """Manifests and manifest lists that are gone: files that only they named are unknown."""
    digests: dict[str, str]
    """The digest of each slice that has files to delete."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """How executors reach the table's files, and which folders are the table's own."""

    access: TableAccess
    roots: Roots
    storage: functools.partial[Storage]


def write_inventory(
    spark: SparkSession,
    table: TableFiles,
    named: Iterable[NamedFile],
    target: str,
    refuse_outside: Callable[[list[str]], None],
) -> Inventory:
    """Every file that any snapshot reaches, once, with its kind, phase and size.

    A writer of the table chose where its manifests are. So their lists are read first, and no
    manifest outside the table's folders is opened with Moraine's rights.

    Iceberg's own reader is the fastest way to list them, but it needs every manifest. Where some
    are gone, because something else began a purge, or outside, the others are read one by one. So
    are those that a snapshot names itself, which that reader cannot list.
    """
    from pyspark.errors import PySparkException

    files = list(named)
    manifests = _find_manifests(spark, table, files)
    refuse_outside(manifests.outside)
    failure: PySparkException | None = None
    in_snapshots = any(file.kind is FileKind.MANIFEST for file in files)
    if not in_snapshots and manifests.are_inside:
        try:
            return _write(spark, _read_by_iceberg(spark, table.access), table, files, target, [])
        except PySparkException as error:
            if not _UNREADABLE.search(str(error)):
                raise
            failure = error
            log.warning("purge.plan.metadata_unreadable", table=table.access.table)
    rows, unreadable = _read_one_by_one(spark, table.storage, manifests)
    if failure and not unreadable:
        # What Iceberg could not read is there and whole, so the cause is unknown.
        raise failure
    return _write(spark, rows, table, files, target, unreadable)


def list_outside_files(spark: SparkSession, inventory: str, limit: int) -> list[str]:
    """The first files of the inventory that are outside the table's own folders."""
    files = spark.read.parquet(inventory).where("outside").select("path").limit(limit)
    return [row["path"] for row in files.collect()]


def _spark_table(spark: SparkSession, access: TableAccess) -> str:
    """The table's name in Spark SQL, in a Spark catalog without a cache.

    The settings of a catalog are fixed once a session has used it, so its alias is a digest of
    all its settings.
    """
    options = {"type": "rest", "cache-enabled": "false", **spark_options(access.catalog)}
    digest = hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()
    alias = f"moraine_{digest[:16]}"
    key = f"spark.sql.catalog.{alias}"
    # The last option makes it a catalog: if it is there, so are the others.
    if spark.conf.get(key, None) is None:
        for option, value in options.items():
            spark.conf.set(f"{key}.{option}", value)
        spark.conf.set(key, "org.apache.iceberg.spark.SparkCatalog")
    parts = [alias, *access.namespace, access.table]
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def _read_by_iceberg(spark: SparkSession, access: TableAccess) -> DataFrame:
    """`all_entries` also shows entries that a later snapshot marked deleted: their files are still
    there as long as an older snapshot holds them."""
    table = _spark_table(spark, access)
    # Iceberg assumes 4 MB for opening a file, so a task would read only a few manifests.
    read = spark.read.option("file-open-cost", _MANIFEST_OPEN_COST)
    vectors = FileKind.DELETION_VECTORS.number
    files = read.table(f"{table}.all_entries").selectExpr(
        "data_file.file_path AS path",
        # Format version 1 knows data files only.
        f"IF(data_file.file_format = 'PUFFIN', {vectors}, coalesce(data_file.content, 0)) AS code",
        "data_file.file_size_in_bytes AS size",
    )
    manifests = read.table(f"{table}.all_manifests").selectExpr(
        "path", f"{FileKind.MANIFEST.number} AS code", "length AS size"
    )
    return files.unionAll(manifests)


@dataclass(frozen=True, slots=True)
class _Manifests:
    """The manifests of all snapshots, as rows of path, code and size."""

    inside: list[executor_work.Row]
    outside: list[str]
    gone: list[str]
    """Lists of manifests."""
    are_inside: bool
    """Whether all of them are in the table's folders, and so are their lists."""


def _find_manifests(spark: SparkSession, table: TableFiles, named: list[NamedFile]) -> _Manifests:
    lists = [file.path for file in named if file.kind is FileKind.MANIFEST_LIST]
    readable = [path for path in lists if table.roots.contains(path)]
    rows = {(f.path, f.kind.number, f.size) for f in named if f.kind is FileKind.MANIFEST}
    rows |= set(_read_lists(spark, table.storage, readable))
    gone = [path for path, code, _ in rows if code == executor_work.GONE]
    found = [row for row in rows if row[1] != executor_work.GONE]
    outside = table.roots.outside(pa.array([path for path, _, _ in found], pa.string()))
    flags = outside.to_pylist()
    return _Manifests(
        inside=[row for row, is_outside in zip(found, flags, strict=True) if not is_outside],
        outside=[row[0] for row, is_outside in zip(found, flags, strict=True) if is_outside],
        gone=gone,
        are_inside=not any(flags) and len(readable) == len(lists),
    )


def _read_lists(
    spark: SparkSession, storage: Callable[[], Storage], paths: Sequence[str]
) -> Iterator[executor_work.Row]:
    """The manifests in these lists. For a few lists, a Spark job takes longer."""
    decode = executor_work.decode_manifest_list
    if len(paths) > _LISTS_READ_HERE:
        for row in _read_each(spark, storage, paths, decode).distinct().collect():
            yield row["path"], row["code"], row["size"]
        return
    with storage() as opened, ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        for rows in pool.map(lambda path: [*executor_work.read_one(opened, decode, path)], paths):
            yield from rows


def _read_one_by_one(
    spark: SparkSession, storage: Callable[[], Storage], manifests: _Manifests
) -> tuple[DataFrame, list[str]]:
    """Manifests and the files they name, as rows of path, code and size; and what is gone.

    Iceberg's own readers stop at the first missing manifest. This reads every manifest that is
    still there. One that is there but damaged is an error: unlike what is gone, it may be restored.
    """
    from pyspark.sql import functions as F

    is_gone = F.col("code") == executor_work.GONE
    paths = [path for path, _, _ in manifests.inside]
    files = _read_each(spark, storage, paths, executor_work.decode_manifest)
    gone = [row["path"] for row in files.where(is_gone).collect()]
    outside = [(path, FileKind.MANIFEST.number, None) for path in manifests.outside]
    listed = spark.createDataFrame([*manifests.inside, *outside], executor_work.REACHED_DDL)
    return files.where(~is_gone).unionByName(listed), manifests.gone + gone


def _read_each(
    spark: SparkSession,
    storage: Callable[[], Storage],
    paths: Sequence[str],
    decode: executor_work.Decode,
) -> DataFrame:
    listed = spark.createDataFrame([(path,) for path in paths], "path string")
    tasks = max(1, len(paths) // _MANIFESTS_PER_TASK)
    function = functools.partial(executor_work.read_each, storage, decode)
    return listed.repartition(tasks).mapInArrow(function, executor_work.REACHED_DDL)


def _write(
    spark: SparkSession,
    reached: DataFrame,
    table: TableFiles,
    named: list[NamedFile],
    target: str,
    unreadable: list[str],
) -> Inventory:
    from pyspark.sql import functions as F

    # From an Arrow table the JVM makes rows itself; from a list, a Python worker does.
    rows = pa.table(
        {
            "path": pa.array([file.path for file in named], pa.string()),
            "code": pa.array([file.kind.number for file in named], pa.int32()),
            "size": pa.array([file.size for file in named], pa.int64()),
        }
    )
    beginning = f"get(array({', '.join(map(repr, _BEGINNINGS))}), spelling)"
    # Kinds and spellings are numbers: Spark cannot aggregate the maximum of strings by hashing.
    once = (
        reached.unionByName(spark.createDataFrame(rows))
        .selectExpr("*", _SPELLING)
        .groupBy(F.expr(f"substr(path, length({beginning}) + 1)").alias("rest"))
        .agg(*(F.max(name).alias(name) for name in ("code", "size", "spelling")))
        .selectExpr(f"concat({beginning}, rest) AS path", "code", "size")
    )
    folder = local_path(target)
    remove_folder(folder)
    function = functools.partial(executor_work.write_slices, table.roots, table.storage, folder)
    written = once.mapInArrow(function, executor_work.WRITTEN_DDL).collect()
    digests = {row["slice"]: row["digest"] for row in written if not row["outside"]}
    commit_slices(folder, {row["slice"] for row in written}, digests)
    return _counted(written, unreadable, digests)


def _counted(written: list[Row], unreadable: list[str], digests: dict[str, str]) -> Inventory:
    files, size = Counter[FileKind](), Counter[FileKind]()
    outside = 0
    for row in written:
        if row["outside"]:
            outside += row["files"]
            continue
        kind = _KINDS[row["code"]]
        files[kind] += row["files"]
        size[kind] += row["bytes"] or 0
    kinds = {k: FileTotals(files=files[k], bytes=size[k]) for k in FileKind if files[k]}
    return Inventory(kinds, outside, unreadable, digests)


# --- Delete and verify ----------------------------------------------------------------------

# How long executors may take to notice a cancellation before their job is interrupted.
_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Which files of an inventory are worked on, and as what stage."""

    phases: Sequence[Phase]
    finished: Sequence[str]
    """Slices that are done."""
    stage: str | None = None
    """By default the file's phase."""


@dataclass(slots=True)
class Outcomes:
    """The results of all slices of a job."""

    failed: int = 0
    refused: bool = False
    changed: list[str] = field(default_factory=list)
    """Slices that are not as they were planned, or are gone."""
    seen: set[str] = field(default_factory=set)
    remaining: list[RemainingFile] = field(default_factory=list)
    """The first of them."""
    stopped: Stop | None = None

    @property
    def lines(self) -> str:
        return "\n".join(f"{file.path}: {file.reason}" for file in self.remaining)

    @property
    def report(self) -> dict[str, Any]:
        """For the task's result."""
        named = [{"path": file.path, "reason": file.reason} for file in self.remaining]
        return {"failed": {"files": self.failed, "paths": named}}


@dataclass(frozen=True, slots=True)
class Executors:
    """Work on the slices of an inventory: Spark's executors, or this process for a few files."""

    inventory: InventorySummary
    max_files_here: int
    session: SparkSession | None
    """None for a table so small that this process does all of the work."""

    @classmethod
    @contextmanager
    def open(
        cls, spark: SessionFactory, work: Work, inventory: InventorySummary, max_files_here: int
    ) -> Iterator[Executors]:
        if inventory.files <= max_files_here:
            yield cls(inventory, max_files_here, None)
            return
        with session_for(spark, work, patience=_GRACE) as session:
            yield cls(inventory, max_files_here, session)

    def delete_phase(
        self, phase: Phase, finished: Sequence[str], assignment: Assignment
    ) -> Outcomes:
        """Delete the files of a phase, except for slices that are finished."""
        return self._run(Selection([phase], finished), assignment, executor_work.delete_slice)

    def find_remaining(self, finished: Sequence[str], assignment: Assignment) -> Outcomes:
        """Look for every file of the inventory except for the root, which is still needed."""
        phases = [phase for phase in Phase if phase is not ROOT]
        chosen = Selection(phases, finished, VERIFY)
        return self._run(chosen, assignment, executor_work.verify_slice)

    def _run(self, chosen: Selection, assignment: Assignment, work: SliceWork) -> Outcomes:
        """The last phases of a large table are small, too."""
        files = sum(self.inventory.phases.get(phase, 0) for phase in chosen.phases)
        if self.session is None or files <= self.max_files_here:
            outcomes = self.run_here(chosen, assignment, work)
        else:
            outcomes = self.run_on_spark(self.session, chosen, assignment, work)
        if not outcomes.failed and not outcomes.stopped:
            planned = {n for n in assignment.digests if n.partition("/")[0] in chosen.phases}
            outcomes.changed += sorted(planned - outcomes.seen - set(chosen.finished))
        return outcomes

    def run_on_spark(
        self, session: SparkSession, chosen: Selection, assignment: Assignment, work: SliceWork
    ) -> Outcomes:
        from pyspark.sql import functions as F

        name = F.concat_ws("/", "phase", "_metadata.file_name")
        listed = (
            session.read.schema(_INVENTORY_DDL)
            .parquet(self.inventory.location)
            .where(~F.col("outside") & F.col("phase").isin([str(phase) for phase in chosen.phases]))
            .select(
                (F.lit(chosen.stage) if chosen.stage else F.col("phase")).alias("stage"),
                name.alias("slice"),
                "path",
                "size",
            )
        )
        if chosen.finished:
            listed = listed.where(~F.col("slice").isin(list(chosen.finished)))
        function = functools.partial(executor_work.work_in_spark, assignment, work)
        # Not `toLocalIterator`: with it, a classic session runs one task after the other.
        rows = listed.mapInArrow(function, executor_work.RESULTS_DDL).collect()
        return _sum_up((row.asDict() for row in rows), assignment.max_named)

    def run_here(self, chosen: Selection, assignment: Assignment, work: SliceWork) -> Outcomes:
        """The same in this process: for a few files, a Spark job takes longer."""
        finished = set(chosen.finished)
        left = {
            name: digest
            for name, digest in sorted(assignment.digests.items())
            if name.partition("/")[0] in chosen.phases and name not in finished
        }
        batches = (
            batch
            for name, files in planned_files(self.inventory.location, left)
            for batch in _as_rows(chosen, name, files).to_batches()
        )
        results = executor_work.work_on_slices(assignment, work, batches)
        rows_of_results = (row for result in results for row in result.to_pylist())
        return _sum_up(rows_of_results, assignment.max_named)


def _as_rows(chosen: Selection, name: str, files: pa.Table) -> pa.Table:
    columns: list[Any] = [
        pa.repeat(chosen.stage or name.partition("/")[0], len(files)),
        pa.repeat(name, len(files)),
        files["path"],
        files["size"],
    ]
    return pa.Table.from_arrays(columns, schema=executor_work.FILES)


def _sum_up(results: Iterable[Mapping[str, Any]], max_named: int) -> Outcomes:
    outcomes = Outcomes()
    for result in results:
        outcomes.seen.add(result["slice"])
        outcomes.changed += [result["slice"]] if result["changed"] else []
        outcomes.failed += result["failed"]
        outcomes.refused |= result["refused"]
        room = max_named - len(outcomes.remaining)
        named = zip(result["paths"][:room], result["reasons"][:room], strict=True)
        outcomes.remaining += [RemainingFile(path, reason) for path, reason in named]
        if result["stopped"]:
            outcomes.stopped = Stop(result["stopped"])
    return outcomes
