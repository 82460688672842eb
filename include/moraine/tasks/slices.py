"""A task's work on the executors: slice by slice, and only while the attempt holds the task.

An executor asks the ledger right before every request it sends. So an expired lease or a requested
cancel ends the work on every machine within one request, also when the worker that started it is
gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Self
from uuid import UUID

from pydantic import SecretStr

from moraine.errors import LedgerUnavailable
from moraine.ledger.pools import SingleConnection
from moraine.ledger.queries import Queries, Row, load_queries

_SQL = load_queries("moraine.tasks", "slices.sql")
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
    """The maximum duration of a request. That much of the lease must be left to send one. No worker
    can take the task over before the lease expires, so the request has ended by then."""


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
        # A report that a crash of the database loses is replaced when the slice is done again.
        self._connection = SingleConnection(
            fence.ledger.get_secret_value(),
            application_name="moraine executor",
            options="-c synchronous_commit=off",
        )
        self._looks = Queries(self._connection, _SQL, clock=clock)
        self._writes = Queries(self._connection, _SQL, patience=_PATIENCE, clock=clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._connection.close()

    def permit(self) -> bool:
        """Whether a request may be sent now. After the first no, every answer is no."""
        with self._lock:
            give_up_at = self._clock() + _PATIENCE
            while self.stopped_by is None:
                unanswered = None
                try:
                    if self._look():
                        return True
                except LedgerUnavailable as error:
                    # Unknown is not lost: the lease holds until the time that was read last.
                    if self._clock() < self._held_until:
                        return True
                    unanswered = error
                if self.stopped_by is None:
                    # The next heartbeat extends a lease that no other worker has taken over.
                    self._wait(give_up_at, unanswered)
            return False

    def _look(self) -> bool:
        """Whether enough of the lease is left to send a request."""
        asked_at = self._clock()
        rows = self._looks.run("look", **self._attempt())
        if not rows:
            self.stopped_by = Stop.LOST
            return False
        if rows[0]["cancel_requested"]:
            self.stopped_by = Stop.CANCELLED
            return False
        self._held_until = asked_at + rows[0]["time_left"].total_seconds() - self._margin
        return self._clock() < self._held_until

    def begin(self, stage: str, name: str) -> Slice | None:
        """Begin a slice. None: the attempt does not hold the task."""
        with self._lock:
            rows = self._writes.run("begin", **self._attempt(), stage=stage, slice=name)
            if not rows:
                self.stopped_by = Stop.LOST
                return None
            return Slice(self, stage, name, begun_before=rows[0]["begun_before"])

    def write(self, stage: str, name: str, counts: Counts, *, finished: bool) -> None:
        with self._lock:
            self._writes.run(
                "report",
                **self._attempt(),
                stage=stage,
                slice=name,
                files_done=counts.files_done,
                files_missing=counts.files_missing,
                bytes_done=counts.bytes_done,
                seconds=counts.seconds,
                finished=finished,
            )

    def _wait(self, give_up_at: float, error: Exception | None) -> None:
        if self._clock() >= give_up_at:
            raise LedgerUnavailable(
                "An executor could not make sure that its attempt still holds the task."
            ) from error
        time.sleep(_PAUSE)

    def _attempt(self) -> Row:
        return {"task_id": self._fence.task_id, "version": self._fence.version}


class Slice:
    """One slice that is being done. Its counts go to the ledger about once a second."""

    def __init__(self, ledger: FencedLedger, stage: str, name: str, *, begun_before: bool) -> None:
        self.begun_before = begun_before
        self.counts = Counts()
        self._ledger = ledger
        self._stage, self._name = stage, name
        self._begun_at = time.monotonic()
        self._next_report = self._begun_at + _REPORT_EVERY

    def report(self) -> None:
        """Write the counts, at most once a second."""
        if time.monotonic() >= self._next_report:
            self.end(finished=False)
            self._next_report = time.monotonic() + _REPORT_EVERY

    def end(self, *, finished: bool) -> None:
        self.counts.seconds = time.monotonic() - self._begun_at
        self._ledger.write(self._stage, self._name, self.counts, finished=finished)
