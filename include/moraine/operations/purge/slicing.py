"""Executors' part of the inventory: they examine the files found and write them down in slices.

Spark's own writer would take each row back from Python, and as long for that as for all the rest.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from moraine.operations.purge.order import PHASE_OF, FileKind, Phase
from moraine.python_workers import keep_lean
from moraine.storage.locations import Roots
from moraine.storage.stores import Storage

FILES_PER_SLICE = 10_000
WRITTEN_DDL = "slice string, code int, outside boolean, files bigint, bytes bigint"
# Readers of Parquet look into no folder whose name begins like this.
UNCOMMITTED = "_uncommitted"
_SLICES_AT_ONCE = 20
_SIZES_AT_ONCE = 32
_KINDS = list(FileKind)
_CODES = {
    phase: pa.array([code for code, kind in enumerate(_KINDS) if PHASE_OF[kind] is phase])
    for phase in Phase
}


def write_slices(
    roots: Roots,
    open_storage: Callable[[], Storage],
    target: str,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write the rows of path, code and size, and tell what is in each slice.

    Not where readers see them: if a task is repeated, what its first try wrote must not count.
    """
    storage = open_storage()
    folder = Path(target, UNCOMMITTED)
    try:
        for files in map(functools.partial(_examine, roots, storage), _parts(batches)):
            for phase, codes in _CODES.items():
                chosen = files.filter(pc.is_in(files["code"], codes))
                for members in _cut(chosen):
                    name = f"{phase}/{uuid4()}.parquet"
                    _write(members, folder / name)
                    yield _count(name, members)
    finally:
        storage.close()
        keep_lean()


def commit_slices(target: str, names: set[str]) -> None:
    """Move the slices of tasks that succeeded to where readers find them."""
    for phase in {name.partition("/")[0] for name in names}:
        Path(target, f"phase={phase}").mkdir()
    for name in names:
        os.rename(Path(target, UNCOMMITTED, name), Path(target, f"phase={name}"))
    Path(target, "_SUCCESS").touch()


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """As much at once as memory is sure to hold."""
    most = FILES_PER_SLICE * _SLICES_AT_ONCE
    part: list[pa.RecordBatch] = []
    for batch in batches:
        part.append(batch)
        if sum(map(len, part)) >= most:
            yield pa.Table.from_batches(part)
            part = []
    if part:
        yield pa.Table.from_batches(part)


def _cut(files: pa.Table) -> Iterator[pa.Table]:
    """In slices of about the same size. A folder's files follow one another: a disk deletes them
    in half the time."""
    if not len(files):
        return
    files = files.sort_by("path")
    count = -(-len(files) // FILES_PER_SLICE)
    bounds = [len(files) * number // count for number in range(count + 1)]
    for start, end in itertools.pairwise(bounds):
        yield files.slice(start, end - start)


def _write(files: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = pa.array([str(kind) for kind in _KINDS]).take(files["code"].combine_chunks())
    columns: dict[str, Any] = {
        "path": files["path"],
        "kind": kinds,
        "size": files["size"],
        "outside": files["outside"],
    }
    # No two paths are equal: a dictionary of them is in vain.
    with_dictionary: Any = ["kind"]
    pq.write_table(pa.table(columns), path, use_dictionary=with_dictionary, write_statistics=False)


def _count(name: str, files: pa.Table) -> pa.RecordBatch:
    counted = files.group_by(["code", "outside"]).aggregate([([], "count_all"), ("size", "sum")])
    columns: list[Any] = [
        pa.repeat(name, len(counted)),
        counted["code"].combine_chunks(),
        counted["outside"].combine_chunks(),
        counted["count_all"].combine_chunks(),
        counted["size_sum"].combine_chunks(),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["slice", "code", "outside", "files", "bytes"])


def _examine(roots: Roots, storage: Storage, files: pa.Table) -> pa.Table:
    """Tell the files outside the table's places, and find the sizes that no metadata knows.

    Nobody asks after a file outside: Moraine may not be able, or allowed, to look there.
    """
    outside = roots.outside(files["path"])
    size: Any = files["size"].combine_chunks()
    wanted = pc.and_not(pc.is_null(size), outside)
    if pc.any(wanted).as_py():
        found = _find_sizes(storage, files["path"].filter(wanted).to_pylist())
        size = pc.replace_with_mask(size, wanted, pa.array(found, pa.int64()))
    examined = files.drop_columns(["size"]).append_column("size", size)
    return examined.append_column("outside", outside)


def _find_sizes(storage: Storage, paths: list[Any]) -> list[int | None]:
    with ThreadPoolExecutor(min(_SIZES_AT_ONCE, len(paths))) as pool:
        return list(pool.map(storage.size, paths))
