"""The delegation API: the only place that speaks HTTP about tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Protocol
from uuid import UUID

import uuid6
from fastapi import APIRouter, BackgroundTasks, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import AwareDatetime, Field, ValidationError

from moraine.access.model import Action, Principal
from moraine.errors import (
    LedgerUnavailable,
    SyncWaitExceeded,
    TaskNotFound,
    ValidationFailed,
    http_status_of,
)
from moraine.http.bodies import read_model
from moraine.http.context import Context, context_of, principal_for
from moraine.http.errors import error_response
from moraine.http.openapi import error_responses
from moraine.http.validation import explain, no_nul
from moraine.log import get_logger
from moraine.tasks.feed import TaskFeed, TaskRuns
from moraine.tasks.model import STATUS_BY_NAME, Status, Task, TaskFilter, TaskVersion
from moraine.tasks.operation import Operation
from moraine.tasks.schemas import (
    ExecutionResult,
    TaskAcceptedResponse,
    TaskDetail,
    TaskPage,
    TaskPayload,
    TaskRecord,
    TaskSuccessResponse,
    VersionRecord,
)
from moraine.tasks.service import Submission, TaskService

log = get_logger(__name__)

_MAX_PER_PAGE = 500
_MAX_VERSION = 2**31 - 1
_STATUS_NAMES = Field(json_schema_extra={"enum": list[Any](sorted(STATUS_BY_NAME))})
_EVENTS = """\
event: state
data: {"version": 1, "status": "QUEUED", "ledger_status": "SUBMITTED", "reason": "submitted"}
id: 1

event: progress
data: {"step": "delete", "files_done": 20, "files_total": 42}

"""


class TaskContext(Context, Protocol):
    """What the routes of tasks need from their process."""

    @property
    def service(self) -> TaskService: ...
    @property
    def feed(self) -> TaskFeed: ...
    @property
    def runs(self) -> TaskRuns: ...


Ctx = Annotated[TaskContext, Depends(context_of)]


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for the OpenAPI document. Every route is limited."""
    given = {429, *statuses} | ({408} if 413 in statuses else set())
    return error_responses(
        "ErrorResponse",
        {
            status: (description, {"error_code": code, "message": message})
            for status, (description, code, message) in _ERRORS.items()
            if status in given
        },
    )


_ERRORS = {
    400: (
        "The request is malformed; the message names the field.",
        "VALIDATION_FAILED",
        "operation_parameters.table_identity.table_name: Field required",
    ),
    401: (
        "The request has no valid bearer token.",
        "UNAUTHORIZED",
        "Send a valid bearer token in the Authorization header.",
    ),
    403: (
        "The caller may not do this, or names another realm.",
        "REALM_MISMATCH",
        "This deployment serves realm 'demo', not 'prod'.",
    ),
    404: ("There is no such task.", "TASK_NOT_FOUND", "No task has that id."),
    408: (
        "The body arrives too slowly.",
        "BODY_TOO_SLOW",
        "Only 12 bytes of the body arrived in 30 seconds. Send at least 4096 bytes a second.",
    ),
    409: (
        "The request does not fit the current state of the table or the task.",
        "TABLE_NOT_FOUND",
        "The catalog has no such table.",
    ),
    413: (
        "The body is larger than api.max-body-bytes.",
        "PAYLOAD_TOO_LARGE",
        "The body is larger than 1048576 bytes.",
    ),
    415: (
        "The body is not application/json in UTF-8.",
        "UNSUPPORTED_MEDIA_TYPE",
        "Send the body as application/json.",
    ),
    422: (
        "The Idempotency-Key was used for another request.",
        "IDEMPOTENCY_KEY_CONFLICT",
        "This Idempotency-Key was used for another request; use a new key.",
    ),
    429: (
        "Too many requests of this client are in progress; see Retry-After.",
        "TOO_MANY_REQUESTS",
        "256 requests of this client are in progress, which is the maximum. Try again later.",
    ),
    500: (
        "The task failed, or it takes longer than a request may wait.",
        "SYNC_WAIT_EXCEEDED",
        "The task has not ended after 3600 s. It continues; ask for it by its id.",
    ),
    502: (
        "The catalog, the storage or Spark failed.",
        "CREDENTIAL_VENDING_FAILED",
        "The catalog did not answer, so it vended no credentials for the table.",
    ),
    503: (
        "The ledger, or the key set of the token's issuer, cannot be reached.",
        "LEDGER_UNAVAILABLE",
        "The ledger's database does not answer.",
    ),
}

_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/TaskPayload"}}},
    }
}

router = APIRouter(prefix="/v1/tasks", tags=["Task Execution API"])
Reader = Annotated[Principal, Depends(principal_for(Action.READ_TASKS))]
Executor = Annotated[Principal, Depends(principal_for(Action.EXECUTE_TASKS))]
Steerer = Annotated[Principal, Depends(principal_for(Action.STEER_TASKS))]


async def submission_of(request: Request, principal: Executor, context: Ctx) -> Submission:
    """The request's body, valid for the operation it names, from a caller who may ask for it."""
    payload = await read_model(request, TaskPayload, context.settings.api.max_body_bytes)
    common = payload.common_payload
    operation = context.service.operations.named(common.operation_type)
    try:
        parameters = operation.parameters.model_validate(payload.operation_parameters)
    except ValidationError as error:
        raise ValidationFailed(explain(error, within="operation_parameters")) from None
    await context.guard.authorize(
        principal, Action.EXECUTE_TASKS, parameters.table, "submit", given_id(request)
    )
    return Submission(
        operation,
        parameters,
        common.realm_identifier,
        principal.name,
        correlation_id=common.polaris_correlation_id,
        requested_at=common.request_timestamp_utc,
    )


def given_id(request: Request) -> UUID:
    """The id that a new task must have: reserved for it with its key, or made here, because the
    audit log names the task before there is one."""
    if not hasattr(request.state, "task_id"):
        request.state.task_id = UUID(int=uuid6.uuid7().int)
    task_id: UUID = request.state.task_id
    return task_id


Body = Annotated[Submission, Depends(submission_of)]
GivenId = Annotated[UUID, Depends(given_id)]


@router.post(
    "/execute/synchronous",
    operation_id="executeSynchronousTask",
    summary="Execute a task and wait for its end",
    response_model=TaskSuccessResponse,
    responses=errors(400, 401, 403, 409, 413, 415, 500, 502, 503),
    openapi_extra=_BODY,
)
async def execute_synchronously(submission: Body, context: Ctx, task_id: GivenId) -> Any:
    """Holds the connection until the task is terminal, including its retries, up to
    `delegation.synchronous.wait-limit`. The task continues if the caller hangs up. If a live task
    does the same already, this waits for that one."""
    task = await context.in_thread(context.service.admit, submission, task_id=task_id)
    limit = context.settings.delegation.synchronous.wait_limit.total_seconds()
    ended = await context.runs.run_to_end(task, limit)
    if ended is None:
        return error_response(
            SyncWaitExceeded.http_status,
            SyncWaitExceeded.code,
            f"The task has not ended after {limit:.0f} s. It continues; ask for it by its id.",
            delegation_task_id=task.task_id,
        )
    return _outcome(ended, submission.operation)


@router.post(
    "",
    operation_id="submitTask",
    summary="Submit a task and return at once",
    status_code=202,
    response_model=TaskAcceptedResponse,
    responses={
        202: {
            "headers": {
                "Location": {"description": "`status_query_url`", "schema": {"type": "string"}}
            }
        },
        **errors(400, 401, 403, 409, 413, 415, 503),
    },
    openapi_extra=_BODY,
)
async def submit(
    submission: Body,
    context: Ctx,
    task_id: GivenId,
    request: Request,
    response: Response,
    afterwards: BackgroundTasks,
) -> TaskAcceptedResponse:
    """The task is in the ledger when this answers; its state is at `status_query_url`."""
    task = await context.in_thread(context.service.admit, submission, task_id=task_id)
    # The answer does not wait for Airflow: the task is in the ledger, and a sweep can start it.
    afterwards.add_task(context.in_thread, context.service.launch, task)
    url = f"{request.scope.get('root_path', '')}/v1/tasks/{task.task_id}"
    response.headers["Location"] = url
    return TaskAcceptedResponse(delegation_task_id=task.task_id, status_query_url=url)


@router.get(
    "",
    operation_id="listTasks",
    summary="List tasks, newest first",
    responses=errors(400, 401, 403, 503),
)
async def list_tasks(
    principal: Reader,
    context: Ctx,
    status: Annotated[
        Annotated[str, _STATUS_NAMES] | None,
        Query(description="The state, as it is called on the wire or in the ledger"),
    ] = None,
    type: Annotated[str | None, Query(description="The operation, by any of its names")] = None,
    table: Annotated[
        str | None, Query(description="The whole name: catalog.namespace.table")
    ] = None,
    realm: Annotated[str | None, Query(description="The realm")] = None,
    parent_id: Annotated[UUID | None, Query(description="Only sub-tasks of this task")] = None,
    received_from: Annotated[
        AwareDatetime | None, Query(description="Received at this time or later")
    ] = None,
    received_until: Annotated[
        AwareDatetime | None, Query(description="Received before this time")
    ] = None,
    limit: Annotated[
        int, Query(ge=1, le=_MAX_PER_PAGE, description="How many at most on this page")
    ] = 50,
    cursor: Annotated[UUID | None, Query(description="`next_cursor` of the page before")] = None,
) -> TaskPage:
    if no_nul("realm", realm) not in (None, principal.realm):
        return TaskPage(tasks=[], next_cursor=None)
    wanted = TaskFilter(
        status=_status(status),
        task_type=type and context.service.operations.named(type).task_type,
        subject=no_nul("table", table),
        realm_id=principal.realm,
        parent_id=parent_id,
        received_from=received_from,
        received_until=received_until,
    )
    found = await context.in_thread(
        context.service.store.find, wanted, limit=limit + 1, before=cursor
    )
    page = found[:limit]
    return TaskPage(
        tasks=[TaskRecord.of(task) for task in page if await _may_read(principal, task, context)],
        next_cursor=page[-1].task_id if len(found) > limit else None,
    )


@router.get(
    "/{task_id}",
    operation_id="getTask",
    summary="The full record of a task, with its history",
    responses=errors(400, 401, 403, 404, 503),
)
async def get_task(principal: Reader, task_id: UUID, context: Ctx) -> TaskDetail:
    task = await _task_for(principal, Action.READ_TASKS, task_id, context)
    history = await context.in_thread(context.service.store.history, task_id)
    return TaskDetail.with_history(task, history)


async def _task_for(
    principal: Principal, action: Action, task_id: UUID, context: TaskContext, act: str = ""
) -> Task:
    """A task that the caller may act on. Those of other realms do not exist for the caller."""
    task = await context.in_thread(context.service.store.get, task_id)
    if task.realm_id != principal.realm:
        raise TaskNotFound(f"There is no task {task_id}.")
    await context.guard.authorize(principal, action, context.service.table_of(task), act, task_id)
    return task


async def _may_read(principal: Principal, task: Task, context: TaskContext) -> bool:
    table = context.service.table_of(task)
    return await context.guard.allows(principal, Action.READ_TASKS, table)


@router.post(
    "/{task_id}/cancel",
    operation_id="cancelTask",
    summary="Cancel a task",
    status_code=202,
    responses=errors(400, 401, 403, 404, 409, 503),
)
async def cancel(principal: Steerer, task_id: UUID, context: Ctx) -> TaskRecord:
    """A waiting task ends at once; a running one at its worker's next heartbeat. It ends as a
    failure with the code CANCELLED."""
    await _task_for(principal, Action.STEER_TASKS, task_id, context, "cancel")
    return TaskRecord.of(await context.in_thread(context.service.cancel, task_id, principal.name))


@router.post(
    "/{task_id}/retry",
    operation_id="retryTask",
    summary="Re-drive a failed task, or bring a scheduled retry forward",
    status_code=202,
    responses=errors(400, 401, 403, 404, 409, 503),
)
async def retry(principal: Steerer, task_id: UUID, context: Ctx) -> TaskRecord:
    await _task_for(principal, Action.STEER_TASKS, task_id, context, "retry")
    return TaskRecord.of(await context.in_thread(context.service.retry, task_id, principal.name))


async def existing_task(principal: Reader, task_id: UUID, context: Ctx) -> Task:
    return await _task_for(principal, Action.READ_TASKS, task_id, context)


@router.get(
    "/{task_id}/events",
    operation_id="streamTaskEvents",
    summary="State changes and progress as server-sent events, until the task is terminal",
    response_class=EventSourceResponse,
    responses={
        200: {"content": {"text/event-stream": {"example": _EVENTS}}},
        **errors(400, 401, 403, 404, 503),
    },
)
async def stream_events(
    task: Annotated[Task, Depends(existing_task)],
    context: Ctx,
    last_event_id: Annotated[
        int,
        Header(ge=0, le=_MAX_VERSION, description="The last version seen, on a reconnect"),
    ] = 0,
) -> AsyncIterator[ServerSentEvent]:
    """A `state` event is one row of the history, from the first on or from the one after
    `Last-Event-ID`; a `progress` event is the progress of the attempt."""
    store, sent, shown = context.service.store, last_event_id, None
    with context.feed.subscribe(task.task_id) as subscription:
        try:
            # Includes changes between the first look-up and the subscription.
            current: Task | None = await context.in_thread(store.get, task.task_id)
            while current is not None:
                if current.version > sent:
                    for row in await context.in_thread(store.history, task.task_id):
                        if row.version > sent:
                            sent = row.version
                            yield _state_event(row)
                if current.progress and current.progress != shown:
                    shown = current.progress
                    yield ServerSentEvent(event="progress", data=shown)
                if current.status.terminal:
                    return
                current = await subscription.next()
        except (LedgerUnavailable, TaskNotFound) as error:
            # The status line is sent. A stream that ends before the task makes callers reconnect.
            log.warning("events.cut", task_id=str(task.task_id), error=error.code)


def _state_event(row: TaskVersion) -> ServerSentEvent:
    # A dict is written in ASCII: a line separator in a text would end the event's line.
    data = VersionRecord.of(row).model_dump(mode="json")
    return ServerSentEvent(event="state", id=str(row.version), data=data)


def _outcome(task: Task, operation: Operation) -> TaskSuccessResponse | JSONResponse:
    if task.status is Status.SUCCESS:
        return TaskSuccessResponse(
            delegation_task_id=task.task_id,
            message=task.result_summary or "",
            execution_result=ExecutionResult.model_validate(operation.result_of(task.result)),
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
        return STATUS_BY_NAME[name]
    except KeyError:
        raise ValidationFailed(f"status: known are {', '.join(sorted(STATUS_BY_NAME))}.") from None
