"""The use cases of tasks: admit, cancel, retry, sweep, clean up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID

import uuid6
from pydantic import ValidationError

from moraine.access.model import QualifiedName
from moraine.errors import (
    AlreadyInProgress,
    LeaseLost,
    MoraineError,
    RealmMismatch,
    TaskConflict,
    UnknownOperation,
)
from moraine.log import get_logger
from moraine.settings import Settings
from moraine.storage.files import remove_folder
from moraine.tasks.model import LEASED, Claim, NewTask, Status, Task, task_folder
from moraine.tasks.operation import Operation, Parameters, Registry
from moraine.tasks.store import TaskStore

log = get_logger(__name__)

_RE_DRIVEN = "re-driven on request"
_BROUGHT_FORWARD = "retry brought forward on request"
ON_REQUEST = (_RE_DRIVEN, _BROUGHT_FORWARD)
"""Reasons of the transitions that a caller's retry makes."""


class Launcher(Protocol):
    """Starts the work on a task. Starting the same version of a task twice is harmless."""

    def launch(self, dag_id: str, task: Task, form: Mapping[str, Any]) -> bool:
        """True if this call started it, False if it had been started before."""
        ...


@dataclass(frozen=True, slots=True)
class Submission:
    """A valid request for a task."""

    operation: Operation
    parameters: Parameters
    realm: str
    principal: str
    """Who asks, as `Principal.name` has it."""
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

    def admit(self, submission: Submission, *, task_id: UUID | None = None) -> Task:
        """Write the task, before anything else happens. Idempotent if the caller gives the id.
        Returns a live task instead if that does everything that is asked for."""
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
                principal=submission.principal,
            )
        )
        log.info("task.admitted", task_id=str(task.task_id), subject=task.subject)
        return task

    def _add_once(self, task: NewTask) -> Task:
        try:
            return self.store.add(task)
        except AlreadyInProgress as error:
            if error.task_id is None:
                raise
            live = self.store.get(error.task_id)
            if live.task_id != task.task_id and not self._is_met_by(task, live):
                raise
            return live

    def _is_met_by(self, asked: NewTask, live: Task) -> bool:
        """Whether a live task does what is asked for. Then both callers get its outcome."""
        model = self.operations.named(asked.task_type).parameters
        mine, theirs = (
            model.model_validate(one.task_payload["operation_parameters"]) for one in (asked, live)
        )
        return mine.is_met_by(theirs)

    def table_of(self, task: Task) -> QualifiedName:
        """The table that a task is about."""
        try:
            model = self.operations.named(task.task_type).parameters
            return model.model_validate(task.task_payload["operation_parameters"]).table
        except (UnknownOperation, LookupError, ValidationError):
            # Another version wrote it. Only rules about every table fit this name.
            return QualifiedName("", (), task.subject)

    def cancel(self, task_id: UUID, principal: str | None = None) -> Task:
        """End a waiting task at once; ask the worker of a running one to stop."""
        task = self.store.get(task_id)
        if task.status.terminal:
            raise TaskConflict(f"Task {task_id} has already ended as {task.status.wire}.")
        if task.status in LEASED:
            asked = self.store.request_cancel(task_id, principal)
            return asked or self.cancel(task_id, principal)
        try:
            return self.store.advance(
                Claim(task_id, task.version, task.lease_owner or ""),
                Status.FAILURE,
                "cancelled",
                error_code="CANCELLED",
                summary="Cancelled on request, before any attempt was under way.",
                principal=principal,
            )
        except LeaseLost:  # it changed between the look and the write
            return self.cancel(task_id, principal)

    def retry(self, task_id: UUID, principal: str | None = None) -> Task:
        """Start a failed task again, or a scheduled retry now."""
        try:
            task = self._make_runnable(self.store.get(task_id), principal)
        except LeaseLost:  # it changed between the look and the write
            return self.retry(task_id, principal)
        self.launch(task)
        return task

    def _make_runnable(self, task: Task, principal: str | None) -> Task:
        held = Claim(task.task_id, task.version, task.lease_owner or "")
        match task.status:
            case Status.FAILURE:
                return self.store.advance(held, Status.SUBMITTED, _RE_DRIVEN, principal=principal)
            case Status.RETRY_SCHEDULED:
                return self.store.advance(
                    held,
                    Status.RETRY_SCHEDULED,
                    _BROUGHT_FORWARD,
                    next_run=datetime.now(UTC),
                    error_code=task.error_code,
                    extended=task.result_extended,
                    principal=principal,
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
        figures = [figure.name for figure in self.operations.figures]
        while batch := self.store.remove_finished(limits.retention, limits.cleanup_batch, figures):
            for task_id in batch:
                remove_folder(task_folder(self.settings.workspace, task_id))
            removed += len(batch)
            log.info("ledger.cleanup", removed=removed)
        return removed

    def launch(self, task: Task) -> bool:
        """Start a task's Dag run. A task that cannot be started now waits for the next sweep."""
        try:
            operation = self.operations.named(task.task_type)
            return self._launcher.launch(operation.dag_id, task, operation.form_of(task))
        except MoraineError as error:
            log.warning("task.launch.postponed", task_id=str(task.task_id), reason=str(error))
            return False
