"""Admission and care of tasks: what callers, operators and the sweep ask for, in order."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

import uuid6

from moraine.errors import (
    AlreadyInProgress,
    LeaseLost,
    MoraineError,
    RealmMismatch,
    TaskConflict,
)
from moraine.log import get_logger
from moraine.settings import Settings
from moraine.storage.files import remove_folder, task_folder
from moraine.tasks.model import LEASED, Claim, NewTask, Status, Task, TaskFilter
from moraine.tasks.operation import Operation, Parameters, Registry
from moraine.tasks.store import TaskStore

log = get_logger(__name__)

_RE_DRIVEN = "re-driven on request"
_BROUGHT_FORWARD = "retry brought forward on request"
ON_REQUEST = (_RE_DRIVEN, _BROUGHT_FORWARD)
"""Why a task is runnable that nobody but a caller made so."""


class Launcher(Protocol):
    """Starts the work on a task. Starting the same version of a task twice is harmless."""

    def launch(self, dag_id: str, task: Task) -> bool:
        """True if this call started it, False if it had been started before."""
        ...


@dataclass(frozen=True, slots=True)
class Submission:
    """A valid request for a task."""

    operation: Operation
    parameters: Parameters
    realm: str
    correlation_id: str | None = None
    requested_at: datetime | None = None


class TaskService:
    def __init__(
        self, store: TaskStore, launcher: Launcher, operations: Registry, settings: Settings
    ) -> None:
        self.store = store
        self.operations = operations
        self.settings = settings
        self._launcher = launcher

    def admit(
        self,
        submission: Submission,
        *,
        parent_id: UUID | None = None,
        task_id: UUID | None = None,
    ) -> Task:
        """Write the task down. Nothing else has happened before that. With an id of the caller's
        own it is written once, however often it is asked for."""
        if submission.realm != self.settings.realm:
            raise RealmMismatch(
                f"This deployment serves realm {self.settings.realm!r}, "
                f"not {submission.realm[:100]!r}."
            )
        requested_at = submission.requested_at and submission.requested_at.isoformat()
        task = self._add_once(
            NewTask(
                task_id=task_id or UUID(int=uuid6.uuid7().int),
                realm_id=submission.realm,
                task_type=submission.operation.task_type,
                task_payload={
                    "operation_type": submission.operation.task_type,
                    "request_timestamp_utc": requested_at,
                    "operation_parameters": submission.parameters.model_dump(
                        mode="json", by_alias=True, exclude_none=True
                    ),
                },
                subject=submission.parameters.subject,
                exclusive=submission.parameters.exclusive,
                correlation_id=submission.correlation_id,
                parent_id=parent_id,
            )
        )
        log.info("task.admitted", task_id=str(task.task_id), subject=task.subject)
        return task

    def _add_once(self, task: NewTask) -> Task:
        try:
            return self.store.add(task)
        except AlreadyInProgress as error:
            if error.task_id != task.task_id:
                raise
            return self.store.get(task.task_id)

    def submit(self, submission: Submission, *, parent_id: UUID | None = None) -> Task:
        task = self.admit(submission, parent_id=parent_id)
        self.launch(task)
        return task

    def cancel(self, task_id: UUID) -> Task:
        """End a waiting task at once; ask the worker of a running one to stop."""
        task = self.store.get(task_id)
        if task.status.terminal:
            raise TaskConflict(f"Task {task_id} has already ended as {task.status.wire}.")
        for child in self.store.find(TaskFilter(parent_id=task_id), limit=1000):
            if not child.status.terminal:
                with contextlib.suppress(TaskConflict):  # it has ended since the look
                    self.cancel(child.task_id)
        if task.status in LEASED:
            asked = self.store.request_cancel(task_id)
            return asked or self.cancel(task_id)
        try:
            return self.store.advance(
                Claim(task_id, task.version, task.lease_owner or ""),
                Status.FAILURE,
                "cancelled",
                error_code="CANCELLED",
                summary="Cancelled on request, before any attempt was under way.",
            )
        except LeaseLost:  # somebody moved it on between the look and the write
            return self.cancel(task_id)

    def retry(self, task_id: UUID) -> Task:
        """Start a failed task anew, or a scheduled retry now."""
        try:
            task = self._make_runnable(self.store.get(task_id))
        except LeaseLost:  # somebody moved it on between the look and the write
            return self.retry(task_id)
        self.launch(task)
        return task

    def _make_runnable(self, task: Task) -> Task:
        held = Claim(task.task_id, task.version, task.lease_owner or "")
        match task.status:
            case Status.FAILURE:
                return self.store.advance(held, Status.SUBMITTED, _RE_DRIVEN)
            case Status.RETRY_SCHEDULED:
                return self.store.advance(
                    held,
                    Status.RETRY_SCHEDULED,
                    _BROUGHT_FORWARD,
                    next_run=datetime.now(UTC),
                    error_code=task.error_code,
                    extended=task.result_extended,
                )
            case _:
                raise TaskConflict(
                    f"Task {task.task_id} is {task.status.wire}; only a failed task or one that "
                    "waits for its retry can be retried."
                )

    def sweep(self) -> list[Task]:
        """Start what should be at work and is not: never started, due again, or lost."""
        due = self.store.due(self.settings.delegation.task.sweep_batch)
        return [task for task in due if self.launch(task)]

    def cleanup(self) -> int:
        """Remove terminal tasks past their retention, batch by batch."""
        limits = self.settings.delegation.task
        removed = 0
        while batch := self.store.remove_finished(limits.retention, limits.cleanup_batch):
            for task_id in batch:
                remove_folder(task_folder(self.settings.workspace, task_id))
            removed += len(batch)
            log.info("ledger.cleanup", removed=removed)
        return removed

    def launch(self, task: Task) -> bool:
        """A task that cannot be started now is in the ledger; the next sweep starts it."""
        try:
            return self._launcher.launch(self.operations.named(task.task_type).dag_id, task)
        except MoraineError as error:
            log.warning("task.launch.postponed", task_id=str(task.task_id), reason=str(error))
            return False
