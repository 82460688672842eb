"""What an executor does with its slices: delete or look for their files, under the fence."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from moraine.failpoints import failpoint
from moraine.python_workers import keep_lean
from moraine.storage.stores import DELETED, MISSING, Failure, Outcome, Storage
from moraine.tasks.slices import Fence, FencedLedger, Slice, Stop

COLUMNS = ("stage", "slice", "path", "size")
ENDS_DDL = (
    "failed bigint, refused boolean, paths array<string>, reasons array<string>, stopped string"
)
_END_TYPES: dict[str, pa.DataType] = {
    "failed": pa.int64(),
    "refused": pa.bool_(),
    "paths": pa.list_(pa.string()),
    "reasons": pa.list_(pa.string()),
    "stopped": pa.string(),
}
_ENDS = pa.schema(_END_TYPES)
_STILL_THERE = "still there after the delete"


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
class Files:
    """The files of a slice, in two columns: there are many."""

    paths: list[str]
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class Left:
    """A file that is still there, and why."""

    path: str
    reason: str
    refused: bool = False


SliceWork = Callable[[Site, Slice, Files], list[Left]]


def work_in_spark(
    order: Order, work: SliceWork, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    try:
        yield from work_on_slices(order, work, batches)
    finally:
        keep_lean()


def work_on_slices(
    order: Order, work: SliceWork, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    storage = order.storage()
    try:
        with FencedLedger(order.fence) as ledger:
            site = Site(ledger, storage)
            for stage, name, files in _slices(batches):
                begun = ledger.begin(stage, name)
                left = work(site, begun, files) if begun else []
                if begun:
                    begun.end(finished=not left and ledger.stopped_by is None)
                yield _end(left, ledger.stopped_by, order.most_named)
                if left or ledger.stopped_by:
                    # What names the files that are left must not go before them.
                    return
    finally:
        storage.close()


def _slices(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, str, Files]]:
    """A slice's rows follow one another; they may be spread over two batches."""
    parts = itertools.chain.from_iterable(map(_parts, batches))
    for (stage, name), members in itertools.groupby(parts, key=lambda part: part[:2]):
        files = Files([], [])
        for _, _, paths, sizes in members:
            files.paths.extend(paths)
            files.sizes.extend(sizes)
        yield stage, name, files


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[str, str, list[Any], list[Any]]]:
    """What a batch has of each slice."""
    stages, names, paths, sizes = (batch.column(name) for name in COLUMNS)
    sizes = sizes.fill_null(0)
    ends: list[Any] = pc.call_function("run_end_encode", [names]).run_ends.to_pylist()
    for start, end in itertools.pairwise([0, *ends]):
        rows = slice(start, end)
        stage, name = str(stages[start]), str(names[start])
        yield stage, name, paths[rows].to_pylist(), sizes[rows].to_pylist()


def delete_slice(site: Site, progress: Slice, files: Files) -> list[Left]:
    """Files that a lost attempt at this slice deleted are missing now; they count as deleted."""
    done = (DELETED, MISSING) if progress.begun_before else (DELETED,)

    def permit() -> bool:
        failpoint("purge.delete.batch.before")
        return site.ledger.permit()

    def count(places: list[int], outcomes: list[Outcome]) -> None:
        failpoint("purge.delete.batch.after")
        counts, sizes = progress.counts, files.sizes
        for place, outcome in zip(places, outcomes, strict=True):
            if outcome in done:
                counts.files_done += 1
                counts.bytes_done += sizes[place]
            elif outcome is MISSING:
                counts.files_missing += 1
        progress.report()

    outcomes = site.storage.delete(files.paths, permit=permit, on_batch=count)
    return [
        Left(path, outcome.reason, outcome.refused)
        for path, outcome in zip(files.paths, outcomes, strict=True)
        if isinstance(outcome, Failure)
    ]


def verify_slice(site: Site, progress: Slice, files: Files) -> list[Left]:
    remaining = site.storage.remaining(files.paths, permit=site.ledger.permit)
    if site.ledger.stopped_by:
        return []  # not looked for is not there
    progress.counts.files_done = len(files.paths)
    progress.counts.bytes_done = sum(files.sizes)
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
