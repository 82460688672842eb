"""One batch of requests for one table: coerced and written by Spark, committed in one snapshot."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from moraine.errors import MoraineError, SparkJobFailed
from moraine.failpoints import failpoint
from moraine.ingest.columns import Column
from moraine.ingest.errors import BadBody, IngestError, UnsupportedTable, write_failure_of
from moraine.ingest.model import AppliedRequest, BatchLimits, IngestRequest
from moraine.ingest.otlp import records
from moraine.ingest.store import WriterStore
from moraine.ingest.tables.cleanup import delete_files, expire_old_snapshots, remove_lost_files
from moraine.ingest.tables.schemas import DEFAULT_COLUMNS, new_columns
from moraine.ingest.tables.service import IngestTables
from moraine.ingest.tables.snapshots import BATCH, batches_in, keys_in, keys_summary
from moraine.ingest.writing.job import (
    Piece,
    Unit,
    UnitResult,
    expected_file,
    order_for,
    run_on_spark,
)
from moraine.log import get_logger
from moraine.settings.ingest import IngestSettings
from moraine.spark.session import SessionFactory

log = get_logger(__name__)

_OWN_COLUMNS: Mapping[str, Sequence[Column]] = {"otlp": records.COLUMNS}
"""Doors whose tables have columns of their own."""
_ACKNOWLEDGED = {"otlp"}
"""Doors that answer before the write: their requests wait until the table is repaired."""
# A message of Spark Connect has a maximum size.
_INLINE_PER_UNIT = 8 << 20


class Lost(Exception):
    """Another writer has taken the batch over, or its rows are in the table already."""


@dataclass(slots=True)
class RequestBatch:
    """The requests of a batch, and what is known about them so far."""

    id: UUID
    database: str
    table: str
    requests: dict[int, IngestRequest]
    rows: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    extents: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    files: list[DataFile] = field(default_factory=list)
    errors: dict[int, dict[str, Any]] = field(default_factory=dict)
    expected: list[str] = field(default_factory=list)
    """The paths of its files, in case the writer is killed before it knows the real ones."""
    unused: list[DataFile] = field(default_factory=list)
    """Files of requests that were refused."""
    attempted: bool = False
    """Whether its files may belong to the table: then this writer must not delete them."""
    given_up: bool = False
    """The next writer of its requests finds out whether they were committed."""

    def applied(self) -> dict[str, AppliedRequest]:
        return {
            request.key: AppliedRequest(id, self.rows[id], self.extents[id], self.bytes[id])
            for id, request in self.requests.items()
            if self.rows[id]
        }


@dataclass(frozen=True, slots=True, repr=False)
class BatchWriter:
    settings: IngestSettings
    store: WriterStore
    tables: IngestTables
    session: SessionFactory
    active: set[UUID] = field(default_factory=set)
    """The batches in progress, whose leases must be renewed."""

    def write(self, database: str, table: str) -> int:
        """Claim the waiting requests of a table, settle them, and return how many."""
        writer = self.settings.writer
        limits = BatchLimits(
            writer.max_batch_requests, writer.max_batch_bytes, writer.max_batch_rows
        )
        id = uuid4()
        self.active.add(id)
        try:
            claimed = self.store.claim(id, database, table, limits)
            if claimed:
                batch = RequestBatch(
                    id, database, table, {request.id: request for request in claimed}
                )
                self._settle(batch)
            return len(claimed)
        finally:
            self.active.discard(id)

    def _settle(self, batch: RequestBatch) -> None:
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
            # If the database is gone the lease expires, with the same effect.
            failure, blamed = write_failure_of(error), isinstance(error, SparkJobFailed)
            with contextlib.suppress(MoraineError):
                if not batch.attempted:
                    self.store.release(batch.id, failure, blamed=blamed)
                if batch.expected:
                    self._give_up(batch, failure)
            raise
        finally:
            if not batch.given_up:
                self.store.release(batch.id)
                self.store.close(batch.id)

    def _open(self, batch: RequestBatch) -> Table | None:
        """The table, created if a request asks for that. None: all requests are rejected."""
        requests = list(batch.requests.values())
        try:
            if any(request.auto_create for request in requests):
                columns = _OWN_COLUMNS.get(requests[0].door, DEFAULT_COLUMNS)
                table = self.tables.load_or_create(batch.database, batch.table, columns)
            else:
                table = self.tables.load(batch.database, batch.table)
            self.tables.check_writable(table)
            return table
        except UnsupportedTable as error:
            self._refuse(batch, error, (one for one in requests if one.door not in _ACKNOWLEDGED))
            if batch.requests:
                raise
        except IngestError as error:
            self._refuse(batch, error, requests)
        return None

    def _refuse(
        self, batch: RequestBatch, error: IngestError, requests: Iterable[IngestRequest]
    ) -> None:
        described = {"code": error.code, "message": str(error)}
        self._reject(batch, {request.id: described for request in requests})

    def _find_applied(self, batch: RequestBatch, table: Table) -> None:
        """Settle requests that an earlier writer committed before it was killed."""
        applied = keys_in(table)
        found = [
            applied[request.key, id]
            for id, request in batch.requests.items()
            if (request.key, id) in applied
        ]
        if found:
            self.store.finalize(batch.id, found)
            _remove_bodies(batch.requests.pop(one.id) for one in found)

    def _coerce(self, batch: RequestBatch, table: Table) -> Table:
        bodies = self.store.bodies(
            id for id, request in batch.requests.items() if request.location is None
        )
        requests = list(batch.requests.values())
        units = list(self._units(requests, bodies, may_widen=True))
        unknown = self._run(batch, table, units)
        if unknown:
            names = new_columns(unknown.values(), self.settings.new_columns)
            table = self.tables.widen(table, names)
            self.tables.check_writable(table)
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
        requests: Iterable[IngestRequest],
        bodies: Mapping[int, bytes],
        *,
        may_widen: bool,
        first: int = 0,
    ) -> Iterator[Unit]:
        """Cut large requests into pieces, and put small ones together."""
        number = first
        small: list[Piece] = []
        for request in requests:
            evolve = request.schema_evolve
            whole = Piece(request.id, evolve, evolve and may_widen)
            if request.location is None:
                small.append(replace(whole, body=bodies[request.id]))
                continue
            path, size = request.location, request.body_bytes
            cut = self.settings.writer.piece_bytes
            pieces = max(1, round(size / cut))
            for place in range(pieces):
                start, end = size * place // pieces, size * (place + 1) // pieces
                yield Unit(number, [replace(whole, path=path, start=start, end=end)])
                number += 1
        for group in _groups(small):
            yield Unit(number, group)
            number += 1

    def _run(
        self, batch: RequestBatch, table: Table, units: Sequence[Unit]
    ) -> dict[int, list[str]]:
        """Write the units, and return the fields that need columns first, by request."""
        order = order_for(batch.id, table)
        batch.expected += [expected_file(order.metadata, batch.id, unit.number) for unit in units]
        if not self.store.hold(batch.id, batch.expected):
            raise Lost
        results = run_on_spark(self.session(), order, units)
        failpoint("ingest.written")
        unknown: dict[int, list[str]] = defaultdict(list)
        for result in results:
            for piece in result.pieces:
                known = batch.errors.get(piece.request)
                # Of a request's bad lines the first is reported.
                if piece.error and (known is None or piece.error.line < known["line"]):
                    batch.errors[piece.request] = piece.error.model_dump()
                unknown[piece.request] += piece.unknown
        unknown = {id: names for id, names in unknown.items() if names and id not in batch.errors}
        for result in results:
            owners = {piece.request for piece in result.pieces if piece.rows}
            if owners <= batch.errors.keys() | unknown.keys():
                batch.unused += result.files
            else:
                self._count(batch, result)
        return unknown

    def _count(self, batch: RequestBatch, result: UnitResult) -> None:
        batch.files += result.files
        size = sum(file.file_size_in_bytes for file in result.files)
        rows = sum(piece.rows for piece in result.pieces)
        for piece in result.pieces:
            if piece.rows:
                batch.rows[piece.request] += piece.rows
                batch.extents[piece.request] += len(result.files)
                batch.bytes[piece.request] += size * piece.rows // rows

    def _commit(self, batch: RequestBatch, table: Table, begun: datetime) -> None:
        applied = batch.applied()
        if not applied:
            return
        uuid = table.metadata.table_uuid
        paths = [file.file_path for file in batch.files]
        if not self.store.hold(batch.id, paths):
            self._discard(batch, batch.files)  # no commit of them was tried
            raise Lost
        started = time.monotonic()

        ours = {(key, one.id) for key, one in applied.items()}

        def may_commit(table: Table) -> bool:
            return (
                table.metadata.table_uuid == uuid
                and self.store.hold(batch.id, paths)
                and ours.isdisjoint(keys_in(table))
            )

        summary = {**keys_summary(applied), BATCH: str(batch.id)}
        batch.attempted = True
        done = self.tables.append(
            table, batch.files, summary, may_commit, attempts=self.settings.writer.commit_attempts
        )
        failpoint("ingest.committed")
        if done is None:
            done = self._settle_lost_commit(batch)
        found = keys_in(done)
        outcomes = [found[key, one.id] for key, one in applied.items()]
        self.store.count_commit("writer", time.monotonic() - started)
        failpoint("ingest.before_finalize")
        self.store.finalize(batch.id, outcomes)
        _remove_bodies(batch.requests.values())
        self._clean_up(batch, done, begun)

    def _settle_lost_commit(self, batch: RequestBatch) -> Table:
        """`may_commit` refused: because the commit landed after all, or another one did."""
        table = self.tables.load(batch.database, batch.table)
        if str(batch.id) in batches_in(table):
            return table
        raise Lost

    def _give_up(self, batch: RequestBatch, failure: Mapping[str, str] | None = None) -> None:
        """Its files stay until another commit makes a commit of them impossible."""
        batch.given_up = True
        self.store.give_up(batch.id, failure)

    def _clean_up(self, batch: RequestBatch, table: Table, begun: datetime) -> None:
        """Remove the files of lost batches, which cannot be committed after this commit, and old
        snapshots."""
        lost = self.store.lost_files(batch.database, batch.table, begun)
        for id, paths in lost.items():
            # Files of partitions are not at the expected paths.
            remove_lost_files(table, id, paths if table.spec().is_unpartitioned() else ())
            self.store.close(id)
        expire_old_snapshots(
            self.tables,
            table,
            keep=self.settings.writer.snapshots_kept,
            in_doubt=lambda: self.store.in_doubt(batch.database, batch.table, batch.id),
        )

    def _reject(self, batch: RequestBatch, errors: dict[int, dict[str, Any]]) -> None:
        if errors:
            self.store.reject(batch.id, errors)
            _remove_bodies(batch.requests.pop(id) for id in errors)

    def _discard(self, batch: RequestBatch, files: Sequence[DataFile]) -> None:
        """Delete files of which no commit was tried."""
        if files:
            table = self.tables.load(batch.database, batch.table)
            delete_files(table, [file.file_path for file in files])


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


def _remove_bodies(requests: Iterable[IngestRequest]) -> None:
    for request in requests:
        if request.location is not None:
            Path(request.location).unlink(missing_ok=True)
