"""The writer: takes what waits, table by table, for as long as it is let.

Any number of writers may run. Each claims its own requests; where two commit to one table, one of
them finds the table changed and commits on top of that.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any
from uuid import UUID

import psycopg

from moraine.errors import MoraineError, SparkJobFailed, SparkUnavailable
from moraine.ingest.batches import BatchWriter
from moraine.ingest.ledger import STAGED, WRITER, WriterLedger
from moraine.log import get_logger
from moraine.settings.ingest import IngestWriterSettings

log = get_logger(__name__)

_LOOK_SECONDS = 1.0
_LONGEST_PAUSE = 10.0


class Writer:
    def __init__(
        self, settings: IngestWriterSettings, ledger: WriterLedger, batches: BatchWriter, url: str
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._batches = batches
        self._url = url
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._busy: dict[str, Future[int]] = {}
        self._failures: dict[str, int] = defaultdict(int)
        self._resume_at: dict[str, float] = {}
        self._failed_by: SparkUnavailable | None = None
        self.requests = 0
        """How many were settled."""

    def stop(self) -> None:
        """Take nothing more; what is under way is brought to its end."""
        self._stop.set()
        self._wake.set()

    def run(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> int:
        """Write for so long, or until stopped or over. How many requests were settled.

        Raises SparkUnavailable when Spark went away: what it had under way waits again.
        """
        end = time.monotonic() + seconds
        with (
            self._background(self._listen),
            self._background(self._beat),
            ThreadPoolExecutor(self._settings.tables_at_once, "ingest") as pool,
        ):
            while not self._stop.is_set() and time.monotonic() < end and not is_over():
                self._wake.clear()
                try:
                    self._start_what_waits(pool)
                except MoraineError as error:
                    log.warning("ingest.writer.waits", error=error.code)
                self._wake.wait(_LOOK_SECONDS)
            self._stop.set()
        if self._failed_by is not None:
            raise self._failed_by
        return self.requests

    def _start_what_waits(self, pool: ThreadPoolExecutor) -> None:
        now = time.monotonic()
        while len(self._busy) < self._settings.tables_at_once:
            paused = {table for table, at in self._resume_at.items() if at > now}
            found = self._ledger.next_table({*self._busy, *paused})
            if found is None:
                return
            subject = ".".join(found)
            future = pool.submit(self._write, *found)
            self._busy[subject] = future
            future.add_done_callback(partial(self._done, subject))

    def _write(self, database: str, table: str) -> int:
        linger = self._settings.linger.total_seconds()
        if linger:
            time.sleep(linger)
        return self._batches.write(database, table)

    def _done(self, subject: str, done: Future[int]) -> None:
        error = done.exception()
        if error is None:
            self.requests += done.result()
            self._failures.pop(subject, None)
            self._resume_at.pop(subject, None)
        else:
            if isinstance(error, SparkUnavailable) and not isinstance(error, SparkJobFailed):
                # The session is of no use any more; the next writer makes another.
                self._failed_by = error
                self._stop.set()
            self._failures[subject] += 1
            pause = min(_LONGEST_PAUSE, 0.25 * 2 ** self._failures[subject])
            self._resume_at[subject] = time.monotonic() + pause
            code = error.code if isinstance(error, MoraineError) else type(error).__name__
            log.warning("ingest.batch.failed", table=subject, error=code, again_in=pause)
        del self._busy[subject]
        self._wake.set()

    def _listen(self) -> None:
        """Hear that something was staged; over a connection that says that a writer is there."""
        while not self._stop.is_set():
            try:
                with psycopg.connect(
                    self._url, autocommit=True, application_name=WRITER, connect_timeout=5
                ) as connection:
                    connection.execute(f"LISTEN {STAGED}")
                    self._wake.set()
                    while not self._stop.is_set():
                        for _ in connection.notifies(timeout=0.5, stop_after=1):
                            self._wake.set()
            except psycopg.Error as error:
                log.warning("ingest.writer.reconnects", error=type(error).__name__)
                self._stop.wait(1)

    def _beat(self) -> None:
        interval = self._settings.lease.total_seconds() / 4
        while not self._stop.wait(interval) or self._busy:
            try:
                self._ledger.heartbeat(_copy(self._batches.active))
                if lost := self._ledger.lose_silent():
                    log.warning("ingest.batches.taken_over", batches=len(lost))
                    self._batches.interrupt(lost)
                    self._wake.set()
            except MoraineError as error:
                log.warning("ingest.writer.pulse", error=error.code)
            if self._stop.is_set():
                time.sleep(min(interval, 0.5))

    @contextmanager
    def _background(self, work: Callable[[], Any]) -> Iterator[None]:
        thread = threading.Thread(target=work, name=work.__name__, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(timeout=10)


def _copy(batches: set[UUID]) -> list[UUID]:
    while True:
        try:
            return list(batches)
        except RuntimeError:  # it changed meanwhile
            continue
