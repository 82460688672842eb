"""What goes over the wire about tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from moraine.tasks.model import Task, TaskVersion

Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=255)]


def _assume_utc(value: Any) -> Any:
    """The field is named `…_utc`, so a time without a zone is one in UTC."""
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            return value
        return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return value


class CommonPayload(BaseModel):
    """What every task carries, whatever its operation."""

    operation_type: Line = Field(examples=["TABLE_PURGE"])
    realm_identifier: Line = Field(examples=["demo"])
    request_timestamp_utc: Annotated[AwareDatetime, BeforeValidator(_assume_utc)] | None = None
    polaris_correlation_id: Line | None = Field(None, examples=["drop-orders-1234"])


class TaskPayload(BaseModel):
    """A request for a task. `operation_parameters` are those of the operation."""

    common_payload: CommonPayload
    operation_parameters: dict[str, Any]


class ExecutionResult(BaseModel):
    model_config = ConfigDict(extra="allow")

    files_deleted: int = Field(examples=[42])
    bytes_deleted: int = Field(examples=[123456])


class TaskSuccessResponse(BaseModel):
    delegation_task_id: UUID
    status: Literal["COMPLETED_SUCCESS"] = "COMPLETED_SUCCESS"
    message: str = Field(examples=["42 files deleted, none is left."])
    execution_result: ExecutionResult


class TaskAcceptedResponse(BaseModel):
    delegation_task_id: UUID
    status: Literal["QUEUED"] = "QUEUED"
    status_query_url: str = Field(
        examples=["/delegation-service/api/v1/tasks/0199c2f2-7d3c-7a5e-8a57-1f0b6d2c9e11"]
    )


class ErrorResponse(BaseModel):
    delegation_task_id: UUID | None = None
    status: Literal["FAILED_TERMINAL"] | None = None
    error_code: str = Field(examples=["CREDENTIAL_VENDING_FAILED"])
    message: str
    details: str | None = None


class VersionRecord(BaseModel):
    """One row of a task's history."""

    version: int
    status: str
    ledger_status: str
    at: datetime
    attempt_count: int
    reason: str
    next_scheduled_run_ts: datetime | None
    lease_owner: str | None
    error_code: str | None
    result_summary: str | None

    @classmethod
    def of(cls, row: TaskVersion) -> VersionRecord:
        return cls(
            version=row.version,
            status=row.status.wire,
            ledger_status=row.status,
            at=row.last_status_change_ts,
            attempt_count=row.attempt_count,
            reason=row.reason,
            next_scheduled_run_ts=row.next_scheduled_run_ts,
            lease_owner=row.lease_owner,
            error_code=row.error_code,
            result_summary=row.result_summary,
        )


class TaskRecord(BaseModel):
    """A task as the ledger has it."""

    delegation_task_id: UUID
    version: int
    parent_id: UUID | None
    realm_identifier: str
    task_type: str
    subject: str = Field(description="catalog.namespace.table")
    task_payload: dict[str, Any]
    status: str
    ledger_status: str
    received_timestamp: datetime
    created_ts: datetime
    last_status_change_ts: datetime
    attempt_count: int
    next_scheduled_run_ts: datetime | None
    lease_owner: str | None
    lease_acquired_ts: datetime | None
    lease_expires_ts: datetime | None
    cancel_requested_ts: datetime | None
    progress: dict[str, Any] | None
    execution_result: dict[str, Any] | None
    error_code: str | None
    result_summary: str | None
    result_extended: str | None
    polaris_correlation_id: str | None

    @classmethod
    def of(cls, task: Task, **more: Any) -> Self:
        return cls(
            delegation_task_id=task.task_id,
            version=task.version,
            parent_id=task.parent_id,
            realm_identifier=task.realm_id,
            task_type=task.task_type,
            subject=task.subject,
            task_payload=task.task_payload,
            status=task.status.wire,
            ledger_status=task.status,
            received_timestamp=task.received_timestamp,
            created_ts=task.created_ts,
            last_status_change_ts=task.last_status_change_ts,
            attempt_count=task.attempt_count,
            next_scheduled_run_ts=task.next_scheduled_run_ts,
            lease_owner=task.lease_owner,
            lease_acquired_ts=task.lease_acquired_ts,
            lease_expires_ts=task.lease_expires_ts,
            cancel_requested_ts=task.cancel_requested_ts,
            progress=task.progress,
            execution_result=task.result,
            error_code=task.error_code,
            result_summary=task.result_summary,
            result_extended=task.result_extended,
            polaris_correlation_id=task.correlation_id,
            **more,
        )


class TaskDetail(TaskRecord):
    """A task with its whole history, oldest version first, and its sub-tasks."""

    history: list[VersionRecord]
    sub_tasks: list[UUID]

    @classmethod
    def with_history(
        cls, task: Task, history: Sequence[TaskVersion], children: Sequence[Task]
    ) -> TaskDetail:
        return cls.of(
            task,
            history=[VersionRecord.of(row) for row in history],
            sub_tasks=[child.task_id for child in children],
        )


class TaskPage(BaseModel):
    """Tasks, newest first. Pass `next_cursor` as `cursor` for the page after this one."""

    tasks: list[TaskRecord]
    next_cursor: UUID | None
