"""Deleting many objects in bulk, with an outcome for each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import obstore

from moraine.storage.clients import Client, StorageLimits, Target
from moraine.storage.credentials import Credentials
from moraine.storage.outcomes import DELETED, MISSING, UNSENT, Failure, Outcome
from moraine.storage.problems import EXPIRED_CODES, Kind, Problem
from moraine.storage.sending import Permits, Sender, Unsent

OpenClient = Callable[[Target, str, Credentials], Client]


@dataclass(frozen=True, slots=True)
class Batch:
    """Keys for one request, and where they were in the caller's list."""

    target: Target
    location: str
    """One of them, as the caller wrote it: credentials are chosen by it."""
    indexes: list[int]
    keys: list[str]

    def part(self, start: int, end: int) -> Batch:
        return Batch(self.target, self.location, self.indexes[start:end], self.keys[start:end])


class Deletion:
    """One delete of many objects.

    The client names only the first key of a request that failed. So a request that a store
    refused in part is repeated key by key, and one whose keys are throttled in halves: deleting
    what is already gone does no harm.
    """

    def __init__(
        self, sender: Sender, open_client: OpenClient, permits: Permits, limits: StorageLimits
    ) -> None:
        self._sender = sender
        self._open_client = open_client
        self._permits = permits
        self._limits = limits
        self._singles: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def run(self, batches: Sequence[Batch]) -> Generator[tuple[Batch, list[Outcome]]]:
        """Batches with their outcomes as they are done. If one fails, the others in flight end."""
        pool = ThreadPoolExecutor(min(self._limits.concurrency, len(batches)), "delete")
        futures = {pool.submit(self._delete, batch): batch for batch in batches}
        failed: BaseException | None = None
        try:
            for future in as_completed(futures):
                error = future.exception()
                if error is None:
                    yield futures[future], future.result()
                else:
                    self._permits.stop()
                    failed = failed or error
        finally:
            self._permits.stop()
            pool.shutdown()
            if self._singles is not None:
                self._singles.shutdown()
        if failed is not None:
            raise failed

    def _delete(self, batch: Batch) -> list[Outcome]:
        count = len(batch.keys)
        answer = self._send(batch, self._limits.concurrency)
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
                self._singles = ThreadPoolExecutor(self._limits.head_concurrency, "delete-one")
        ones = [batch.part(at, at + 1) for at in range(len(batch.keys))]
        return list(self._singles.map(self._delete_one, ones))

    def _delete_one(self, batch: Batch) -> Outcome:
        answer = self._send(batch, self._limits.head_concurrency)
        if isinstance(answer, Problem):
            outcome = outcome_of(answer)
            return DELETED if outcome is MISSING else outcome  # by the request before, likely
        return UNSENT if isinstance(answer, Unsent) else DELETED

    def _send(self, batch: Batch, most: int) -> Problem | Unsent | None:
        def act(credentials: Credentials) -> None:
            client = self._open_client(batch.target, batch.location, credentials)
            obstore.delete(client, batch.keys)

        return self._sender.send(act, self._permits, most, splits=len(batch.keys) > 1)


def outcome_of(problem: Problem) -> Outcome:
    if problem.kind is Kind.MISSING:
        return MISSING
    return Failure(problem.reason, refused=is_final(problem))


def is_final(problem: Problem) -> bool:
    """Whether the store said no, as opposed to: not now, or not with a token so old."""
    expired = any(code in problem.reason for code in EXPIRED_CODES)
    return problem.kind in (Kind.REFUSED, Kind.UNAUTHENTICATED) and not expired
