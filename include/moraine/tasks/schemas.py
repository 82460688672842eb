"""The bodies of the delegation API's requests and responses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from moraine.tasks.model import Status, Task, TaskVersion

Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=255)]
WireStatus = Annotated[str, Field(json_schema_extra={"enum": [status.wire for status in Status]})]
_ANSWER = ConfigDict(json_schema_serialization_defaults_required=True)


def _assume_utc(value: Any) -> Any:
    """The field is named `…_utc`, so a time without a zone is UTC."""
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            return value
        return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return value


class CommonPayload(BaseModel):
    """The part of a request that is the same for every operation."""

    operation_type: Line = Field(
        description="The operation; it decides the form of `operation_parameters`"
    )
    realm_identifier: Line = Field(
        description="The realm the table is in: the one this deployment serves", examples=["demo"]
    )
    request_timestamp_utc: Annotated[AwareDatetime, BeforeValidator(_assume_utc)] | None = Field(
        None, description="When the catalog asked", examples=["2025-06-11T16:21:00Z"]
    )
    polaris_correlation_id: Line | None = Field(
        None, description="Kept with the task, to trace a request", examples=["drop-orders-1234"]
    )


class TaskPayload(BaseModel):
    """A request for a task. `operation_parameters` are those of the operation."""

    common_payload: CommonPayload
    operation_parameters: dict[str, Any]


class ExecutionResult(BaseModel):
    """The result of a task. Each operation has figures and members of its own."""

    model_config = ConfigDict(extra="allow")


class TaskSuccessResponse(BaseModel):
    """A task that was executed while the caller waited, and succeeded."""

    model_config = _ANSWER

    delegation_task_id: UUID
    status: Literal["COMPLETED_SUCCESS"] = "COMPLETED_SUCCESS"
    message: str
    execution_result: ExecutionResult


class TaskAcceptedResponse(BaseModel):
    """A task that is in the ledger and will be executed."""

    model_config = _ANSWER

    delegation_task_id: UUID
    status: Literal["QUEUED"] = "QUEUED"
    status_query_url: str


class VersionRecord(BaseModel):
    """One row of a task's history."""

    model_config = _ANSWER

    version: int
    status: WireStatus
    ledger_status: Status
    at: datetime
    attempt_count: int
    reason: str = Field(description="Why the task is in this state")
    next_scheduled_run_ts: datetime | None
    lease_owner: str | None
    error_code: str | None
    result_summary: str | None
    requested_by: str = Field(description="Issuer and name of the caller who caused this")

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
            requested_by=row.principal,
        )


class TaskRecord(BaseModel):
    """A task as the ledger has it."""

    model_config = _ANSWER

    delegation_task_id: UUID
    version: int
    parent_id: UUID | None
    realm_identifier: str
    task_type: str
    subject: str = Field(description="catalog.namespace.table")
    task_payload: dict[str, Any] = Field(description="What was asked for, without credentials")
    status: WireStatus
    ledger_status: Status
    received_timestamp: datetime
    created_ts: datetime
    last_status_change_ts: datetime
    attempt_count: int
    next_scheduled_run_ts: datetime | None
    lease_owner: str | None
    lease_acquired_ts: datetime | None
    lease_expires_ts: datetime | None
    cancel_requested_ts: datetime | None
    progress: dict[str, Any] | None = Field(description="How far the current attempt is")
    execution_result: dict[str, Any] | None
    error_code: str | None
    result_summary: str | None
    result_extended: str | None
    polaris_correlation_id: str | None
    requested_by: str = Field(
        description="Issuer and name of the caller who submitted it, or had it run again"
    )

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
            requested_by=task.principal,
            **more,
        )


class TaskDetail(TaskRecord):
    """A task with its whole history, oldest version first."""

    history: list[VersionRecord]

    @classmethod
    def with_history(cls, task: Task, history: Sequence[TaskVersion]) -> TaskDetail:
        return cls.of(task, history=[VersionRecord.of(row) for row in history])


class TaskPage(BaseModel):
    """Tasks, newest first. Pass `next_cursor` as `cursor` for the page after this one."""

    model_config = _ANSWER

    tasks: list[TaskRecord]
    next_cursor: UUID | None
