"""The ledger: the only place that speaks SQL about tasks.

Every change of state is one statement, guarded by the version its writer holds, with its history
row in the same transaction. A connection that breaks leaves the outcome of a statement unknown, so
the store looks it up before it repeats anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb
from psycopg_pool import ConnectionPool
from pydantic import SecretStr

from moraine.errors import AlreadyInProgress, IllegalTransition, LeaseLost, TaskNotFound
from moraine.ledger.queries import Queries, Row, load_queries
from moraine.log import get_logger
from moraine.tasks.model import (
    LEASED,
    TRANSITIONS,
    Claim,
    NewTask,
    Status,
    Task,
    TaskFilter,
    TaskVersion,
)
from moraine.tasks.slices import Counts, Fence

log = get_logger(__name__)

_SQL = load_queries("moraine.tasks", "queries.sql")
_TAKE_OVER = "taken over after a lost lease"  # as queries.sql writes it
_BEFORE = {
    status: [before for before, after in TRANSITIONS.items() if status in after]
    for status in Status
}


class TaskStore:
    """`patience` is how long a call is retried while the database does not answer."""

    def __init__(
        self,
        pool: ConnectionPool[Any],
        *,
        lease: timedelta = timedelta(hours=1),
        patience: timedelta = timedelta(0),
    ) -> None:
        self.pool = pool
        self.patience = patience
        self._lease = lease
        self._queries = Queries(pool, _SQL, patience=patience.total_seconds())

    # --- Reading ----------------------------------------------------------------------------

    def get(self, task_id: UUID) -> Task:
        tasks = self._tasks("get", task_id=task_id)
        if not tasks:
            raise TaskNotFound(f"There is no task {task_id}.")
        return tasks[0]

    def get_many(self, task_ids: Iterable[UUID]) -> list[Task]:
        return self._tasks("get_many", task_ids=list(task_ids))

    def history(self, task_id: UUID) -> list[TaskVersion]:
        return self._queries.run_as(TaskVersion, "history", task_id=task_id).rows

    def find(self, wanted: TaskFilter, *, limit: int, before: UUID | None = None) -> list[Task]:
        return self._tasks(
            "find",
            before=before,
            limit=limit,
            status=wanted.status,
            task_type=wanted.task_type,
            subject=wanted.subject,
            realm_id=wanted.realm_id,
            parent_id=wanted.parent_id,
            received_from=wanted.received_from,
            received_until=wanted.received_until,
        )

    def due(self, limit: int) -> Sequence[Task]:
        return self._tasks("due", limit=limit)

    def slice_totals(self, task_id: UUID) -> dict[str, Counts]:
        """What the executors have done so far, by stage."""
        rows = self._queries.run("slice_totals", task_id=task_id)
        return {row.pop("stage"): Counts(**row) for row in rows}

    def finished_slices(self, task_id: UUID, stages: Iterable[str]) -> list[str]:
        rows = self._queries.run("finished_slices", task_id=task_id, stages=list(stages))
        return [row["slice"] for row in rows]

    def totals(self) -> Sequence[Row]:
        return self._queries.run("totals")

    def figure_totals(self, figures: Sequence[str]) -> dict[tuple[str, str], float]:
        """What the results of all tasks add up to, by task type and figure."""
        rows = self._queries.run("figure_totals", figures=list(figures))
        return {(row["task_type"], row["figure"]): float(row["total"]) for row in rows}

    def queue_age(self) -> float:
        return float(self._queries.run("queue_age")[0]["seconds"])

    def ping(self) -> None:
        self._queries.run("ping")

    # --- Writing ----------------------------------------------------------------------------

    def add(self, task: NewTask) -> Task:
        try:
            (added,) = self._tasks(
                "insert",
                task_id=task.task_id,
                realm_id=task.realm_id,
                task_type=task.task_type,
                task_payload=Jsonb(task.task_payload),
                subject=task.subject,
                exclusive=task.exclusive,
                correlation_id=task.correlation_id,
                principal=task.principal,
            )
            return added
        except psycopg.errors.UniqueViolation as error:
            if error.diag.constraint_name != "tasks_exclusive":
                # The id is the caller's, so an earlier, broken try has already written it.
                return self.get(task.task_id)
            raise self._already_in_progress(task) from error

    def claim_one(self, task_id: UUID, owner: str) -> Task | None:
        """Lease this task, or None if it is leased by another, not due, or terminal."""
        found = self._queries.run_as(
            Task, "claim_one", task_id=task_id, owner=owner, lease=self._lease
        )
        task = found.first
        if task is not None and task.reason == _TAKE_OVER:
            log.warning(
                "task.lease.lost",
                task_id=str(task_id),
                attempt=task.attempt_count,
                new_owner=owner,
            )
        if task is None and found.retried:
            now = self.get(task_id)
            if now.lease_owner == owner and now.status is Status.ACQUIRING_RESOURCES:
                return now
        return task

    def start(self, claim: Claim) -> Claim:
        """The resources are acquired and the work begins."""
        task = self.advance(claim, Status.RUNNING, "started")
        return Claim(task.task_id, task.version, claim.owner)

    def advance(
        self,
        claim: Claim,
        status: Status,
        reason: str,
        *,
        result: Row | None = None,
        next_run: datetime | None = None,
        error_code: str | None = None,
        summary: str | None = None,
        extended: str | None = None,
        principal: str | None = None,
    ) -> Task:
        """Move a task on from the version that the claim holds. `principal` is the caller of a
        request for this; without one, a worker does it on behalf of the task's own."""
        try:
            found = self._queries.run_as(
                Task,
                "advance",
                task_id=claim.task_id,
                version=claim.version,
                status=status,
                from_statuses=_BEFORE[status],
                reason=reason,
                next_run=next_run,
                keeps_lease=status in LEASED,
                lease=self._lease,
                restarts=status is Status.SUBMITTED,
                result=None if result is None else Jsonb(result),
                error_code=error_code,
                summary=summary,
                extended=extended,
                principal=principal,
            )
        except psycopg.errors.UniqueViolation as error:
            raise self._already_in_progress(self.get(claim.task_id)) from error
        if found.first is not None:
            return found.first
        task = self.get(claim.task_id)
        if found.retried and self._is_ours(task, claim, status, reason):
            return task
        if task.version == claim.version:
            raise IllegalTransition(
                f"Task {claim.task_id} is {task.status} and cannot become {status}."
            )
        raise LeaseLost(
            f"Task {claim.task_id} is at version {task.version}; this worker held "
            f"{claim.version}. Another worker took over, or the task was ended."
        )

    def heartbeat(self, claim: Claim, progress: Row | None = None) -> bool:
        """Extend the lease. True: a cancel was requested."""
        rows = self._queries.run(
            "heartbeat",
            task_id=claim.task_id,
            version=claim.version,
            progress=None if progress is None else Jsonb(progress),
            lease=self._lease,
        )
        if not rows:
            raise LeaseLost(f"The lease on task {claim.task_id} is lost; this worker stops.")
        return bool(rows[0]["cancel_requested"])

    def checkpoint(self, claim: Claim, patch: Row) -> None:
        rows = self._queries.run(
            "checkpoint",
            task_id=claim.task_id,
            version=claim.version,
            patch=Jsonb(patch),
        )
        if not rows:
            raise LeaseLost(f"The lease on task {claim.task_id} is lost; this worker stops.")

    def reopen_slices(self, claim: Claim) -> None:
        self._queries.run("reopen_slices", task_id=claim.task_id, version=claim.version)

    def forget_slices(self, claim: Claim) -> None:
        self._queries.run("forget_slices", task_id=claim.task_id, version=claim.version)

    def fence(self, claim: Claim, longest_request: timedelta) -> Fence:
        """What executors need to work under this claim."""
        return Fence(
            ledger=SecretStr(str(self.pool.conninfo)),
            task_id=claim.task_id,
            version=claim.version,
            margin=longest_request,
        )

    def request_cancel(self, task_id: UUID, principal: str | None = None) -> Task | None:
        tasks = self._tasks("request_cancel", task_id=task_id, principal=principal)
        return tasks[0] if tasks else None

    def remove_finished(
        self, retention: timedelta, limit: int, figures: Sequence[str]
    ) -> list[UUID]:
        """Remove one batch of tasks that ended longer ago than the retention; returns their ids.

        The `figures` of their results are added to the totals."""
        rows = self._queries.run(
            "remove_finished", retention=retention, limit=limit, figures=list(figures)
        )
        return [row["task_id"] for row in rows]

    # --- The database -----------------------------------------------------------------------

    def _is_ours(self, task: Task, claim: Claim, status: Status, reason: str) -> bool:
        """Whether the write of a broken connection took effect."""
        written = [row for row in self.history(task.task_id) if row.version == claim.version + 1]
        return bool(
            written
            and written[0].status is status
            and written[0].reason == reason
            and (written[0].lease_owner or "") == claim.owner
        )

    def _already_in_progress(self, task: NewTask | Task) -> AlreadyInProgress:
        rows = self._queries.run(
            "find_exclusive",
            realm_id=task.realm_id,
            task_type=task.task_type,
            subject=task.subject,
        )
        if not rows:
            return AlreadyInProgress(
                "A task of this type was at work on the same subject.", task_id=None
            )
        return AlreadyInProgress(
            f"Task {rows[0]['task_id']} ({task.task_type}) is already at work on "
            f"{task.subject}; wait for it or cancel it.",
            task_id=rows[0]["task_id"],
        )

    def _tasks(self, name: str, **parameters: Any) -> list[Task]:
        return self._queries.run_as(Task, name, **parameters).rows
