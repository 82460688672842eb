"""A writer that keeps rows in memory, to test doors: they only know the ledger."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from moraine.ingest.model import AppliedRequest, BatchLimits, IngestRequest
from moraine.ingest.store import WriterStore
from moraine.ledger.pools import open_pool

_LIMITS = BatchLimits(1000, 1 << 40, 1 << 40)


class StandInWriter:
    """Settles what is staged. A body with the line `BAD` is rejected."""

    def __init__(self, pool: Any) -> None:
        self._store = WriterStore(
            pool, "stand-in", lease=timedelta(minutes=1), lifetime=timedelta(hours=24)
        )
        self.written: list[tuple[str, bytes]] = []
        self.rejected: list[str] = []

    def write(self) -> int:
        """Everything that waits; how many requests that were."""
        count = 0
        while found := self._store.next_table(()):
            batch = uuid4()
            requests = self._store.claim(batch, *found, _LIMITS)
            bodies = {request.id: self._body(request) for request in requests}
            bad = {id for id, body in bodies.items() if b"BAD" in body.splitlines()}
            error = {"code": "invalid_line", "message": "line 2: not JSON", "line": 2}
            self._store.reject(batch, dict.fromkeys(bad, error))
            good = [request for request in requests if request.id not in bad]
            self._store.finalize(batch, [AppliedRequest(one.id, 1, 1, 1, 7) for one in good])
            self.written += [
                (f"{one.database_name}.{one.table_name}", bodies[one.id]) for one in good
            ]
            self.rejected += [
                f"{one.database_name}.{one.table_name}" for one in requests if one.id in bad
            ]
            self._store.close(batch)
            count += len(requests)
        return count

    def _body(self, request: IngestRequest) -> bytes:
        if request.location:
            return Path(request.location).read_bytes()
        return self._store.bodies([request.id])[request.id]

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()

        def run() -> None:
            while not stop.wait(0.05):
                self.write()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


@contextmanager
def stand_in_writer(url: str) -> Iterator[StandInWriter]:
    with open_pool(url, size=2) as pool:
        yield StandInWriter(pool)
