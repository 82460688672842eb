"""A worker's side of a task: hold the lease, beat, report, and settle what came of it."""

from __future__ import annotations

import random
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from moraine.errors import Cancelled, FinalError, LeaseLost, LedgerUnavailable, MoraineError
from moraine.log import get_logger
from moraine.tasks.model import Claim, Status, Task
from moraine.tasks.retry import RetryAt, RetryPolicy, decide
from moraine.tasks.store import TaskStore

log = get_logger(__name__)

_EXTENDED_LIMIT = 16_000


class Attempt:
    """Keeps a claim alive while the work in the `with` block goes on.

    A thread beats beside the work. When it finds the lease lost or a cancel asked for, it calls
    what was given to `on_stop` (to interrupt the work wherever it blocks), and the block ends
    with that error, whatever the interruption itself raised.
    """

    def __init__(self, store: TaskStore, claim: Claim, interval: timedelta) -> None:
        self.claim = claim
        self._store = store
        self._interval = interval.total_seconds()
        self._progress: dict[str, Any] | None = None
        self._stopped_by: MoraineError | None = None
        self._on_stop: list[Callable[[], None]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def report(self, **progress: Any) -> None:
        """Tell how far the work is; the next heartbeat carries it."""
        self._progress = progress

    def on_stop(self, interrupt: Callable[[], None]) -> None:
        self._on_stop.append(interrupt)

    def check(self) -> None:
        """Raise what stops the work, if anything does."""
        if self._stopped_by is not None:
            raise self._stopped_by

    def __enter__(self) -> Self:
        self._beat_once()
        self.check()
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join(timeout=self._interval + 5)
        if error is None and self._stopped_by is None and self._progress is not None:
            self._beat_once()
        if self._stopped_by is not None and error is not self._stopped_by:
            raise self._stopped_by from error

    def _beat(self) -> None:
        while not self._done.wait(self._interval):
            self._beat_once()
            if self._stopped_by is not None:
                for interrupt in self._on_stop:
                    interrupt()
                return

    def _beat_once(self) -> None:
        progress, self._progress = self._progress, None
        try:
            if self._store.heartbeat(self.claim, progress):
                self._stopped_by = Cancelled("Cancelled on request.")
        except LeaseLost as lost:
            self._stopped_by = lost
        except LedgerUnavailable:
            # Unknown is not lost: whoever takes over has to raise the version first, and then
            # every write of this worker is refused.
            self._progress = self._progress or progress
            log.warning("task.heartbeat.missed", task_id=str(self.claim.task_id))


def claim_task(store: TaskStore, task_id: UUID, owner: str, policy: RetryPolicy) -> Task | None:
    """Lease a task for an attempt, or None when there is nothing to do.

    A task whose workers vanished time and again is given up here, and so is one that somebody
    asked to cancel while its worker was gone.
    """
    task = store.claim_one(task_id, owner)
    if task is None:
        return None
    claim = Claim(task.task_id, task.version, owner)
    if task.cancel_requested_ts is not None:
        fail(store, claim, Cancelled("Cancelled on request."), policy, task.attempt_count)
        return None
    if task.attempt_count > policy.max_attempts:
        exhausted = FinalError(
            f"All {policy.max_attempts} attempts ended without a word from their workers."
        )
        exhausted.code = "WORKER_LOST"  # type: ignore[misc]
        fail(store, claim, exhausted, policy, policy.max_attempts)
        return None
    return task


def succeed(store: TaskStore, claim: Claim, summary: str, result: dict[str, Any]) -> Task:
    task = store.advance(claim, Status.SUCCESS, "succeeded", result=result, summary=summary)
    log.info("task.succeeded", task_id=str(claim.task_id), summary=summary)
    return task


def fail(
    store: TaskStore,
    claim: Claim,
    error: Exception,
    policy: RetryPolicy,
    attempt: int,
    *,
    result: dict[str, Any] | None = None,
) -> Task:
    """Write down that an attempt failed: a retry is scheduled, or the task has failed for good."""
    decision = decide(policy, attempt, error, datetime.now(UTC), chance=random.random())  # noqa: S311
    code = error.code if isinstance(error, MoraineError) else MoraineError.code
    summary = str(error) if isinstance(error, MoraineError) else _unexpected(error)
    extended = _explain(error)
    if isinstance(decision, RetryAt):
        status, next_run = Status.RETRY_SCHEDULED, decision.at
        reason = f"attempt {attempt} failed, the next is due at {decision.at:%Y-%m-%d %H:%M:%S} UTC"
    else:
        status, next_run = Status.FAILURE, None
        reason = "cancelled" if isinstance(error, Cancelled) else f"given up: {decision.reason}"
    task = store.advance(
        claim,
        status,
        reason,
        next_run=next_run,
        error_code=code,
        summary=summary,
        extended=extended,
        result=result,
    )
    log.warning("task.attempt.failed", task_id=str(claim.task_id), code=code, reason=reason)
    return task


def _unexpected(error: Exception) -> str:
    """Messages of foreign errors may quote connection strings; name only their kind."""
    return f"An unexpected {type(error).__name__} ended the attempt."


def _explain(error: Exception) -> str:
    """Where it failed. For foreign errors only the places: their messages may hold secrets."""
    if isinstance(error, MoraineError):
        return (error.details or str(error))[:_EXTENDED_LIMIT]
    places = "".join(traceback.format_tb(error.__traceback__))
    return f"{type(error).__name__}\n{places}"[-_EXTENDED_LIMIT:]
