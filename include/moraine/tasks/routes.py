"""The delegation API: the only place that speaks HTTP about tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import AwareDatetime, ValidationError

from moraine.api.auth import Access
from moraine.api.body import read_model
from moraine.api.context import Context, context_of
from moraine.api.errors import error_response
from moraine.errors import SyncWaitExceeded, ValidationFailed, http_status_of
from moraine.tasks.feed import Subscription
from moraine.tasks.model import Status, Task, TaskFilter
from moraine.tasks.schemas import (
    ErrorResponse,
    ExecutionResult,
    TaskAcceptedResponse,
    TaskDetail,
    TaskPage,
    TaskPayload,
    TaskRecord,
    TaskSuccessResponse,
    VersionRecord,
)
from moraine.tasks.service import Submission
from moraine.validation import explain

_KEEP_ALIVE_SECONDS = 15.0
_MOST_PER_PAGE = 500

Ctx = Annotated[Context, Depends(context_of)]


def requires(access: Access) -> Any:
    async def check(request: Request, context: Ctx) -> None:
        await context.authenticator.check(request, access)

    return Depends(check)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for the OpenAPI document."""
    return {status: {"model": ErrorResponse, "description": _WORDS[status]} for status in statuses}


_WORDS = {
    400: "The request is malformed; the message names the field.",
    401: "The request has no valid bearer token.",
    403: "The caller may not do this, or names another realm.",
    404: "There is no such task.",
    409: "The request does not fit the current state of the table or the task.",
    413: "The body is larger than api.max-body-bytes.",
    415: "The body is not application/json in UTF-8.",
    500: "The task failed for good, or takes longer than a request may wait.",
    502: "The catalog, the storage or Spark did not do its part.",
    503: "The ledger does not answer.",
}

_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/TaskPayload"}}},
    }
}

router = APIRouter(prefix="/v1/tasks", tags=["Task Execution API"])
reading, executing = requires(Access.READ), requires(Access.EXECUTE)


async def submission_of(request: Request, context: Ctx) -> Submission:
    """The request's body, valid for the operation it names."""
    payload = await read_model(request, TaskPayload, context.settings.api.max_body_bytes)
    common = payload.common_payload
    operation = context.service.operations.named(common.operation_type)
    try:
        parameters = operation.parameters.model_validate(payload.operation_parameters)
    except ValidationError as error:
        raise ValidationFailed(explain(error, within="operation_parameters")) from None
    return Submission(
        operation,
        parameters,
        common.realm_identifier,
        correlation_id=common.polaris_correlation_id,
        requested_at=common.request_timestamp_utc,
    )


Body = Annotated[Submission, Depends(submission_of)]


@router.post(
    "/execute/synchronous",
    operation_id="executeSynchronousTask",
    summary="Execute a task and wait for its end",
    response_model=TaskSuccessResponse,
    responses=errors(400, 401, 403, 409, 413, 415, 500, 502, 503),
    openapi_extra=_BODY,
    dependencies=[executing],
)
async def execute_synchronously(submission: Body, context: Ctx) -> Any:
    """Holds the connection until the task is terminal, over its retries, up to
    `delegation.synchronous.wait-limit`. The task goes on if the caller hangs up."""
    task = await context.in_thread(context.service.admit, submission)
    with context.feed.subscribe(task.task_id) as subscription:
        await context.in_thread(context.service.launch, task)
        limit = context.settings.delegation.synchronous.wait_limit.total_seconds()
        ended = await _wait_until_terminal(subscription, limit)
    if ended is None:
        return error_response(
            SyncWaitExceeded.http_status,
            SyncWaitExceeded.code,
            f"The task is not done after {limit:.0f} s. It goes on; ask for it by its id.",
            delegation_task_id=task.task_id,
        )
    return _outcome(ended)


@router.post(
    "",
    operation_id="submitTask",
    summary="Submit a task and return at once",
    status_code=202,
    response_model=TaskAcceptedResponse,
    responses=errors(400, 401, 403, 409, 413, 415, 503),
    openapi_extra=_BODY,
    dependencies=[executing],
)
async def submit(
    submission: Body, context: Ctx, request: Request, response: Response
) -> TaskAcceptedResponse:
    """The task is in the ledger when this answers; its state is at `status_query_url`."""
    task = await context.in_thread(context.service.submit, submission)
    url = f"{request.scope.get('root_path', '')}/v1/tasks/{task.task_id}"
    response.headers["Location"] = url
    return TaskAcceptedResponse(delegation_task_id=task.task_id, status_query_url=url)


@router.get(
    "",
    operation_id="listTasks",
    summary="List tasks, newest first",
    responses=errors(400, 401, 403, 503),
    dependencies=[reading],
)
async def list_tasks(
    context: Ctx,
    status: Annotated[str | None, Query(description="As on the wire or in the ledger")] = None,
    type: Annotated[str | None, Query(description="TABLE_PURGE")] = None,
    table: Annotated[str | None, Query(description="catalog.namespace.table")] = None,
    realm: str | None = None,
    parent_id: UUID | None = None,
    received_from: AwareDatetime | None = None,
    received_until: AwareDatetime | None = None,
    limit: Annotated[int, Query(ge=1, le=_MOST_PER_PAGE)] = 50,
    cursor: Annotated[UUID | None, Query(description="`next_cursor` of the page before")] = None,
) -> TaskPage:
    wanted = TaskFilter(
        status=_status(status),
        task_type=type and context.service.operations.named(type).task_type,
        subject=_no_nul("table", table),
        realm_id=_no_nul("realm", realm),
        parent_id=parent_id,
        received_from=received_from,
        received_until=received_until,
    )
    found = await context.in_thread(
        context.service.store.find, wanted, limit=limit + 1, before=cursor
    )
    page = found[:limit]
    return TaskPage(
        tasks=[TaskRecord.of(task) for task in page],
        next_cursor=page[-1].task_id if len(found) > limit else None,
    )


@router.get(
    "/{task_id}",
    operation_id="getTask",
    summary="The full record of a task, with its history",
    responses=errors(400, 401, 403, 404, 503),
    dependencies=[reading],
)
async def get_task(task_id: UUID, context: Ctx) -> TaskDetail:
    store = context.service.store
    task = await context.in_thread(store.get, task_id)
    history = await context.in_thread(store.history, task_id)
    children = await context.in_thread(store.find, TaskFilter(parent_id=task_id), limit=1000)
    return TaskDetail.with_history(task, history, children)


@router.post(
    "/{task_id}/cancel",
    operation_id="cancelTask",
    summary="Cancel a task",
    status_code=202,
    responses=errors(400, 401, 403, 404, 409, 503),
    dependencies=[executing],
)
async def cancel(task_id: UUID, context: Ctx) -> TaskRecord:
    """A waiting task ends at once; a running one at its worker's next heartbeat. It ends as a
    failure with the code CANCELLED."""
    return TaskRecord.of(await context.in_thread(context.service.cancel, task_id))


@router.post(
    "/{task_id}/retry",
    operation_id="retryTask",
    summary="Re-drive a failed task, or bring a scheduled retry forward",
    status_code=202,
    responses=errors(400, 401, 403, 404, 409, 503),
    dependencies=[executing],
)
async def retry(task_id: UUID, context: Ctx) -> TaskRecord:
    return TaskRecord.of(await context.in_thread(context.service.retry, task_id))


async def existing_task(task_id: UUID, context: Ctx) -> Task:
    return await context.in_thread(context.service.store.get, task_id)


@router.get(
    "/{task_id}/events",
    operation_id="streamTaskEvents",
    summary="State changes and progress as server-sent events, until the task is terminal",
    response_class=EventSourceResponse,
    responses=errors(400, 401, 403, 404, 503),
    dependencies=[reading],
)
async def stream_events(
    task: Annotated[Task, Depends(existing_task)], context: Ctx
) -> AsyncIterator[ServerSentEvent]:
    """`state` events carry one row of the history each, from the first on; `progress` events
    carry how far the attempt is."""
    store, told, shown = context.service.store, 0, None
    with context.feed.subscribe(task.task_id) as subscription:
        # What happened between the look-up and the subscription is in here.
        current: Task | None = await context.in_thread(store.get, task.task_id)
        while True:
            if current is not None and current.version > told:
                for row in await context.in_thread(store.history, task.task_id):
                    if row.version > told:
                        told = row.version
                        yield ServerSentEvent(
                            event="state", id=str(row.version), data=VersionRecord.of(row)
                        )
            if current is not None and current.progress and current.progress != shown:
                shown = current.progress
                yield ServerSentEvent(event="progress", data=shown)
            if current is not None and current.status.terminal:
                return
            current = await subscription.next(_KEEP_ALIVE_SECONDS)
            if current is None:
                yield ServerSentEvent(comment="still here")


async def _wait_until_terminal(subscription: Subscription, limit: float) -> Task | None:
    try:
        async with asyncio.timeout(limit):
            while True:
                task = await subscription.next()
                if task is not None and task.status.terminal:
                    return task
    except TimeoutError:
        return None


def _outcome(task: Task) -> TaskSuccessResponse | JSONResponse:
    if task.status is Status.SUCCESS:
        return TaskSuccessResponse(
            delegation_task_id=task.task_id,
            message=task.result_summary or "",
            execution_result=ExecutionResult.model_validate(task.result or {}),
        )
    return error_response(
        http_status_of(task.error_code),
        task.error_code or "INTERNAL_ERROR",
        task.result_summary or "The task failed.",
        delegation_task_id=task.task_id,
        status=task.status.wire,
        details=task.result_extended,
    )


def _status(name: str | None) -> Status | None:
    if name is None:
        return None
    try:
        return Status.from_wire(name)
    except KeyError:
        raise ValidationFailed(f"status: known are {', '.join(Status.names())}.") from None


def _no_nul(field: str, value: str | None) -> str | None:
    if value is not None and "\x00" in value:
        raise ValidationFailed(f"{field}: must not contain NUL characters.")
    return value
