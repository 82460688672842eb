"""The delegation API: the only place that speaks HTTP about tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import AwareDatetime, Field, ValidationError

from moraine.api.auth import Access
from moraine.api.body import read_model
from moraine.api.context import Context, context_of
from moraine.api.errors import error_response
from moraine.errors import (
    LedgerUnavailable,
    SyncWaitExceeded,
    TaskNotFound,
    ValidationFailed,
    http_status_of,
)
from moraine.log import get_logger
from moraine.tasks.model import Status, Task, TaskFilter, TaskVersion
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
from moraine.tasks.service import Submission
from moraine.validation import explain

log = get_logger(__name__)

_MOST_PER_PAGE = 500
_LATEST_VERSION = 2**31 - 1
_STATUS_NAMES = Field(json_schema_extra={"enum": list[Any](Status.names())})
_EVENTS = """\
event: state
data: {"version": 1, "status": "QUEUED", "ledger_status": "SUBMITTED", "reason": "submitted"}
id: 1

event: progress
data: {"step": "delete", "files_done": 20, "files_total": 42}

"""

Ctx = Annotated[Context, Depends(context_of)]


def requires(access: Access) -> Any:
    async def check(request: Request, context: Ctx) -> None:
        await context.authenticator.check(request, access)

    return Depends(check)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for the OpenAPI document."""
    return {
        status: {
            "description": words,
            # Not as a model: FastAPI would file it under the media type of the route's success.
            "content": {
                "application/json": {
                    "schema": {"$ref": "#/components/schemas/ErrorResponse"},
                    "example": {"error_code": code, "message": message},
                }
            },
        }
        for status, (words, code, message) in _ERRORS.items()
        if status in statuses
    }


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
    500: (
        "The task failed for good, or takes longer than a request may wait.",
        "SYNC_WAIT_EXCEEDED",
        "The task is not done after 3600 s. It goes on; ask for it by its id.",
    ),
    502: (
        "The catalog, the storage or Spark did not do its part.",
        "CREDENTIAL_VENDING_FAILED",
        "The catalog did not answer, so no credentials could be had for the table.",
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


def given_id(request: Request) -> UUID | None:
    """The id that a new task must have, where one was reserved for it with its key."""
    return getattr(request.state, "task_id", None)


Body = Annotated[Submission, Depends(submission_of)]
GivenId = Annotated[UUID | None, Depends(given_id)]


@router.post(
    "/execute/synchronous",
    operation_id="executeSynchronousTask",
    summary="Execute a task and wait for its end",
    response_model=TaskSuccessResponse,
    responses=errors(400, 401, 403, 409, 413, 415, 500, 502, 503),
    openapi_extra=_BODY,
    dependencies=[executing],
)
async def execute_synchronously(submission: Body, context: Ctx, task_id: GivenId) -> Any:
    """Holds the connection until the task is terminal, over its retries, up to
    `delegation.synchronous.wait-limit`. The task goes on if the caller hangs up."""
    task = await context.in_thread(context.service.admit, submission, task_id=task_id)
    with context.feed.subscribe(task.task_id) as subscription:
        limit = context.settings.delegation.synchronous.wait_limit.total_seconds()
        ended = task if task.status.terminal else None
        if ended is None:
            await context.in_thread(context.service.launch, task)
            ended = await subscription.until_terminal(limit)
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
    responses={
        202: {
            "headers": {
                "Location": {"description": "`status_query_url`", "schema": {"type": "string"}}
            }
        },
        **errors(400, 401, 403, 409, 413, 415, 503),
    },
    openapi_extra=_BODY,
    dependencies=[executing],
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
    # The answer does not wait for Airflow: the task is safe, and a sweep would start it too.
    afterwards.add_task(context.in_thread, context.service.launch, task)
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
        int, Query(ge=1, le=_MOST_PER_PAGE, description="How many at most on this page")
    ] = 50,
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
    responses={
        200: {"content": {"text/event-stream": {"example": _EVENTS}}},
        **errors(400, 401, 403, 404, 503),
    },
    dependencies=[reading],
)
async def stream_events(
    task: Annotated[Task, Depends(existing_task)],
    context: Ctx,
    last_event_id: Annotated[
        int,
        Header(ge=0, le=_LATEST_VERSION, description="The last version seen, on a reconnect"),
    ] = 0,
) -> AsyncIterator[ServerSentEvent]:
    """`state` events carry one row of the history each, from the first on or from the one after
    `Last-Event-ID`; `progress` events carry how far the attempt is."""
    store, told, shown = context.service.store, last_event_id, None
    with context.feed.subscribe(task.task_id) as subscription:
        try:
            # What happened between the look-up and the subscription is in here.
            current: Task | None = await context.in_thread(store.get, task.task_id)
            while current is not None:
                if current.version > told:
                    for row in await context.in_thread(store.history, task.task_id):
                        if row.version > told:
                            told = row.version
                            yield _state_event(row)
                if current.progress and current.progress != shown:
                    shown = current.progress
                    yield ServerSentEvent(event="progress", data=shown)
                if current.status.terminal:
                    return
                current = await subscription.next()
        except (LedgerUnavailable, TaskNotFound) as error:
            # The status line is out. An end before the terminal state makes the caller reconnect.
            log.warning("events.cut", task_id=str(task.task_id), error=error.code)


def _state_event(row: TaskVersion) -> ServerSentEvent:
    # As a dict, because that is written in ASCII: a line separator in a text would end the line.
    data = VersionRecord.of(row).model_dump(mode="json")
    return ServerSentEvent(event="state", id=str(row.version), data=data)


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
