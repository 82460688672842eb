"""Deleting and verifying on the executors: slice by slice, under the task's fence."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from moraine.failpoints import failpoint
from moraine.operations.purge.inventory import FILES_PER_SLICE
from moraine.operations.purge.order import ROOT, Phase
from moraine.storage.stores import DELETED, MISSING, Failure, Outcome, Storage
from moraine.tasks.slices import Fence, FencedLedger, Slice, Stop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERIFY = "verify"
_COLUMNS = ("stage", "slice", "path", "size")
_END_TYPES: dict[str, pa.DataType] = {
    "failed": pa.int64(),
    "refused": pa.bool_(),
    "paths": pa.list_(pa.string()),
    "reasons": pa.list_(pa.string()),
    "stopped": pa.string(),
}
_ENDS = pa.schema(_END_TYPES)
_ENDS_DDL = (
    "failed bigint, refused boolean, paths array<string>, reasons array<string>, stopped string"
)
_STILL_THERE = "still there after the delete"

SliceWork = Callable[["Site", Slice, list["Item"]], list["Left"]]


@dataclass(frozen=True, slots=True)
class Order:
    """What executors are sent with."""

    fence: Fence
    storage: functools.partial[Storage]
    most_named: int


@dataclass(frozen=True, slots=True)
class Site:
    """Where an executor works."""

    ledger: FencedLedger
    storage: Storage


@dataclass(frozen=True, slots=True)
class Item:
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Left:
    """A file that is still there, and why."""

    path: str
    reason: str
    refused: bool = False


@dataclass(slots=True)
class Outcomes:
    """What the slices of a job came to."""

    failed: int = 0
    refused: bool = False
    left: list[Left] = field(default_factory=list)
    stopped: Stop | None = None


def stages(files_by_phase: Mapping[str, int]) -> Iterator[list[Phase]]:
    """Phases that are deleted in one Spark job: as many in a row as fit in one slice.

    One task takes its files in order, so the phases of a small table need not wait for one job
    each. A phase too large for that has a job, and all executors, to itself. The root is in none.
    """
    group: list[Phase] = []
    total = 0
    for phase in Phase:
        files = files_by_phase.get(phase, 0)
        if not files or phase is ROOT:
            continue
        if group and total + files > FILES_PER_SLICE:
            yield group
            group, total = [], 0
        group.append(phase)
        total += files
    if group:
        yield group


def delete_stage(
    spark: SparkSession,
    inventory: str,
    phases: Sequence[Phase],
    finished: Sequence[str],
    order: Order,
) -> Outcomes:
    """Delete the files of these phases, in order, but for the slices that are finished."""
    from pyspark.sql import functions as F

    listed = _read(spark, inventory, finished).where(F.col("phase").isin([str(p) for p in phases]))
    if len(phases) > 1:
        ranks = F.array(*(F.lit(str(phase)) for phase in Phase))
        rank = F.array_position(ranks, F.col("phase"))
        listed = listed.coalesce(1).sortWithinPartitions(rank, "slice")
    return _run(listed.withColumn("stage", F.col("phase")), order, _delete_slice)


def find_remaining(
    spark: SparkSession, inventory: str, finished: Sequence[str], order: Order
) -> Outcomes:
    """Look for every file of the inventory but the root, which is still needed."""
    from pyspark.sql import functions as F

    listed = _read(spark, inventory, finished).where(F.col("phase") != str(ROOT))
    return _run(listed.withColumn("stage", F.lit(VERIFY)), order, _verify_slice)


def _read(spark: SparkSession, inventory: str, finished: Sequence[str]) -> DataFrame:
    """Each file of the inventory is a slice."""
    from pyspark.sql import functions as F

    name = F.concat_ws("/", "phase", "_metadata.file_name")
    listed = spark.read.parquet(inventory).where(~F.col("outside")).withColumn("slice", name)
    return listed.where(~F.col("slice").isin(list(finished))) if finished else listed


def _run(listed: DataFrame, order: Order, work: SliceWork) -> Outcomes:
    chosen = listed.select(*_COLUMNS)
    function = functools.partial(_work_on_slices, order, work)
    outcomes = Outcomes()
    for row in chosen.mapInArrow(function, _ENDS_DDL).toLocalIterator():
        outcomes.failed += row["failed"]
        outcomes.refused |= row["refused"]
        room = order.most_named - len(outcomes.left)
        named = zip(row["paths"][:room], row["reasons"][:room], strict=True)
        outcomes.left += [Left(path, reason) for path, reason in named]
        if row["stopped"]:
            outcomes.stopped = Stop(row["stopped"])
    return outcomes


# --- On the executors -----------------------------------------------------------------------


def _work_on_slices(
    order: Order, work: SliceWork, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    storage = order.storage()
    try:
        with FencedLedger(order.fence) as ledger:
            site = Site(ledger, storage)
            for (stage, name), items in _slices(batches):
                begun = ledger.begin(stage, name)
                left = work(site, begun, items) if begun else []
                if begun:
                    begun.end(finished=not left and ledger.stopped_by is None)
                yield _end(left, ledger.stopped_by, order.most_named)
                if left or ledger.stopped_by:
                    # What names the files that are left must not go before them.
                    return
    finally:
        storage.close()


def _slices(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[tuple[str, str], list[Item]]]:
    """A slice's rows follow one another; they may be spread over two batches."""
    rows = itertools.chain.from_iterable(
        zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)
        for batch in batches
    )
    for key, members in itertools.groupby(rows, key=lambda row: (row[0], row[1])):
        yield key, [Item(path, size or 0) for _, _, path, size in members]


def _delete_slice(site: Site, progress: Slice, items: list[Item]) -> list[Left]:
    """Files that a lost attempt at this slice deleted are missing now; they count as deleted."""
    done = (DELETED, MISSING) if progress.begun_before else (DELETED,)

    def permit() -> bool:
        failpoint("purge.delete.batch.before")
        return site.ledger.permit()

    def count(places: list[int], outcomes: list[Outcome]) -> None:
        failpoint("purge.delete.batch.after")
        for place, outcome in zip(places, outcomes, strict=True):
            if outcome in done:
                progress.counts.files_done += 1
                progress.counts.bytes_done += items[place].size
            elif outcome is MISSING:
                progress.counts.files_missing += 1
        progress.report()

    outcomes = site.storage.delete([item.path for item in items], permit=permit, on_batch=count)
    return [
        Left(item.path, outcome.reason, outcome.refused)
        for item, outcome in zip(items, outcomes, strict=True)
        if isinstance(outcome, Failure)
    ]


def _verify_slice(site: Site, progress: Slice, items: list[Item]) -> list[Left]:
    paths = [item.path for item in items]
    remaining = site.storage.remaining(paths, permit=site.ledger.permit)
    if site.ledger.stopped_by:
        return []  # not looked for is not there
    progress.counts.files_done = len(paths)
    progress.counts.bytes_done = sum(item.size for item in items)
    return [Left(path, _STILL_THERE) for path in remaining]


def _end(left: list[Left], stopped: Stop | None, most: int) -> pa.RecordBatch:
    # What was refused needs a person; name it first.
    left = sorted(left, key=lambda one: not one.refused)
    end: dict[str, Any] = {
        "failed": len(left),
        "refused": any(one.refused for one in left),
        "paths": [one.path for one in left[:most]],
        "reasons": [one.reason for one in left[:most]],
        "stopped": stopped,
    }
    return pa.RecordBatch.from_pylist([end], schema=_ENDS)
