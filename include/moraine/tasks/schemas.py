"""What goes over the wire about tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict
from pydantic.json_schema import SkipJsonSchema

from moraine.tasks.model import Status, Task, TaskVersion

Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=255)]


WireStatus = Annotated[str, Field(json_schema_extra={"enum": [status.wire for status in Status]})]
Count = Annotated[int, Field(json_schema_extra={"format": "int64"})]


def _left_out_if_none(schema: JsonDict) -> None:
    """Absent fields are absent on the wire, so the contract has neither null nor a default."""
    schema.pop("default", None)


def _example(**example: Any) -> ConfigDict:
    return ConfigDict(
        json_schema_extra={"examples": [example]}, json_schema_serialization_defaults_required=True
    )


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

    operation_type: Line = Field(
        description="What to do; it decides what `operation_parameters` hold",
        examples=["TABLE_PURGE"],
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
    """What the work came to. An operation may add figures of its own."""

    model_config = ConfigDict(extra="allow")

    files_deleted: Count = 0
    bytes_deleted: Count = 0


_ID = "0199c2f2-7d3c-7a5e-8a57-1f0b6d2c9e11"
_URL = f"/delegation-service/api/v1/tasks/{_ID}"


class TaskSuccessResponse(BaseModel):
    """A task that was executed while the caller waited, and succeeded."""

    model_config = _example(
        delegation_task_id=_ID,
        status="COMPLETED_SUCCESS",
        message="42 files deleted, none is left.",
        execution_result={"files_deleted": 42, "bytes_deleted": 123456},
    )

    delegation_task_id: UUID
    status: Literal["COMPLETED_SUCCESS"] = "COMPLETED_SUCCESS"
    message: str
    execution_result: ExecutionResult


class TaskAcceptedResponse(BaseModel):
    """A task that is in the ledger and will be executed."""

    model_config = _example(delegation_task_id=_ID, status="QUEUED", status_query_url=_URL)

    delegation_task_id: UUID
    status: Literal["QUEUED"] = "QUEUED"
    status_query_url: str


class ErrorResponse(BaseModel):
    """Every error there is. Act on `error_code`; `message` is for people."""

    delegation_task_id: UUID | SkipJsonSchema[None] = Field(
        None, description="The task, if there is one", json_schema_extra=_left_out_if_none
    )
    status: Literal["FAILED_TERMINAL"] | SkipJsonSchema[None] = Field(
        None, description="The task's end, if it failed", json_schema_extra=_left_out_if_none
    )
    error_code: str = Field(examples=["CREDENTIAL_VENDING_FAILED"])
    message: str
    details: str | SkipJsonSchema[None] = Field(
        None, description="More, for whoever looks into it", json_schema_extra=_left_out_if_none
    )


_FIRST_VERSION: dict[str, Any] = {
    "version": 1,
    "status": "QUEUED",
    "ledger_status": "SUBMITTED",
    "at": "2025-06-11T16:21:00Z",
    "attempt_count": 0,
    "reason": "submitted",
    "next_scheduled_run_ts": None,
    "lease_owner": None,
    "error_code": None,
    "result_summary": None,
}
_RECORD: dict[str, Any] = {
    "delegation_task_id": _ID,
    "version": 3,
    "parent_id": None,
    "realm_identifier": "demo",
    "task_type": "TABLE_PURGE",
    "subject": "demo.shop.orders",
    "task_payload": {
        "operation_type": "TABLE_PURGE",
        "request_timestamp_utc": "2025-06-11T16:21:00+00:00",
        "operation_parameters": {
            "table_identity": {
                "catalog_name": "demo",
                "namespace_levels": ["shop"],
                "table_name": "orders",
            },
            "properties": {"dryRun": False, "skipTrash": True, "deleteMarkerFiles": False},
        },
    },
    "status": "RUNNING",
    "ledger_status": "RUNNING",
    "received_timestamp": "2025-06-11T16:21:00Z",
    "created_ts": "2025-06-11T16:21:00Z",
    "last_status_change_ts": "2025-06-11T16:21:04Z",
    "attempt_count": 1,
    "next_scheduled_run_ts": None,
    "lease_owner": f"{_ID}.v1",
    "lease_acquired_ts": "2025-06-11T16:21:03Z",
    "lease_expires_ts": "2025-06-11T17:21:04Z",
    "cancel_requested_ts": None,
    "progress": {"step": "delete", "files_done": 20, "files_total": 42},
    "execution_result": None,
    "error_code": None,
    "result_summary": None,
    "result_extended": None,
    "polaris_correlation_id": "drop-orders-1234",
}


class VersionRecord(BaseModel):
    """One row of a task's history."""

    model_config = _example(**_FIRST_VERSION)

    version: int
    status: WireStatus
    ledger_status: Status
    at: datetime
    attempt_count: int
    reason: str = Field(description="Why the task came into this state")
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

    model_config = _example(**_RECORD)

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

    model_config = _example(**_RECORD, history=[_FIRST_VERSION], sub_tasks=[])

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

    model_config = _example(tasks=[_RECORD], next_cursor=_ID)

    tasks: list[TaskRecord]
    next_cursor: UUID | None
