"""A task's work on the executors: slice by slice, and only while the attempt holds the task.

An executor asks the ledger right before every request it sends. A lease that runs out, or a cancel
that somebody asks for, so ends the work on every machine within one request, also when the worker
that started it is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Self
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from pydantic import SecretStr

from moraine.errors import LedgerUnavailable
from moraine.sql import load_queries

_SQL = load_queries("moraine.tasks", "slices.sql")
_BROKEN = (psycopg.OperationalError, psycopg.InterfaceError)
_PAUSE = 0.25
_PATIENCE = 60.0
_REPORT_EVERY = 1.0


class Stop(StrEnum):
    """Why no more requests may be sent."""

    LOST = "lost"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Fence:
    """What an executor needs to know whether its attempt still holds the task."""

    ledger: SecretStr
    task_id: UUID
    version: int
    margin: timedelta
    """As long as a request may take: so much of the lease must be left to send one. Nobody can
    take the task over before the lease has run out, so the request is done by then."""


@dataclass(slots=True)
class Counts:
    files_done: int = 0
    files_missing: int = 0
    bytes_done: int = 0
    seconds: float = 0.0


class FencedLedger:
    """An executor's connection to the ledger."""

    def __init__(self, fence: Fence, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.stopped_by: Stop | None = None
        self._fence = fence
        self._clock = clock
        self._margin = fence.margin.total_seconds()
        self._held_until = 0.0
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[dict[str, Any]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def permit(self) -> bool:
        """Whether a request may be sent now. Once it may not, nothing may any more."""
        with self._lock:
            give_up_at = self._clock() + _PATIENCE
            while self.stopped_by is None:
                asked_at = self._clock()
                try:
                    row = self._fetch("look")
                except _BROKEN as error:
                    # Unknown is not lost: what the ledger said last holds until then.
                    if self._clock() < self._held_until:
                        return True
                    self._wait(give_up_at, error)
                    continue
                if row is None:
                    self.stopped_by = Stop.LOST
                elif row["cancel_requested"]:
                    self.stopped_by = Stop.CANCELLED
                else:
                    self._held_until = asked_at + row["time_left"].total_seconds() - self._margin
                    if self._clock() < self._held_until:
                        return True
                    # The next heartbeat extends a lease that nobody has taken over.
                    self._wait(give_up_at, None)
            return False

    def begin(self, stage: str, name: str) -> Slice | None:
        """Begin a slice. None: the attempt does not hold the task."""
        with self._lock:
            row = self._patiently("begin", stage=stage, slice=name)
            if row is None:
                self.stopped_by = Stop.LOST
                return None
            return Slice(self, stage, name, begun_before=row["begun_before"])

    def write(self, stage: str, name: str, counts: Counts, *, finished: bool) -> None:
        with self._lock:
            self._patiently(
                "report",
                stage=stage,
                slice=name,
                files_done=counts.files_done,
                files_missing=counts.files_missing,
                bytes_done=counts.bytes_done,
                seconds=counts.seconds,
                finished=finished,
            )

    def _patiently(self, query: str, **parameters: Any) -> dict[str, Any] | None:
        give_up_at = self._clock() + _PATIENCE
        while True:
            try:
                return self._fetch(query, **parameters)
            except _BROKEN as error:
                self._wait(give_up_at, error)

    def _wait(self, give_up_at: float, error: Exception | None) -> None:
        if self._clock() >= give_up_at:
            raise LedgerUnavailable(
                "An executor could not make sure that its attempt still holds the task."
            ) from error
        time.sleep(_PAUSE)

    def _fetch(self, query: str, **parameters: Any) -> dict[str, Any] | None:
        fence = self._fence
        if self._connection is None or self._connection.closed:
            # A report that a crash of the database loses is made good by doing the slice again.
            self._connection = psycopg.connect(
                fence.ledger.get_secret_value(),
                autocommit=True,
                row_factory=dict_row,
                application_name="moraine executor",
                connect_timeout=5,
                options="-c synchronous_commit=off",
            )
        try:
            cursor = self._connection.execute(
                _SQL[query], {"task_id": fence.task_id, "version": fence.version, **parameters}
            )
            return cursor.fetchone() if cursor.description else None
        except _BROKEN:
            self._connection.close()
            raise


class Slice:
    """One slice that is being done; what came of it goes to the ledger about once a second."""

    def __init__(self, ledger: FencedLedger, stage: str, name: str, *, begun_before: bool) -> None:
        self.begun_before = begun_before
        self.counts = Counts()
        self._ledger = ledger
        self._stage, self._name = stage, name
        self._begun_at = time.monotonic()
        self._next_report = self._begun_at + _REPORT_EVERY

    def report(self) -> None:
        """Tell how far it is, unless that was told just before."""
        if time.monotonic() >= self._next_report:
            self.end(finished=False)
            self._next_report = time.monotonic() + _REPORT_EVERY

    def end(self, *, finished: bool) -> None:
        self.counts.seconds = time.monotonic() - self._begun_at
        self._ledger.write(self._stage, self._name, self.counts, finished=finished)
