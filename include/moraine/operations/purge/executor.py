"""What an executor does with its slices: delete or look for their files, under the fence."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from moraine.failpoints import failpoint
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
class Item:
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Left:
    """A file that is still there, and why."""

    path: str
    reason: str
    refused: bool = False


SliceWork = Callable[[Site, Slice, list[Item]], list[Left]]


def work_on_slices(
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
        zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True) for batch in batches
    )
    for key, members in itertools.groupby(rows, key=lambda row: (row[0], row[1])):
        yield key, [Item(path, size or 0) for _, _, path, size in members]


def delete_slice(site: Site, progress: Slice, items: list[Item]) -> list[Left]:
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


def verify_slice(site: Site, progress: Slice, items: list[Item]) -> list[Left]:
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
