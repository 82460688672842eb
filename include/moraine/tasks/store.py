"""The ledger: the only place that speaks SQL about tasks.

Every change of state is one statement, guarded by the version its writer holds, with its history
row in the same transaction. A connection that breaks leaves the outcome of a statement unknown;
it is looked up before anything is repeated.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import args_row, dict_row
from psycopg.types.json import Jsonb, set_json_loads
from psycopg_pool import ConnectionPool, PoolTimeout
from pydantic import SecretStr
from pydantic_core import from_json

from moraine.errors import (
    AlreadyInProgress,
    IllegalTransition,
    LeaseLost,
    LedgerUnavailable,
    TaskNotFound,
)
from moraine.log import get_logger
from moraine.sql import load_queries
from moraine.tasks.model import (
    LEASED,
    TRANSITIONS,
    Claim,
    Lease,
    NewTask,
    Status,
    Task,
    TaskFilter,
    TaskVersion,
)
from moraine.tasks.slices import Counts, Fence

log = get_logger(__name__)

TAKE_OVER = "taken over after a lost lease"
_CHAINS = {
    "claim": ("pick_oldest", "lease", "claimed_leases"),
    "claim_of_types": ("pick_oldest_of_types", "lease", "claimed_leases"),
    "claim_one": ("pick_one", "lease", "claimed_task"),
    "succeed_many": ("finish", "finished_count"),
    "exchange": ("finish", "pick_oldest", "lease", "claimed_leases"),
    "exchange_of_types": ("finish", "pick_oldest_of_types", "lease", "claimed_leases"),
}


def _prepare_queries() -> dict[str, bytes]:
    queries = load_queries("moraine.tasks", "queries.sql")
    for name, (*expressions, last) in _CHAINS.items():
        parts = b",\n".join(queries[expression] for expression in expressions)
        queries[name] = b"WITH " + parts + b"\n" + queries[last]
    constants = {
        # In the order of the fields, so that a row is a record's arguments.
        b"{task}": ", ".join(field.name for field in fields(Task)),
        b"{version}": ", ".join(field.name for field in fields(TaskVersion)),
        b"{leased}": ", ".join(f"'{status}'" for status in sorted(LEASED)),
        b"{take_over}": f"'{TAKE_OVER}'",
    }
    for mark, text in constants.items():
        queries = {name: query.replace(mark, text.encode()) for name, query in queries.items()}
    return queries


_SQL = _prepare_queries()
_BEFORE = {
    status: [before for before, after in TRANSITIONS.items() if status in after]
    for status in Status
}
_BROKEN = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)
_PAUSE = 0.25
Row = dict[str, Any]
RowFactory = Callable[[Any], Callable[[Any], Any]]

_TASKS: RowFactory = args_row(Task)
_VERSIONS: RowFactory = args_row(TaskVersion)
_LEASES: RowFactory = args_row(Lease)


def open_pool(url: str, *, size: int = 4, timeout: float = 5.0) -> ConnectionPool[Any]:
    return ConnectionPool(
        url,
        min_size=1,
        max_size=size,
        timeout=timeout,
        open=True,
        kwargs={
            "autocommit": True,
            "application_name": "moraine",
            "connect_timeout": 5,
        },
        configure=lambda connection: set_json_loads(_load_json, connection),
    )


def _load_json(data: bytes | str) -> Any:
    try:
        return from_json(data)
    except ValueError:  # nested deeper, or a number longer, than the fast parser takes
        return json.loads(data)


class TaskStore:
    """`patience` is how long a call goes on trying while the database does not answer."""

    def __init__(
        self,
        pool: ConnectionPool[Any],
        *,
        lease: timedelta = timedelta(hours=1),
        patience: timedelta = timedelta(0),
    ) -> None:
        self.pool = pool
        self._lease = lease
        self._patience = patience.total_seconds()

    # --- Reading ----------------------------------------------------------------------------

    def get(self, task_id: UUID) -> Task:
        tasks = self._tasks("get", task_id=task_id)
        if not tasks:
            raise TaskNotFound(f"There is no task {task_id}.")
        return tasks[0]

    def get_many(self, task_ids: Iterable[UUID]) -> list[Task]:
        return self._tasks("get_many", task_ids=list(task_ids))

    def history(self, task_id: UUID) -> list[TaskVersion]:
        return self._run("history", _VERSIONS, task_id=task_id)[0]

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
        """What the executors did so far, by stage."""
        rows, _ = self._run("slice_totals", task_id=task_id)
        return {row.pop("stage"): Counts(**row) for row in rows}

    def finished_slices(self, task_id: UUID, stages: Iterable[str]) -> list[str]:
        rows, _ = self._run("finished_slices", task_id=task_id, stages=list(stages))
        return [row["slice"] for row in rows]

    def totals(self) -> Sequence[Row]:
        return self._run("totals")[0]

    def queue_age(self) -> float:
        return float(self._run("queue_age")[0][0]["seconds"])

    def ping(self) -> None:
        self._run("ping")

    # --- Writing ----------------------------------------------------------------------------

    def add(self, task: NewTask) -> Task:
        return self.add_many([task])[0]

    def add_many(self, tasks: Sequence[NewTask]) -> Sequence[Task]:
        given = [
            {
                "task_id": str(task.task_id),
                "parent_id": task.parent_id and str(task.parent_id),
                "realm_id": task.realm_id,
                "task_type": task.task_type,
                "task_payload": task.task_payload,
                "subject": task.subject,
                "exclusive": task.exclusive,
                "correlation_id": task.correlation_id,
            }
            for task in tasks
        ]
        try:
            return self._tasks("insert", tasks=Jsonb(given))
        except psycopg.errors.UniqueViolation as error:
            if error.diag.constraint_name != "tasks_exclusive":
                # The ids are ours, so an earlier, broken try has already written them.
                return self.get_many(task.task_id for task in tasks)
            raise self._already_in_progress(tasks) from error

    def claim(
        self,
        owner: str,
        *,
        limit: int = 1,
        task_types: list[str] | None = None,
        status: Status = Status.ACQUIRING_RESOURCES,
    ) -> list[Lease]:
        """Lease the oldest runnable tasks. Work that acquires nothing may claim as RUNNING.

        What a connection leased that broke before it could say so comes back as a lost lease.
        """
        leasing = self._leasing(owner, status, limit=limit)
        return self._leases("claim", task_types, **leasing)

    def claim_one(self, task_id: UUID, owner: str) -> Task | None:
        """Lease this task, or None if it is leased by another, not due, or terminal."""
        status = Status.ACQUIRING_RESOURCES
        tasks, broken = self._run(
            "claim_one", _TASKS, task_id=task_id, **self._leasing(owner, status)
        )
        if tasks:
            task: Task = tasks[0]
            if task.reason == TAKE_OVER:
                _log_take_over(task_id, task.attempt_count, owner)
            return task
        if broken:
            task = self.get(task_id)
            if task.lease_owner == owner and task.status is status:
                return task
        return None

    def start(self, claim: Claim) -> Claim:
        """Resources are there, the work begins."""
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
    ) -> Task:
        """Move a task on from the version that the claim holds."""
        tasks: list[Task]
        try:
            tasks, broken = self._run(
                "advance",
                _TASKS,
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
            )
        except psycopg.errors.UniqueViolation as error:
            raise self._already_in_progress([self.get(claim.task_id)]) from error
        if tasks:
            return tasks[0]
        task = self.get(claim.task_id)
        if broken and self._is_ours(task, claim, status, reason):
            return task
        if task.version == claim.version:
            raise IllegalTransition(
                f"Task {claim.task_id} is {task.status} and cannot become {status}."
            )
        raise LeaseLost(
            f"Task {claim.task_id} is at version {task.version}; this worker held "
            f"{claim.version}. Another worker took over, or somebody ended the task."
        )

    def succeed_many(self, claims: Sequence[Claim], summary: str) -> int:
        """Finish a batch of claims at once; those that were lost meanwhile are left alone."""
        return sum(
            self._run("succeed_many", **finishing)[0][0]["finished"]
            for finishing in _by_version(claims, summary)
        )

    def exchange(
        self,
        claims: Sequence[Claim],
        summary: str,
        owner: str,
        *,
        limit: int,
        task_types: list[str] | None = None,
    ) -> list[Lease]:
        """Finish a batch and lease the next one, RUNNING, in one statement: for workers that go
        through many small tasks. Claims that were lost meanwhile are left alone."""
        if not claims:
            return self.claim(owner, limit=limit, task_types=task_types, status=Status.RUNNING)
        *others, last = _by_version(claims, summary)
        for finishing in others:
            self._run("succeed_many", **finishing)
        leasing = self._leasing(owner, Status.RUNNING, limit=limit)
        return self._leases("exchange", task_types, **last, **leasing)

    def heartbeat(self, claim: Claim, progress: Row | None = None) -> bool:
        """Extend the lease. True: somebody asked to cancel."""
        rows, _ = self._run(
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
        rows, _ = self._run(
            "checkpoint",
            task_id=claim.task_id,
            version=claim.version,
            patch=Jsonb(patch),
        )
        if not rows:
            raise LeaseLost(f"The lease on task {claim.task_id} is lost; this worker stops.")

    def reopen_slices(self, claim: Claim) -> None:
        self._run("reopen_slices", task_id=claim.task_id, version=claim.version)

    def forget_slices(self, claim: Claim) -> None:
        self._run("forget_slices", task_id=claim.task_id, version=claim.version)

    def fence(self, claim: Claim, longest_request: timedelta) -> Fence:
        """What executors need to work under this claim."""
        return Fence(
            ledger=SecretStr(str(self.pool.conninfo)),
            task_id=claim.task_id,
            version=claim.version,
            margin=longest_request,
        )

    def request_cancel(self, task_id: UUID) -> Task | None:
        tasks = self._tasks("request_cancel", task_id=task_id)
        return tasks[0] if tasks else None

    def remove_finished(self, retention: timedelta, limit: int) -> list[UUID]:
        """Remove one batch of tasks that ended longer ago than the retention; their ids."""
        rows, _ = self._run("remove_finished", retention=retention, limit=limit)
        return [row["task_id"] for row in rows]

    # --- The database -----------------------------------------------------------------------

    def _leasing(self, owner: str, status: Status, **picking: Any) -> Row:
        return {"owner": owner, "lease_status": status, "lease": self._lease, **picking}

    def _is_ours(self, task: Task, claim: Claim, status: Status, reason: str) -> bool:
        """Whether the write of a broken connection went through after all."""
        written = [row for row in self.history(task.task_id) if row.version == claim.version + 1]
        return bool(
            written
            and written[0].status is status
            and written[0].reason == reason
            and (written[0].lease_owner or "") == claim.owner
        )

    def _leases(self, name: str, task_types: list[str] | None, **parameters: Any) -> list[Lease]:
        if task_types is not None:
            name, parameters["task_types"] = f"{name}_of_types", task_types
        leases: list[Lease] = self._run(name, _LEASES, **parameters)[0]
        for lease in leases:
            if lease.taken_over:
                _log_take_over(lease.task_id, lease.attempt_count, lease.owner)
        return leases

    def _already_in_progress(self, tasks: Sequence[NewTask | Task]) -> AlreadyInProgress:
        for task in tasks:
            rows, _ = self._run(
                "find_exclusive",
                realm_id=task.realm_id,
                task_type=task.task_type,
                subject=task.subject,
            )
            if rows:
                return AlreadyInProgress(
                    f"Task {rows[0]['task_id']} ({task.task_type}) is already at work on "
                    f"{task.subject}; wait for it or cancel it.",
                    task_id=rows[0]["task_id"],
                )
        return AlreadyInProgress(
            "A task of this type was at work on the same subject.", task_id=None
        )

    def _tasks(self, name: str, **parameters: Any) -> list[Task]:
        return self._run(name, _TASKS, **parameters)[0]

    def _run(
        self, name: str, rows: RowFactory = dict_row, /, **parameters: Any
    ) -> tuple[list[Any], bool]:
        """The rows, and whether an earlier try broke, which may or may not have had its effect."""
        give_up_at = time.monotonic() + self._patience
        broken = False
        while True:
            try:
                with self.pool.connection() as connection:
                    cursor = connection.cursor(binary=True, row_factory=rows)
                    return cursor.execute(_SQL[name], parameters).fetchall(), broken
            except _BROKEN as error:
                # The pool may hold connections that died while nobody used them: one more try.
                last = broken or isinstance(error, PoolTimeout)
                if last and time.monotonic() >= give_up_at:
                    raise LedgerUnavailable(
                        "The ledger's database does not answer.", details=type(error).__name__
                    ) from error
                log.warning("ledger.retry", query=name, error=type(error).__name__)
                if broken:
                    time.sleep(_PAUSE)
                broken = True
                self.pool.check()


def _by_version(claims: Sequence[Claim], summary: str) -> list[Row]:
    """One write for each version that is held: there are as many as attempts differ."""
    task_ids = defaultdict(list)
    for claim in claims:
        task_ids[claim.version].append(claim.task_id)
    return [
        {"version": version, "task_ids": held, "summary": summary}
        for version, held in task_ids.items()
    ]


def _log_take_over(task_id: UUID, attempt: int, new_owner: str) -> None:
    log.warning("task.lease.lost", task_id=str(task_id), attempt=attempt, new_owner=new_owner)
