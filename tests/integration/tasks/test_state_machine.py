"""Random operations by several workers, against a simple model of what the ledger should say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from moraine.errors import AlreadyInProgress, IllegalTransition, LeaseLost, TaskConflict
from moraine.tasks.model import LEASED, TRANSITIONS, Claim, Status
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore
from support.tasks import submit

from .conftest import Database, lose_lease, noop

WORKERS = st.sampled_from(["ann", "bob", "cyd"])
ANY = st.integers(0, 10**6)
LATER = timedelta(hours=1)


@dataclass
class Model:
    """One task, as it should be."""

    task_id: UUID
    subject: str
    exclusive: bool
    history: list[Status] = field(default_factory=lambda: [Status.SUBMITTED])
    attempts: int = 0
    due: bool = True
    """Whether a worker may take it: it is new, its retry is due, or its lease ran out."""
    cancel_requested: bool = False

    @property
    def status(self) -> Status:
        return self.history[-1]

    @property
    def version(self) -> int:
        return len(self.history)

    def move(self, status: Status, *, due: bool = False) -> None:
        self.history.append(status)
        self.due = due

    def claim(self) -> None:
        self.move(Status.ACQUIRING_RESOURCES)
        self.attempts += 1


class Ledger(RuleBasedStateMachine):
    store: TaskStore
    service: TaskService
    database: Database

    @initialize()
    def begin(self) -> None:
        self.database.execute("TRUNCATE tasks, task_history, task_slices")
        self.tasks: dict[UUID, Model] = {}
        self.claims: list[Claim] = []
        """Every claim that any worker ever held; most are stale."""

    # --- Choosing ---------------------------------------------------------------------------

    def some_task(self, number: int) -> Model | None:
        tasks = list(self.tasks.values())
        return tasks[number % len(tasks)] if tasks else None

    def some_claim(self, number: int) -> Claim | None:
        # Counted from the newest, so that shrunken examples use claims that still hold.
        return self.claims[-1 - number % len(self.claims)] if self.claims else None

    def occupant(self, subject: str) -> Model | None:
        """The live task that has this subject to itself."""
        for task in self.tasks.values():
            if task.exclusive and task.subject == subject and not task.status.terminal:
                return task
        return None

    @contextmanager
    def fenced(
        self, claim: Claim, *, to: Status | None = None, due: bool = False
    ) -> Iterator[Model]:
        """What a write with this claim must lead to; the caller's model changes if it is allowed.

        A transition is named by `to`; without one the write only needs a lease.
        """
        task = self.tasks[claim.task_id]
        if claim.version != task.version:
            expected: type[Exception] | None = LeaseLost
        elif to is None:
            expected = None if task.status in LEASED else LeaseLost
        else:
            expected = None if to in TRANSITIONS[task.status] else IllegalTransition
        if expected is None:
            yield task
            if to is not None:
                task.move(to, due=due)
        else:
            with pytest.raises(expected):
                yield task

    # --- What callers, workers and time do --------------------------------------------------

    @rule(subject=st.sampled_from(["orders", "items"]), dry_run=st.booleans())
    def ask(self, subject: str, dry_run: bool) -> None:
        occupant = None if dry_run else self.occupant(subject)
        if occupant:
            with pytest.raises(AlreadyInProgress) as conflict:
                submit(self.service, noop(subject, dry_run=dry_run))
            assert conflict.value.task_id == occupant.task_id
        else:
            task = submit(self.service, noop(subject, dry_run=dry_run))
            self.tasks[task.task_id] = Model(task.task_id, subject, exclusive=not dry_run)

    @rule(worker=WORKERS, number=ANY)
    def claim_one(self, worker: str, number: int) -> None:
        if task := self.some_task(number):
            claimed = self.store.claim_one(task.task_id, worker)
            assert (claimed is not None) == task.due
            if claimed:
                claim = Claim(task.task_id, claimed.version, worker)
                task.claim()
                assert claimed.version == task.version
                self.claims.append(claim)

    @rule(number=ANY)
    def start(self, number: int) -> None:
        if claim := self.some_claim(number):
            with self.fenced(claim, to=Status.RUNNING):
                self.claims.append(self.store.start(claim))

    @rule(number=ANY, progress=st.none() | st.integers(0, 9))
    def heartbeat(self, number: int, progress: int | None) -> None:
        if claim := self.some_claim(number):
            with self.fenced(claim) as task:
                report = None if progress is None else {"files": progress}
                assert self.store.heartbeat(claim, report) == task.cancel_requested
                task.due = False

    @rule(number=ANY)
    def checkpoint(self, number: int) -> None:
        if claim := self.some_claim(number):
            with self.fenced(claim):
                self.store.checkpoint(claim, {"phase": "data"})

    @rule(number=ANY)
    def lose_lease(self, number: int) -> None:
        task = self.some_task(number)
        if task and task.status in LEASED:
            lose_lease(self.database, task.task_id)
            task.due = True

    @rule(number=ANY, due=st.booleans())
    def fail_for_now(self, number: int, due: bool) -> None:
        if claim := self.some_claim(number):
            next_run = datetime.now(UTC) + (-LATER if due else LATER)
            with self.fenced(claim, to=Status.RETRY_SCHEDULED, due=due):
                self.store.advance(claim, Status.RETRY_SCHEDULED, "failed", next_run=next_run)

    @rule(number=ANY)
    def fail_for_good(self, number: int) -> None:
        if claim := self.some_claim(number):
            with self.fenced(claim, to=Status.FAILURE):
                self.store.advance(claim, Status.FAILURE, "given up", error_code="FINAL_FAILURE")

    @rule(number=ANY)
    def succeed(self, number: int) -> None:
        if claim := self.some_claim(number):
            with self.fenced(claim, to=Status.SUCCESS):
                self.store.advance(claim, Status.SUCCESS, "succeeded")

    @rule(number=ANY)
    def cancel(self, number: int) -> None:
        task = self.some_task(number)
        if task is None:
            return
        if task.status.terminal:
            with pytest.raises(TaskConflict):
                self.service.cancel(task.task_id)
        else:
            self.service.cancel(task.task_id)
            if task.status in LEASED:
                task.cancel_requested = True
            else:
                task.move(Status.FAILURE)

    @rule(number=ANY)
    def retry(self, number: int) -> None:
        task = self.some_task(number)
        if task is None:
            return
        occupant = self.occupant(task.subject) if task.exclusive else None
        if task.status is Status.FAILURE and occupant:
            with pytest.raises(AlreadyInProgress) as conflict:
                self.service.retry(task.task_id)
            assert conflict.value.task_id == occupant.task_id
        elif task.status is Status.FAILURE:
            self.service.retry(task.task_id)
            task.move(Status.SUBMITTED, due=True)
            task.attempts, task.cancel_requested = 0, False
        elif task.status is Status.RETRY_SCHEDULED:
            self.service.retry(task.task_id)
            task.move(Status.RETRY_SCHEDULED, due=True)
        else:
            with pytest.raises(TaskConflict):
                self.service.retry(task.task_id)

    # --- What is always true ----------------------------------------------------------------

    @invariant()
    def the_ledger_says_what_the_model_says(self) -> None:
        for row in self.store.get_many(self.tasks):
            task = self.tasks[row.task_id]
            assert (row.status, row.version) == (task.status, task.version)
            assert row.attempt_count == task.attempts
            assert (row.cancel_requested_ts is not None) == task.cancel_requested

    @invariant()
    def the_history_has_every_version_and_only_legal_steps(self) -> None:
        written: dict[UUID, list[tuple[int, Status]]] = {task_id: [] for task_id in self.tasks}
        for row in self.database.execute("SELECT * FROM task_history ORDER BY version").fetchall():
            written[row["task_id"]].append((row["version"], Status(row["status"])))
        for task in self.tasks.values():
            assert written[task.task_id] == list(enumerate(task.history, start=1))
            assert all(after in TRANSITIONS[before] for before, after in pairwise(task.history))


def test_task_ledger_agrees_with_its_model_under_random_operations(
    store: TaskStore, service: TaskService, database: Database
) -> None:
    def machine() -> Ledger:
        ledger = Ledger()
        ledger.store, ledger.service, ledger.database = store, service, database
        return ledger

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
