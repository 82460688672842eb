"""Examples for the API's documentation, made from what an operation declares."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from moraine.tasks.operation import Operation
from moraine.tasks.schemas import (
    CommonPayload,
    TaskAcceptedResponse,
    TaskDetail,
    TaskPage,
    TaskRecord,
    TaskSuccessResponse,
    VersionRecord,
)

_ID = "0199c2f2-7d3c-7a5e-8a57-1f0b6d2c9e11"
_CALLER = "https://id.example.com polaris"
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
    "requested_by": _CALLER,
}


def request_example(operation: Operation) -> dict[str, Any]:
    """A body that asks for a task."""
    common = {
        name: field.examples[0]
        for name, field in CommonPayload.model_fields.items()
        if field.examples
    }
    return {
        "common_payload": {"operation_type": operation.task_type, **common},
        "operation_parameters": _parameters(operation),
    }


def response_examples(operation: Operation) -> dict[str, dict[str, Any]]:
    """An example of each response, by the name of its schema."""
    success = {
        "delegation_task_id": _ID,
        "status": "COMPLETED_SUCCESS",
        "message": operation.example.summary,
        "execution_result": dict(operation.example.result),
    }
    accepted = {
        "delegation_task_id": _ID,
        "status": "QUEUED",
        "status_query_url": f"/delegation-service/api/v1/tasks/{_ID}",
    }
    record = _record(operation)
    examples: dict[type[BaseModel], dict[str, Any]] = {
        TaskSuccessResponse: success,
        TaskAcceptedResponse: accepted,
        VersionRecord: _FIRST_VERSION,
        TaskRecord: record,
        TaskDetail: {**record, "history": [_FIRST_VERSION]},
        TaskPage: {"tasks": [record], "next_cursor": _ID},
    }
    return {model.__name__: example for model, example in examples.items()}


def _record(operation: Operation) -> dict[str, Any]:
    parameters = operation.parameters.model_validate(_parameters(operation))
    return {
        "delegation_task_id": _ID,
        "version": 3,
        "parent_id": None,
        "realm_identifier": "demo",
        "task_type": operation.task_type,
        "subject": parameters.subject,
        "task_payload": {
            "operation_type": operation.task_type,
            "request_timestamp_utc": "2025-06-11T16:21:00+00:00",
            "operation_parameters": parameters.model_dump(
                mode="json", by_alias=True, exclude_none=True
            ),
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
        "progress": dict(operation.example.progress),
        "execution_result": None,
        "error_code": None,
        "result_summary": None,
        "result_extended": None,
        "polaris_correlation_id": "drop-orders-1234",
        "requested_by": _CALLER,
    }


def _parameters(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = operation.parameters.model_json_schema()["examples"][0]
    return found
