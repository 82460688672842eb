"""Deleting and verifying what an inventory lists: on Spark, or right here if it is little."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from moraine.operations.purge import executor
from moraine.operations.purge.executor import Left, Order, SliceWork
from moraine.operations.purge.inventory import INVENTORY_DDL
from moraine.operations.purge.order import ROOT, Phase
from moraine.operations.purge.slicing import FILES_PER_SLICE
from moraine.storage.files import local_path
from moraine.tasks.slices import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERIFY = "verify"
_RANKS = {str(phase): rank for rank, phase in enumerate(Phase)}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which files of an inventory are to be worked on, and as what stage."""

    phases: Sequence[Phase]
    finished: Sequence[str]
    """Slices that are done. Each file of the inventory is a slice."""
    stage: str | None = None
    """By default the file's phase."""


@dataclass(slots=True)
class Outcomes:
    """What the slices of a job came to."""

    failed: int = 0
    refused: bool = False
    left: list[Left] = field(default_factory=list)
    stopped: Stop | None = None


Run = Callable[[Selection, Order, SliceWork], Outcomes]


def stages(files_by_phase: Mapping[str, int]) -> Iterator[list[Phase]]:
    """Phases that are deleted in one job: as many in a row as fit in one slice.

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
    run: Run, phases: Sequence[Phase], finished: Sequence[str], order: Order
) -> Outcomes:
    """Delete the files of these phases, in order, but for the slices that are finished."""
    return run(Selection(phases, finished), order, executor.delete_slice)


def find_remaining(run: Run, finished: Sequence[str], order: Order) -> Outcomes:
    """Look for every file of the inventory but the root, which is still needed."""
    phases = [phase for phase in Phase if phase is not ROOT]
    return run(Selection(phases, finished, VERIFY), order, executor.verify_slice)


def run_on_spark(
    spark: SparkSession, inventory: str, chosen: Selection, order: Order, work: SliceWork
) -> Outcomes:
    from pyspark.sql import functions as F

    name = F.concat_ws("/", "phase", "_metadata.file_name")
    listed = (
        spark.read.schema(INVENTORY_DDL)
        .parquet(inventory)
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
    if chosen.stage is None and len(chosen.phases) > 1:
        ranks = F.array(*(F.lit(phase) for phase in _RANKS))
        rank = F.array_position(ranks, F.col("stage"))
        listed = listed.coalesce(1).sortWithinPartitions(rank, "slice")
    function = functools.partial(executor.work_in_spark, order, work)
    # Not by an iterator: for that a classic session runs one task after the other.
    rows = listed.mapInArrow(function, executor.ENDS_DDL).collect()
    return _sum_up((row.asDict() for row in rows), order)


def run_here(inventory: str, chosen: Selection, order: Order, work: SliceWork) -> Outcomes:
    """The same in this process: a Spark job takes longer than a few files do."""
    found = pyarrow.dataset.dataset(local_path(inventory), format="parquet", partitioning="hive")
    columns = ["phase", "path", "size", "outside", "__filename"]
    wanted = pc.field("phase").isin([str(phase) for phase in chosen.phases])
    rows = [
        {
            "stage": chosen.stage or row["phase"],
            "slice": f"{row['phase']}/{PurePath(row['__filename']).name}",
            "path": row["path"],
            "size": row["size"],
            "rank": _RANKS[row["phase"]],
        }
        for row in found.to_table(columns=columns, filter=wanted).to_pylist()
        if not row["outside"]
    ]
    left = [row for row in rows if row["slice"] not in set(chosen.finished)]
    left.sort(key=lambda row: (row["rank"], row["slice"]))
    batches = iter([pa.RecordBatch.from_pylist(left)] if left else [])
    ends = executor.work_on_slices(order, work, batches)
    return _sum_up((row for end in ends for row in end.to_pylist()), order)


def _sum_up(ends: Iterable[Mapping[str, Any]], order: Order) -> Outcomes:
    outcomes = Outcomes()
    for end in ends:
        outcomes.failed += end["failed"]
        outcomes.refused |= end["refused"]
        room = order.most_named - len(outcomes.left)
        named = zip(end["paths"][:room], end["reasons"][:room], strict=True)
        outcomes.left += [Left(path, reason) for path, reason in named]
        if end["stopped"]:
            outcomes.stopped = Stop(end["stopped"])
    return outcomes
