"""One batch of requests for one table: coerced and written on Spark, committed at once."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from moraine.errors import MoraineError, SparkJobFailed
from moraine.failpoints import failpoint
from moraine.ingest import executor
from moraine.ingest.columns import Column
from moraine.ingest.errors import BadBody, IngestError
from moraine.ingest.executor import Order, Piece, Unit, UnitResult
from moraine.ingest.ledger import BatchLimits, WriterLedger
from moraine.ingest.leftovers import delete_files, remove_leftovers
from moraine.ingest.maintenance import expire_old_snapshots
from moraine.ingest.model import Applied, Request
from moraine.ingest.otlp import records
from moraine.ingest.schemas import DEFAULT_COLUMNS, PROMOTED, columns_of, new_columns
from moraine.ingest.tables import BATCH, IngestTables, batches_in, keys_in, keys_summary
from moraine.log import get_logger
from moraine.settings.ingest import IngestSettings
from moraine.spark import telling_apart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = get_logger(__name__)

_OWN_COLUMNS: Mapping[str, Sequence[Column]] = {"otlp": records.COLUMNS}
"""Of doors whose tables have columns of their own."""
# What is sent through Spark Connect in one message has a limit.
_INLINE_PER_UNIT = 8 << 20


class Lost(Exception):
    """The batch is another writer's now, or its rows are in the table already."""


@dataclass(slots=True)
class Batch:
    """What is known so far of the requests of a batch."""

    id: UUID
    database: str
    table: str
    requests: dict[int, Request]
    rows: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    extents: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    files: list[DataFile] = field(default_factory=list)
    errors: dict[int, dict[str, Any]] = field(default_factory=dict)
    expected: list[str] = field(default_factory=list)
    """Where its files are, should it be killed before it knows better."""
    unused: list[DataFile] = field(default_factory=list)
    """Files of requests that were refused."""
    attempted: bool = False
    """Whether its files may be the table's: from then on nobody here may delete them."""
    given_up: bool = False
    """Whoever takes its requests next finds out what became of them."""

    def applied(self) -> dict[str, Applied]:
        return {
            request.key: Applied(id, self.rows[id], self.extents[id], self.bytes[id])
            for id, request in self.requests.items()
            if self.rows[id]
        }


class BatchWriter:
    def __init__(
        self,
        settings: IngestSettings,
        ledger: WriterLedger,
        tables: IngestTables,
        session: Callable[[], SparkSession],
    ) -> None:
        self._settings = settings
        self._writer = settings.writer
        self._ledger = ledger
        self._tables = tables
        self._session = session
        self.active: set[UUID] = set()
        """The batches under way, whose leases somebody has to renew."""

    def write(self, database: str, table: str) -> int:
        """Take what waits for a table and settle it; how many requests that were."""
        limits = BatchLimits(
            self._writer.max_batch_requests,
            self._writer.max_batch_bytes,
            self._writer.max_batch_rows,
        )
        id = uuid4()
        self.active.add(id)
        try:
            claimed = self._ledger.claim(id, database, table, limits)
            if claimed:
                batch = Batch(id, database, table, {request.id: request for request in claimed})
                self._settle(batch)
            return len(claimed)
        finally:
            self.active.discard(id)

    def _settle(self, batch: Batch) -> None:
        begun = datetime.now(UTC)
        try:
            table = self._open(batch)
            if table is None:
                return
            self._find_applied(batch, table)
            if batch.requests:
                table = self._coerce(batch, table)
                self._commit(batch, table, begun)
        except Lost:
            log.warning("ingest.batch.lost", batch=str(batch.id))
            if batch.attempted:
                self._give_up(batch)
        except BaseException as error:
            # Not if the database is gone: then the lease runs out, which comes to the same.
            with contextlib.suppress(MoraineError):
                if not batch.attempted:
                    self._ledger.release(batch.id, blamed=isinstance(error, SparkJobFailed))
                if batch.expected:
                    self._give_up(batch)
            raise
        finally:
            if not batch.given_up:
                self._ledger.release(batch.id)
                self._ledger.close(batch.id)

    def interrupt(self, batches: Iterable[UUID]) -> None:
        """Stop what the jobs of lost batches still write."""
        for batch in batches:
            with telling_apart():
                self._session().interruptTag(job_tag(batch))

    def _open(self, batch: Batch) -> Table | None:
        """The table; made now if a request wants that. Without it, all of them are refused."""
        requests = list(batch.requests.values())
        try:
            if not any(request.auto_create for request in requests):
                return self._tables.load(batch.database, batch.table)
            columns = _OWN_COLUMNS.get(requests[0].door, DEFAULT_COLUMNS)
            return self._tables.load_or_create(batch.database, batch.table, columns)
        except IngestError as error:
            told = {"code": error.code, "message": str(error)}
            self._reject(batch, dict.fromkeys(batch.requests, told))
            return None

    def _find_applied(self, batch: Batch, table: Table) -> None:
        """Settle what an earlier writer committed and did not live to say."""
        there = keys_in(table)
        found = [
            there[request.key, id]
            for id, request in batch.requests.items()
            if (request.key, id) in there
        ]
        if found:
            self._ledger.finalize(batch.id, found)
            _remove_bodies(batch.requests.pop(applied.id) for applied in found)

    def _coerce(self, batch: Batch, table: Table) -> Table:
        bodies = self._ledger.bodies(
            id for id, request in batch.requests.items() if request.location is None
        )
        requests = list(batch.requests.values())
        units = list(self._units(requests, bodies, may_widen=True))
        unknown = self._run(batch, table, units)
        if unknown:
            names = new_columns(unknown.values(), self._settings.new_columns)
            table = self._tables.widen(table, names)
            again = [batch.requests[id] for id in unknown]
            first = len(units)
            self._run(batch, table, list(self._units(again, bodies, may_widen=False, first=first)))
        empty = {id for id in batch.requests if not batch.rows[id] and id not in batch.errors}
        for id in empty:
            batch.errors[id] = {"code": BadBody.code, "message": "The body has no line with a row."}
        self._discard(batch, batch.unused)
        self._reject(batch, batch.errors)
        return table

    def _units(
        self,
        requests: Iterable[Request],
        bodies: Mapping[int, bytes],
        *,
        may_widen: bool,
        first: int = 0,
    ) -> Iterator[Unit]:
        """Cut large requests to pieces; put small ones together, for as many tasks as there are
        cores."""
        number = first
        small: list[Piece] = []
        for request in requests:
            evolve = request.schema_evolve
            whole = Piece(request.id, evolve, evolve and may_widen)
            if request.location is None:
                small.append(replace(whole, body=bodies[request.id]))
                continue
            path, size = request.location, request.body_bytes
            cut = self._writer.piece_bytes
            pieces = max(1, round(size / cut))
            for place in range(pieces):
                start, end = size * place // pieces, size * (place + 1) // pieces
                yield Unit(number, [replace(whole, path=path, start=start, end=end)])
                number += 1
        for group in _groups(small):
            yield Unit(number, group)
            number += 1

    def _run(self, batch: Batch, table: Table, units: Sequence[Unit]) -> dict[int, list[str]]:
        """Write the units; which fields of which requests should have columns first."""
        order = order_for(batch.id, table)
        batch.expected += [
            executor.expected_file(order.metadata, batch.id, unit.number) for unit in units
        ]
        if not self._ledger.hold(batch.id, batch.expected):
            raise Lost
        results = run_on_spark(self._session(), order, units)
        failpoint("ingest.written")
        unknown: dict[int, list[str]] = defaultdict(list)
        for result in results:
            for piece in result.pieces:
                if piece.error and _is_first(batch.errors.get(piece.request), piece.error):
                    batch.errors[piece.request] = dict(piece.error)
                unknown[piece.request] += piece.unknown
        unknown = {id: names for id, names in unknown.items() if names and id not in batch.errors}
        for result in results:
            owners = {piece.request for piece in result.pieces if piece.rows}
            if owners <= batch.errors.keys() | unknown.keys():
                batch.unused += result.files
            else:
                self._count(batch, result)
        return unknown

    def _count(self, batch: Batch, result: UnitResult) -> None:
        batch.files += result.files
        size = sum(file.file_size_in_bytes for file in result.files)
        rows = sum(piece.rows for piece in result.pieces)
        for piece in result.pieces:
            if piece.rows:
                batch.rows[piece.request] += piece.rows
                batch.extents[piece.request] += len(result.files)
                batch.bytes[piece.request] += size * piece.rows // rows

    def _commit(self, batch: Batch, table: Table, begun: datetime) -> None:
        applied = batch.applied()
        if not applied:
            return
        uuid = table.metadata.table_uuid
        paths = [file.file_path for file in batch.files]
        if not self._ledger.hold(batch.id, paths):
            self._discard(batch, batch.files)  # nobody has tried to commit them
            raise Lost
        started = time.monotonic()

        ours = {(key, one.id) for key, one in applied.items()}

        def may_commit(table: Table) -> bool:
            return (
                table.metadata.table_uuid == uuid
                and self._ledger.hold(batch.id, paths)
                and ours.isdisjoint(keys_in(table))
            )

        summary = {**keys_summary(applied), BATCH: str(batch.id)}
        batch.attempted = True
        done = self._tables.append(
            table, batch.files, summary, may_commit, attempts=self._writer.commit_attempts
        )
        failpoint("ingest.committed")
        if done is None:
            done = self._settle_lost_commit(batch)
        found = keys_in(done)
        outcomes = [found[key, one.id] for key, one in applied.items()]
        self._ledger.count_commit("writer", time.monotonic() - started)
        failpoint("ingest.before_finalize")
        self._ledger.finalize(batch.id, outcomes)
        _remove_bodies(batch.requests.values())
        self._clean_up(batch, done, begun)

    def _settle_lost_commit(self, batch: Batch) -> Table:
        """The commit is not permitted any more: because it landed after all, or another's did."""
        table = self._tables.load(batch.database, batch.table)
        if str(batch.id) in batches_in(table):
            return table
        raise Lost

    def _give_up(self, batch: Batch) -> None:
        """Its files stay until another's commit makes sure that nobody can commit them."""
        batch.given_up = True
        self._ledger.give_up(batch.id)

    def _clean_up(self, batch: Batch, table: Table, begun: datetime) -> None:
        """Remove what lost batches left behind: after this commit nobody can commit it. Keep the
        table's history short."""
        lost = self._ledger.lost_files(batch.database, batch.table, begun)
        for id, paths in lost.items():
            # Those of partitions are not where they were expected.
            remove_leftovers(table, id, paths if table.spec().is_unpartitioned() else ())
            self._ledger.close(id)
        expire_old_snapshots(
            table,
            keep=self._writer.snapshots_kept,
            in_doubt=lambda: self._ledger.in_doubt(batch.database, batch.table, batch.id),
        )

    def _reject(self, batch: Batch, errors: dict[int, dict[str, Any]]) -> None:
        if errors:
            self._ledger.reject(batch.id, errors)
            _remove_bodies(batch.requests.pop(id) for id in errors)

    def _discard(self, batch: Batch, files: Sequence[DataFile]) -> None:
        """Delete files that nobody has tried to commit."""
        if files:
            table = self._tables.load(batch.database, batch.table)
            delete_files(table, [file.file_path for file in files])


def order_for(batch: UUID, table: Table) -> Order:
    history: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "current_snapshot_id": None,
        "statistics": [],
    }
    properties = table.metadata.properties
    return Order(
        batch,
        table.metadata.model_copy(update=history),
        # Among them may be the client's own principal, which is no text and stays here.
        {name: text for name, text in table.io.properties.items() if isinstance(text, str)},
        columns_of(table.schema()),
        {
            name.removeprefix(PROMOTED): column
            for name, column in properties.items()
            if name.startswith(PROMOTED)
        },
    )


def job_tag(batch: UUID) -> str:
    return f"moraine-ingest-{batch}"


def run_on_spark(spark: SparkSession, order: Order, units: Sequence[Unit]) -> list[UnitResult]:
    packed = pa.table({"unit": pa.array([pickle.dumps(unit) for unit in units], pa.binary())})
    function = partial(executor.work_in_spark, order)
    with telling_apart():
        spark.addTag(job_tag(order.batch))
        try:
            frame = spark.createDataFrame(packed).mapInArrow(function, executor.RESULT_DDL)
            rows = frame.collect()
        finally:
            spark.removeTag(job_tag(order.batch))
    return [pickle.loads(bytes(row.result)) for row in rows]  # noqa: S301 - our own executors'


def _groups(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        if group and size + len(piece.body) > _INLINE_PER_UNIT:
            yield group
            group, size = [], 0
        group.append(piece)
        size += len(piece.body)
    if group:
        yield group


def _is_first(known: Mapping[str, Any] | None, error: Mapping[str, Any]) -> bool:
    """Of a request's bad lines the first is told."""
    return known is None or error["line"] < known["line"]


def _remove_bodies(requests: Iterable[Request]) -> None:
    for request in requests:
        if request.location is not None:
            Path(request.location).unlink(missing_ok=True)
