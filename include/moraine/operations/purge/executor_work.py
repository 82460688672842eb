"""What Spark's executors do for a purge: read manifests, write the inventory, delete its files.

Each file of the inventory is a slice of the work. Slices are deleted and verified under the fence
of the attempt.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from moraine.errors import MetadataDamaged
from moraine.failpoints import failpoint
from moraine.operations.purge import avro
from moraine.operations.purge.model import PHASE_OF, FileKind, Phase
from moraine.spark.python_workers import keep_lean
from moraine.storage.files import make_private_folder, open_private
from moraine.storage.locations import Roots
from moraine.storage.stores import DELETED, MISSING, Failure, Outcome, Storage

if TYPE_CHECKING:
    from moraine.tasks.slices import Fence, FencedLedger, Slice, Stop

_KINDS = list(FileKind)

# --- Read manifests -------------------------------------------------------------------------

REACHED_DDL = "path string, code int, size bigint"
GONE = -1
"""The code of a manifest or manifest list that is not there."""
_REACHED_TYPES: dict[str, pa.DataType] = {
    "path": pa.string(),
    "code": pa.int32(),
    "size": pa.int64(),
}
_REACHED = pa.schema(_REACHED_TYPES)
_ROWS_PER_BATCH = 10_000
_CONTENTS = (
    FileKind.DATA.number,
    FileKind.POSITION_DELETES.number,
    FileKind.EQUALITY_DELETES.number,
)

Row = tuple[str, int, int | None]
Decode = Callable[[bytes], Iterator[Row]]


def read_each(
    open_storage: Callable[[], Storage], decode: Decode, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the files of these paths. Each is decoded to rows of path, code and size, or is one row
    that says that it is gone."""
    storage = open_storage()
    try:
        for batch in batches:
            paths: list[Any] = batch.column("path").to_pylist()
            for path in paths:
                yield from _batched(read_one(storage, decode, path))
    finally:
        storage.close()


def read_one(storage: Storage, decode: Decode, path: str) -> Iterator[Row]:
    content = storage.read(path)
    if content is None:
        yield path, GONE, None
    else:
        yield from _decoded(path, decode(content))


def decode_manifest_list(content: bytes) -> Iterator[Row]:
    for entry in avro.records(content):
        size = entry["manifest_length"]
        yield avro.path_in(entry, "manifest_path"), FileKind.MANIFEST.number, _number(size)


def decode_manifest(content: bytes) -> Iterator[Row]:
    for entry in avro.records(content):
        file = entry["data_file"]
        # Format version 1 knows data files only.
        code = _number(file.get("content", 0))
        if code not in _CONTENTS:
            raise ValueError("an unknown kind of content")
        if str(file["file_format"]).upper() == "PUFFIN":
            code = FileKind.DELETION_VECTORS.number
        yield avro.path_in(file, "file_path"), code, _number(file["file_size_in_bytes"])


def _number(value: Any) -> int:
    if not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise ValueError("not a number")
    return value


def _decoded(path: str, rows: Iterator[Row]) -> Iterator[Row]:
    """The content has been read, so any error is due to the content."""
    try:
        yield from rows
    except Exception as error:
        raise MetadataDamaged(
            f"{path} is damaged ({type(error).__name__}): which files it names is unknown, and "
            "nothing was deleted."
        ) from error


def _batched(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    while batch := list(itertools.islice(rows, _ROWS_PER_BATCH)):
        columns = zip(zip(*batch, strict=True), _REACHED_TYPES.values(), strict=True)
        arrays = [pa.array(column, kind) for column, kind in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=_REACHED)


# --- Write the inventory --------------------------------------------------------------------

WRITTEN_DDL = "slice string, digest string, code int, outside boolean, files bigint, bytes bigint"
FILES_PER_SLICE = 10_000
# Readers of Parquet ignore folders whose name begins with an underscore.
UNCOMMITTED = "_uncommitted"
_SLICES_IN_MEMORY = 20
_SIZE_REQUESTS_AT_ONCE = 32
_CODES = {
    phase: pa.array([kind.number for kind in _KINDS if PHASE_OF[kind] is phase]) for phase in Phase
}


def write_slices(
    roots: Roots,
    open_storage: Callable[[], Storage],
    target: str,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write the rows of path, code and size, and return what is in each slice.

    Spark's own writer would take each row back from Python, which takes as long as all the rest.
    The slices are written where readers do not see them: if Spark retries a task, what its first
    try wrote must not count.
    """
    storage = open_storage()
    folder = Path(target, UNCOMMITTED)
    try:
        for files in map(functools.partial(_examine, roots, storage), _chunks(batches)):
            for phase, codes in _CODES.items():
                chosen = files.filter(pc.is_in(files["code"], codes))
                for members in _cut(chosen):
                    name = f"{phase}/{uuid4()}.parquet"
                    _write(members, folder / name)
                    yield _count(name, members)
    finally:
        storage.close()
        keep_lean()


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables that are small enough for memory."""
    chunk: list[pa.RecordBatch] = []
    for batch in batches:
        chunk.append(batch)
        if sum(map(len, chunk)) >= FILES_PER_SLICE * _SLICES_IN_MEMORY:
            yield pa.Table.from_batches(chunk)
            chunk = []
    if chunk:
        yield pa.Table.from_batches(chunk)


def _examine(roots: Roots, storage: Storage, files: pa.Table) -> pa.Table:
    """Mark the files outside the table's folders, and find the sizes that no metadata has.

    A file outside is not looked at: Moraine may not be able, or allowed, to read there.
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
    with ThreadPoolExecutor(min(_SIZE_REQUESTS_AT_ONCE, len(paths))) as pool:
        return list(pool.map(storage.size, paths))


def _cut(files: pa.Table) -> Iterator[pa.Table]:
    """Slices of about the same size. They are sorted by path: a disk deletes the files of a folder
    in half the time if they follow one another."""
    if not len(files):
        return
    files = files.sort_by("path")
    count = -(-len(files) // FILES_PER_SLICE)
    bounds = [len(files) * number // count for number in range(count + 1)]
    for start, end in itertools.pairwise(bounds):
        yield files.slice(start, end - start)


def digest_of(paths: Sequence[str | None], sizes: Sequence[int | None]) -> str:
    """The digest of the files of a slice, in their order."""
    return hashlib.sha256(json.dumps([paths, [size or 0 for size in sizes]]).encode()).hexdigest()


def digest_of_rows(rows: pa.Table) -> str:
    """The digest of a slice as it was written. Files outside the table are not worked on."""
    inside: Any = rows.filter(pc.invert(rows["outside"]))
    return digest_of(inside["path"].to_pylist(), inside["size"].to_pylist())


def _write(files: pa.Table, path: Path) -> None:
    make_private_folder(path.parent)
    kinds = pa.array([str(kind) for kind in _KINDS]).take(files["code"].combine_chunks())
    columns: dict[str, Any] = {
        "path": files["path"],
        "kind": kinds,
        "size": files["size"],
        "outside": files["outside"],
    }
    # Paths are unique, so a dictionary of them would only take space.
    with_dictionary: Any = ["kind"]
    table = pa.table(columns)
    with open(open_private(path), "wb") as file:
        pq.write_table(table, file, use_dictionary=with_dictionary, write_statistics=False)


def _count(name: str, files: pa.Table) -> pa.RecordBatch:
    counted = files.group_by(["code", "outside"]).aggregate([([], "count_all"), ("size", "sum")])
    columns: list[Any] = [
        pa.repeat(name, len(counted)),
        pa.repeat(digest_of_rows(files), len(counted)),
        counted["code"].combine_chunks(),
        counted["outside"].combine_chunks(),
        counted["count_all"].combine_chunks(),
        counted["size_sum"].combine_chunks(),
    ]
    names = ["slice", "digest", "code", "outside", "files", "bytes"]
    return pa.RecordBatch.from_arrays(columns, names=names)


# --- Delete and verify ----------------------------------------------------------------------

_FILE_TYPES: dict[str, pa.DataType] = {
    "stage": pa.string(),
    "slice": pa.string(),
    "path": pa.string(),
    "size": pa.int64(),
}
FILES = pa.schema(_FILE_TYPES)
RESULTS_DDL = (
    "slice string, changed boolean, failed bigint, refused boolean, "
    "paths array<string>, reasons array<string>, stopped string"
)
_RESULT_TYPES: dict[str, pa.DataType] = {
    "slice": pa.string(),
    "changed": pa.bool_(),
    "failed": pa.int64(),
    "refused": pa.bool_(),
    "paths": pa.list_(pa.string()),
    "reasons": pa.list_(pa.string()),
    "stopped": pa.string(),
}
_RESULTS = pa.schema(_RESULT_TYPES)
_STILL_THERE = "still there after the delete"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What executors get from the driver."""

    fence: Fence
    storage: functools.partial[Storage]
    digests: Mapping[str, str]
    """The slices as they were planned. Any other is not worked on: other processes may be able to
    write to the workspace."""
    max_named: int
    """How many remaining files are listed for each slice."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What an executor has open."""

    ledger: FencedLedger
    storage: Storage


@dataclass(frozen=True, slots=True)
class SliceFiles:
    """The files of a slice, in two columns: there are many."""

    paths: list[str]
    sizes: list[int]


@dataclass(frozen=True, slots=True)
class RemainingFile:
    """A file that is still there, and why."""

    path: str
    reason: str
    refused: bool = False


SliceWork = Callable[[Resources, "Slice", SliceFiles], list[RemainingFile]]


def work_in_spark(
    assignment: Assignment, work: SliceWork, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    try:
        yield from work_on_slices(assignment, work, batches)
    finally:
        keep_lean()


def work_on_slices(
    assignment: Assignment, work: SliceWork, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    # Only here, because it imports psycopg: workers that write the inventory start faster without.
    from moraine.tasks.slices import FencedLedger

    storage = assignment.storage()
    try:
        with FencedLedger(assignment.fence) as ledger:
            resources = Resources(ledger, storage)
            for stage, name, files in _slices(batches):
                if assignment.digests.get(name) != digest_of(files.paths, files.sizes):
                    yield _result(name, [], None, 0, changed=True)
                    return
                begun = ledger.begin(stage, name)
                remaining = work(resources, begun, files) if begun else []
                if begun:
                    begun.end(finished=not remaining and ledger.stopped_by is None)
                yield _result(name, remaining, ledger.stopped_by, assignment.max_named)
                if remaining or ledger.stopped_by:
                    # Files that name the remaining ones must not be deleted before them.
                    return
    finally:
        storage.close()


def delete_slice(resources: Resources, progress: Slice, files: SliceFiles) -> list[RemainingFile]:
    """Files that a lost attempt at this slice deleted are missing now; they count as deleted."""
    done = (DELETED, MISSING) if progress.begun_before else (DELETED,)

    def permit() -> bool:
        failpoint("purge.delete.batch.before")
        return resources.ledger.permit()

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

    outcomes = resources.storage.delete(files.paths, permit=permit, on_batch=count)
    return [
        RemainingFile(path, outcome.reason, outcome.refused)
        for path, outcome in zip(files.paths, outcomes, strict=True)
        if isinstance(outcome, Failure)
    ]


def verify_slice(resources: Resources, progress: Slice, files: SliceFiles) -> list[RemainingFile]:
    remaining = resources.storage.remaining(files.paths, permit=resources.ledger.permit)
    if resources.ledger.stopped_by:
        return []  # the files were not looked for, so none was found
    progress.counts.files_done = len(files.paths)
    progress.counts.bytes_done = sum(files.sizes)
    return [RemainingFile(path, _STILL_THERE) for path in remaining]


def _slices(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, str, SliceFiles]]:
    """The rows of a slice follow one another; they may be in two batches."""
    parts = itertools.chain.from_iterable(map(_parts, batches))
    for (stage, name), members in itertools.groupby(parts, key=lambda part: part[:2]):
        files = SliceFiles([], [])
        for _, _, paths, sizes in members:
            files.paths.extend(paths)
            files.sizes.extend(sizes)
        yield stage, name, files


def _parts(batch: pa.RecordBatch) -> Iterator[tuple[str, str, list[Any], list[Any]]]:
    """The part of each slice that is in a batch."""
    stages, names, paths, sizes = (batch.column(name) for name in FILES.names)
    sizes = sizes.fill_null(0)
    ends: list[Any] = pc.call_function("run_end_encode", [names]).run_ends.to_pylist()
    for start, end in itertools.pairwise([0, *ends]):
        rows = slice(start, end)
        stage, name = str(stages[start]), str(names[start])
        yield stage, name, paths[rows].to_pylist(), sizes[rows].to_pylist()


def _result(
    name: str,
    remaining: list[RemainingFile],
    stopped: Stop | None,
    max_named: int,
    *,
    changed: bool = False,
) -> pa.RecordBatch:
    # Files that the storage refuses to delete need a person, so they are listed first.
    remaining = sorted(remaining, key=lambda file: not file.refused)
    result: dict[str, Any] = {
        "slice": name,
        "changed": changed,
        "failed": len(remaining),
        "refused": any(file.refused for file in remaining),
        "paths": [file.path for file in remaining[:max_named]],
        "reasons": [file.reason for file in remaining[:max_named]],
        "stopped": stopped,
    }
    return pa.RecordBatch.from_pylist([result], schema=_RESULTS)
