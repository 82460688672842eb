"""The loop of the writer and of the Kafka reader: works on tables or topics until its time is over.

A subject that fails is retried after a growing pause, and does not hold up the others. Batches in
progress are leased: a thread renews their leases, and takes over batches whose lease has expired.
"""

from __future__ import annotations

import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from moraine.errors import MoraineError, SparkJobFailed, SparkUnavailable
from moraine.ingest.errors import write_failure_of
from moraine.ingest.store import WriterStore
from moraine.ingest.writing.job import interrupt_jobs
from moraine.log import get_logger
from moraine.spark.session import SessionFactory
from moraine.tasks.retry import RetryPolicy

log = get_logger(__name__)

Work = Callable[[], int]
"""Works on one subject, and returns how much was done."""


class BatchWorker(Protocol):
    """Writes batches with Spark."""

    @property
    def active(self) -> set[UUID]: ...

    @property
    def session(self) -> SessionFactory: ...


class LeasedLoop(ABC):
    def __init__(
        self,
        store: WriterStore,
        workers: Sequence[BatchWorker],
        *,
        lease: timedelta,
        parallel: int,
        poll_interval: timedelta,
        idle_pause: timedelta,
        first_pause: timedelta,
        max_pause: timedelta,
    ) -> None:
        """A subject pauses for `idle_pause` when there was nothing to do; after failures for
        `first_pause`, then twice as long each time, up to `max_pause`."""
        self._store = store
        self._workers = workers
        self._beat_interval = lease.total_seconds() / 4
        self._parallel = parallel
        self._poll_interval = poll_interval.total_seconds()
        self._idle_pause = idle_pause.total_seconds()
        self._retry = RetryPolicy(sys.maxsize, first_pause, 2, max_pause)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._busy: set[str] = set()
        self._resume_at: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self._spark_error: SparkUnavailable | None = None
        self.errors: dict[str, BaseException] = {}
        """The last error of each subject whose last attempt failed."""
        self.done = 0
        """How much was done in all."""

    @abstractmethod
    def next_work(self, excluded: Set[str]) -> tuple[str, Work] | None:
        """A subject that is not excluded, and its work; None if there is nothing to do."""

    @abstractmethod
    def log_failure(self, subject: str, **reason: Any) -> None: ...

    def stop(self) -> None:
        """Begin nothing more; work in progress is completed."""
        self._stop.set()
        self._wake.set()

    def run(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> int:
        """Work for so many seconds, or until stopped or over, and return how much was done.

        Raises SparkUnavailable when Spark went away: the next run makes a new session.
        """
        end = time.monotonic() + seconds
        with self._heartbeats(), ThreadPoolExecutor(self._parallel, "ingest") as pool:
            while not self._stop.is_set() and time.monotonic() < end and not is_over():
                self._wake.clear()
                try:
                    self._start_work(pool)
                except MoraineError as error:
                    log.warning("ingest.loop.waits", error=error.code)
                self._wake.wait(self._poll_interval)
            self._stop.set()
        if self._spark_error is not None:
            raise self._spark_error
        return self.done

    def _start_work(self, pool: ThreadPoolExecutor) -> None:
        while len(self._busy) < self._parallel and not self._stop.is_set():
            now = time.monotonic()
            paused = {subject for subject, at in self._resume_at.copy().items() if at > now}
            found = self.next_work(self._busy | paused)
            if found is None:
                return
            subject, work = found
            self._busy.add(subject)
            pool.submit(work).add_done_callback(partial(self._finished, subject))

    def _finished(self, subject: str, future: Future[int]) -> None:
        error = future.exception()
        if error is None:
            self.done += future.result()
            del self._failures[subject]
            self.errors.pop(subject, None)
            pause = 0.0 if future.result() else self._idle_pause
        else:
            pause = self._failed(subject, error)
        self._resume_at.pop(subject, None)
        if pause:
            self._resume_at[subject] = time.monotonic() + pause
        self._busy.discard(subject)
        self._wake.set()

    def _failed(self, subject: str, error: BaseException) -> float:
        if isinstance(error, SparkUnavailable) and not isinstance(error, SparkJobFailed):
            # The session is of no use any more.
            self._spark_error = error
            self._stop.set()
        self._failures[subject] += 1
        self.errors[subject] = error
        pause = self._retry.backoff(self._failures[subject]).total_seconds()
        if isinstance(error, MoraineError):
            code, why = error.code, str(error)
        else:
            code, why = write_failure_of(error).values()
        self.log_failure(subject, error=code, why=why, again_in=pause)
        return pause

    @contextmanager
    def _heartbeats(self) -> Iterator[None]:
        """Renew the leases of batches in progress, also while Spark takes long."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(self._beat_interval):
                try:
                    active = [batch for one in self._workers for batch in one.active.copy()]
                    self._store.heartbeat(active)
                    if lost := self._store.lose_silent():
                        log.warning("ingest.batches.taken_over", batches=len(lost))
                        interrupt_jobs(self._workers[0].session(), lost)
                        self._wake.set()
                except MoraineError as error:
                    log.warning("ingest.loop.heartbeat_failed", error=error.code)

        thread = threading.Thread(target=beat, name="ingest-heartbeats", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(timeout=10)
