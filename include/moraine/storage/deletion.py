"""Bulk deletion of objects, with an outcome for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import obstore

from moraine.storage.clients import Client, StorageLimits, Target
from moraine.storage.credentials import Credentials
from moraine.storage.outcomes import (
    DELETED,
    MISSING,
    UNSENT,
    Kind,
    Outcome,
    Problem,
    outcome_of,
)
from moraine.storage.sending import Permits, Sender, Unsent

OpenClient = Callable[[Target, str, Credentials], Client]


@dataclass(frozen=True, slots=True)
class Batch:
    """Keys for one client, and their positions in the caller's list."""

    target: Target
    location: str
    """One of the locations as the caller wrote it: it selects the credentials."""
    indexes: list[int]
    keys: list[str]

    def part(self, start: int, end: int) -> Batch:
        return Batch(self.target, self.location, self.indexes[start:end], self.keys[start:end])

    def parts(self, size: int) -> list[Batch]:
        return [self.part(start, start + size) for start in range(0, len(self.keys), size)]


@dataclass(repr=False)
class Deletion:
    """One call that deletes many objects.

    The client names only the first key of a request that failed. So a request that the store
    refused in part is repeated key by key, and one whose keys were throttled is repeated in halves:
    deletes are idempotent.
    """

    sender: Sender
    open_client: OpenClient
    permits: Permits
    limits: StorageLimits

    def __post_init__(self) -> None:
        self._singles: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def run(self, batches: Sequence[Batch]) -> Generator[tuple[Batch, list[Outcome]]]:
        """Batches with their outcomes, as they complete. If one raises, the others stop early."""
        pool = ThreadPoolExecutor(min(self.limits.concurrency, len(batches)), "delete")
        futures = {pool.submit(self._delete, batch): batch for batch in batches}
        failed: BaseException | None = None
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is None:
                    yield futures[future], future.result()
                else:
                    self.permits.stop()
                    failed = failed or error
        finally:
            self.permits.stop()
            pool.shutdown()
            if self._singles is not None:
                self._singles.shutdown()
        if failed is not None:
            raise failed

    def _delete(self, batch: Batch) -> list[Outcome]:
        count = len(batch.keys)
        answer = self._send(batch, self.limits.concurrency)
        if not isinstance(answer, Problem):
            return [UNSENT if isinstance(answer, Unsent) else DELETED] * count
        if count == 1 or not answer.of_key:
            return [outcome_of(answer)] * count
        if answer.kind in (Kind.THROTTLED, Kind.BROKEN):
            middle = count // 2
            return self._delete(batch.part(0, middle)) + self._delete(batch.part(middle, count))
        return self._delete_one_by_one(batch)

    def _delete_one_by_one(self, batch: Batch) -> list[Outcome]:
        with self._lock:
            if self._singles is None:
                self._singles = ThreadPoolExecutor(self.limits.head_concurrency, "delete-one")
        return list(self._singles.map(self._delete_one, batch.parts(1)))

    def _delete_one(self, batch: Batch) -> Outcome:
        answer = self._send(batch, self.limits.head_concurrency)
        if isinstance(answer, Problem):
            outcome = outcome_of(answer)
            # A missing object was most likely deleted by the bulk request before.
            return DELETED if outcome is MISSING else outcome
        return UNSENT if isinstance(answer, Unsent) else DELETED

    def _send(self, batch: Batch, max_in_flight: int) -> Problem | Unsent | None:
        def act(credentials: Credentials) -> None:
            client = self.open_client(batch.target, batch.location, credentials)
            obstore.delete(client, batch.keys)

        return self.sender.send(act, self.permits, max_in_flight, splits=len(batch.keys) > 1)
