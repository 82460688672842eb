"""A worker's side of a task: keep the lease, report progress, and write the outcome."""

from __future__ import annotations

import random
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from moraine.errors import (
    Cancelled,
    LeaseLost,
    LedgerUnavailable,
    MoraineError,
    WorkersLost,
)
from moraine.log import get_logger
from moraine.settings import CatalogSettings, Settings
from moraine.tasks.model import LEASED, Claim, Status, Task
from moraine.tasks.retry import RetryAt, decide, policy_for
from moraine.tasks.store import TaskStore

log = get_logger(__name__)

_EXTENDED_LIMIT = 16_000


class Attempt:
    """Keeps a claim alive while the work in the `with` block runs.

    A thread sends heartbeats. When it finds the lease lost or a cancel requested, it calls the
    functions given to `on_stop` (to interrupt the work wherever it blocks), and the block ends with
    that error, whatever the interruption itself raised.
    """

    def __init__(self, store: TaskStore, claim: Claim, interval: timedelta) -> None:
        self.claim = claim
        self._store = store
        self._interval = interval.total_seconds()
        self._progress: dict[str, Any] | None = None
        self._measure: Callable[[], dict[str, Any] | None] | None = None
        self._stopped_by: MoraineError | None = None
        self._on_stop: list[Callable[[], object]] = []
        self._patience = 0.0
        self._done = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def report(self, **progress: Any) -> None:
        """Set the progress that the next heartbeat writes."""
        self._progress = progress

    def report_from(self, measure: Callable[[], dict[str, Any] | None]) -> None:
        """Have every heartbeat call `measure` for the progress. None: no change."""
        self._measure = measure

    def on_stop(self, interrupt: Callable[[], object], *, patience: float = 0) -> None:
        """Call `interrupt` when the work must stop. Work that ends by itself on a cancel gets
        `patience` seconds for that first."""
        self._patience = max(self._patience, patience)
        self._on_stop.append(interrupt)
        if self._stopped_by is not None:
            self._try_to(interrupt)

    def start(self) -> None:
        """Move the task to RUNNING. No heartbeat may name the version before that."""
        with self._writing:
            self.claim = self._store.start(self.claim)

    def check(self, *, ask: bool = False) -> None:
        """Raise the error that stops the work, if there is one. With `ask`, send a heartbeat
        first."""
        if ask and self._stopped_by is None:
            self._beat_once()
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
        has_progress = self._progress is not None or self._measure is not None
        if error is None and self._stopped_by is None and has_progress:
            self._beat_once()
        if self._stopped_by is not None and error is not self._stopped_by:
            raise self._stopped_by from error

    def _beat(self) -> None:
        while not self._done.wait(self._interval):
            self._beat_once()
            if self._stopped_by is not None:
                patience = self._patience if isinstance(self._stopped_by, Cancelled) else 0
                if not self._done.wait(patience):
                    for interrupt in self._on_stop:
                        self._try_to(interrupt)
                return

    def _try_to(self, interrupt: Callable[[], object]) -> None:
        try:
            interrupt()
        except Exception as error:
            log.warning(
                "task.interrupt.failed", task_id=str(self.claim.task_id), error=type(error).__name__
            )

    def _beat_once(self) -> None:
        progress, self._progress = self._progress, None
        try:
            if self._measure is not None:
                progress = self._measure() or progress
            with self._writing:
                cancel_requested = self._store.heartbeat(self.claim, progress)
            if cancel_requested:
                self._stopped_by = Cancelled("Cancelled on request.")
        except LeaseLost as lost:
            self._stopped_by = lost
        except LedgerUnavailable:
            # Unknown is not lost: a worker that takes over raises the version first, and then every
            # write of this worker is refused.
            self._progress = self._progress or progress
            log.warning("task.heartbeat.missed", task_id=str(self.claim.task_id))
        except Exception as error:
            # Progress that cannot be written must not end the heartbeats: the next is without it.
            log.error(
                "task.heartbeat.failed", task_id=str(self.claim.task_id), error=type(error).__name__
            )


class Work:
    """What a step works with: its task, the heartbeat, and the fenced ledger."""

    def __init__(self, store: TaskStore, task: Task, attempt: Attempt) -> None:
        self.task = task
        self.attempt = attempt
        self.account: Callable[[], dict[str, Any]] | None = None
        """Gives the result of an attempt that ends early."""
        self.store = store

    def report(self, **progress: Any) -> None:
        self.attempt.report(**progress)

    def checkpoint(self, **patch: Any) -> None:
        """Save how far the work came, for the steps and attempts after this one.

        Raises if the work was stopped: no heartbeat would interrupt a job that it starts now.
        """
        self.attempt.check()
        self.store.checkpoint(self.attempt.claim, patch)

    def start(self) -> Task:
        """The resources are acquired; the work itself begins."""
        self.attempt.start()
        return self.store.get(self.task.task_id)


@dataclass(frozen=True, slots=True)
class Worker:
    """One Dag run, which makes one attempt at a task under one owner's name."""

    store: TaskStore
    settings: Settings
    owner: str
    catalogs: Callable[[str], CatalogSettings] | None = None
    """Finds a catalog with its secrets, where those are not in the settings."""

    def catalog(self, name: str) -> CatalogSettings:
        return self.catalogs(name) if self.catalogs else self.settings.catalog(name)

    def claim(self, task_id: UUID) -> Task | None:
        """Lease a task for an attempt, or None when there is nothing to do.

        A task whose workers died in every attempt fails here, and so does a task that was cancelled
        while its worker was gone.
        """
        task = self.store.claim_one(task_id, self.owner)
        if task is None:
            return None
        claim = Claim(task.task_id, task.version, self.owner)
        limit = policy_for(task.task_type, self.settings.delegation.retry).max_attempts
        if task.cancel_requested_ts is not None:
            self.fail(claim, task, Cancelled("Cancelled on request."))
            return None
        if task.attempt_count > limit:
            lost = f"All {limit} attempts are used up; the workers of the last ones disappeared."
            self.fail(claim, task, WorkersLost(lost))
            return None
        return task

    def held_claim(self, task: Task) -> Claim | None:
        """The claim this worker holds on a task, if it still holds one."""
        if task.status in LEASED and task.lease_owner == self.owner:
            return Claim(task.task_id, task.version, self.owner)
        return None

    @contextmanager
    def keeping_lease(self, task: Task) -> Iterator[None]:
        """Send heartbeats while another process gets ready for the work, and does it.

        That process has heartbeats of its own, finds out about a lost lease or a cancel, and writes
        the outcome. Until it does, a slow start must not cost it the lease.
        """
        claim, over = self.held_claim(task), threading.Event()
        interval = self.settings.delegation.task.lease.heartbeat_interval.total_seconds()

        def beat() -> None:
            while claim is not None and not over.wait(interval):
                try:
                    self.store.heartbeat(claim)
                except LedgerUnavailable:
                    log.warning("task.heartbeat.missed", task_id=str(task.task_id))
                except LeaseLost:
                    return

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(timeout=interval + 5)

    @contextmanager
    def working_on(self, task_id: UUID) -> Iterator[Work]:
        """One step of an attempt. An error is written to the ledger and raised again."""
        task = self.store.get(task_id)
        claim = self.held_claim(task)
        if claim is None:
            raise LeaseLost(
                f"Task {task_id} is {task.status}; {self.owner} does not hold it any more."
            )
        attempt = Attempt(self.store, claim, self.settings.delegation.task.lease.heartbeat_interval)
        work = Work(self.store, task, attempt)
        try:
            with attempt:
                yield work
        except LeaseLost:
            raise
        except Exception as error:
            account = work.account() if work.account else None
            self.fail(attempt.claim, task, error, account)
            raise

    def succeed(self, claim: Claim, summary: str, result: dict[str, Any]) -> Task:
        task = self.store.advance(
            claim, Status.SUCCESS, "succeeded", result=result, summary=summary
        )
        log.info("task.succeeded", task_id=str(claim.task_id), summary=summary)
        return task

    def fail(
        self, claim: Claim, task: Task, error: Exception, account: dict[str, Any] | None = None
    ) -> Task:
        """Write that an attempt failed: schedule a retry, or end the task as a failure."""
        policy = policy_for(task.task_type, self.settings.delegation.retry)
        attempt = task.attempt_count
        decision = decide(policy, attempt, error, datetime.now(UTC), chance=random.random())  # noqa: S311
        if isinstance(decision, RetryAt):
            status, next_run = Status.RETRY_SCHEDULED, decision.at
            reason = f"attempt {attempt} failed, the next is due at {decision.at:%F %T} UTC"
        else:
            status, next_run = Status.FAILURE, None
            reason = "cancelled" if isinstance(error, Cancelled) else f"given up: {decision.reason}"
        summary = _summarize(error)
        log.warning("task.attempt.failed", task_id=str(task.task_id), reason=reason, why=summary)
        return self.store.advance(
            claim,
            status,
            reason,
            result=_with_report(error, account),
            next_run=next_run,
            error_code=error.code if isinstance(error, MoraineError) else MoraineError.code,
            summary=summary,
            extended=_explain(error),
        )


def _with_report(error: Exception, account: dict[str, Any] | None) -> dict[str, Any] | None:
    report = error.report if isinstance(error, MoraineError) else None
    return {**(account or {}), **(report or {})} or None


def _summarize(error: Exception) -> str:
    """Messages of other libraries' errors may quote connection strings; name only the class."""
    if isinstance(error, MoraineError):
        return str(error)
    return f"An unexpected {type(error).__name__} ended the attempt."


def _explain(error: Exception) -> str:
    """For other libraries' errors only the place: the worker's log has the rest."""
    if isinstance(error, MoraineError):
        return (error.details or str(error))[:_EXTENDED_LIMIT]
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {place.name}, line {place.lineno}; see the worker's log."
