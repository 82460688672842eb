"""The writer: takes waiting requests to their tables, several tables at once.

Any number of writers may run. Each claims its own requests; where two commit to one table, one of
them finds the table changed and commits on top of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from anyio.from_thread import start_blocking_portal

from moraine.ingest.store import STAGED, WRITER, WriterStore
from moraine.ingest.writing.loop import LeasedLoop, Work
from moraine.ingest.writing.service import BatchWriter
from moraine.ledger.listener import Listener
from moraine.log import get_logger
from moraine.settings.ingest import IngestWriterSettings

log = get_logger(__name__)


class Writer(LeasedLoop):
    def __init__(
        self, settings: IngestWriterSettings, store: WriterStore, batches: BatchWriter, url: str
    ) -> None:
        super().__init__(
            store,
            [batches],
            lease=settings.lease,
            parallel=settings.tables_at_once,
            poll_interval=timedelta(seconds=1),
            idle_pause=timedelta(0),
            first_pause=timedelta(seconds=0.5),
            max_pause=timedelta(seconds=10),
        )
        self._linger = settings.linger.total_seconds()
        self._batches = batches
        self._url = url

    def run(self, seconds: float, is_over: Callable[[], bool] = lambda: False) -> int:
        with self._announcements():
            return super().run(seconds, is_over)

    def next_work(self, excluded: Set[str]) -> tuple[str, Work] | None:
        found = self._store.next_table(excluded)
        if found is None:
            return None

        def write() -> int:
            time.sleep(self._linger)
            return self._batches.write(*found)

        return ".".join(found), write

    def log_failure(self, subject: str, **reason: Any) -> None:
        log.warning("ingest.batch.failed", table=subject, **reason)

    @contextmanager
    def _announcements(self) -> Iterator[None]:
        """Wake up when a request is staged. The connection also shows doors that a writer runs."""
        listener = Listener(self._url, STAGED, application_name=WRITER)

        async def wake(_announced: list[str] | None) -> None:
            self._wake.set()

        with start_blocking_portal() as portal:
            listening = portal.start_task_soon(listener.run, wake)
            try:
                yield
            finally:
                listening.cancel()
