"""Idempotency-Key on the delegation API: middleware around the routes that change something."""

from __future__ import annotations

import re
from typing import Any, Protocol
from uuid import UUID

import uuid6
from fastapi import Request
from starlette._utils import get_route_path
from starlette.types import ASGIApp, Receive, Scope, Send

from moraine.access.model import Action
from moraine.errors import Cancelled, MoraineError
from moraine.http.asgi import ask, respond
from moraine.http.bodies import read_bounded
from moraine.http.context import caller_of
from moraine.http.errors import response_to
from moraine.http.keys import HEADER, parse_key
from moraine.idempotency.fingerprint import fingerprint
from moraine.idempotency.model import Record, Response
from moraine.idempotency.model import Scope as KeyScope
from moraine.idempotency.service import Applied, Finding, Layer, Mutation, NotApplied
from moraine.tasks.model import Task
from moraine.tasks.routes import TaskContext
from moraine.tasks.schemas import TaskRecord
from moraine.tasks.service import ON_REQUEST

_KEY = HEADER.lower().encode()
_ROUTES = re.compile(r"/v1/tasks(?:/execute/synchronous|/(?P<id>[^/]+)/(?P<act>cancel|retry))?")
_KEPT_HEADERS = frozenset({"content-type", "location"})
# Credentials are dropped on arrival: the same request with fresh ones is still the same request.
_NOT_IDENTITY = ("operation_parameters.config",)


class KeyedContext(TaskContext, Protocol):
    @property
    def layer(self) -> Layer: ...


class KeyedTasks:
    """Checks the caller's token before it looks at the key."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [value for name, value in scope.get("headers", ()) if name == _KEY]
        if not given or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        context: KeyedContext = scope["app"].state.context
        path = get_route_path(scope)
        route = _ROUTES.fullmatch(path)
        if route is None or not context.settings.idempotency.enabled:
            return await self._app(scope, receive, send)
        try:
            request = Request(scope, receive)
            action = Action.STEER_TASKS if route["act"] else Action.EXECUTE_TASKS
            principal = await context.guard.identify(caller_of(scope), action)
            settings = context.settings
            key = parse_key([v.decode("latin-1") for v in given], settings.idempotency.key_format)
            declared = request.headers.get("content-length", "")
            body = await read_bounded(receive, declared, settings.api.max_body_bytes)
            mutation = TaskMutation(
                KeyScope(principal.realm, principal.name, "POST", path, key or ""),
                body,
                context,
                self._app,
                scope,
                receive,
                target=route["id"],
                act=route["act"],
            )
            response = await context.layer.handle(mutation)
        except MoraineError as error:
            return await response_to(error)(scope, receive, send)
        await respond(send, response)


class TaskMutation(Mutation):
    """A new task gets its id with the reservation, so that admission is idempotent. A cancel or a
    retry is found again in the task's own record."""

    def __init__(
        self,
        scope: KeyScope,
        body: bytes,
        context: KeyedContext,
        app: ASGIApp,
        asgi_scope: Scope,
        receive: Receive,
        *,
        target: str | None,
        act: str | None,
    ) -> None:
        self.scope = scope
        query = asgi_scope.get("query_string", b"").decode("latin-1")
        self.payload_hash = fingerprint(body, query, without=_NOT_IDENTITY)
        self.looks_first = act == "retry"
        self._body = body
        self._context = context
        self._app = app
        self._asgi_scope = asgi_scope
        self._receive = receive
        self._target = target
        self._act = act

    async def intent(self) -> dict[str, Any]:
        if self._act is None:
            return {"operation": "submit", "task_id": str(uuid6.uuid7())}
        intent: dict[str, Any] = {"operation": self._act, "task_id": self._target}
        if self._act == "retry" and (task := await self._task(intent)):
            intent["version"] = task.version
        return intent

    async def execute(self, intent: dict[str, Any]) -> Response:
        state = {**self._asgi_scope.get("state", {})}
        if intent["operation"] == "submit":
            state["task_id"] = UUID(intent["task_id"])
        scope = {**self._asgi_scope, "state": state}
        return Response(*await ask(self._app, scope, self._body, self._receive))

    async def reconcile(self, intent: dict[str, Any]) -> Finding:
        task = await self._task(intent)
        if task is None:
            return NotApplied()
        if intent["operation"] == "submit":
            # The task exists, so this finds it and writes nothing.
            return Applied(await self.execute(intent))
        if await self._was_changed(task, intent):
            body = TaskRecord.of(task).model_dump_json().encode()
            return Applied(Response(202, (("content-type", "application/json"),), body))
        return NotApplied()

    async def replay(self, record: Record) -> Response:
        assert record.response is not None
        return record.response

    def without_secrets(self, response: Response) -> Response:
        headers = tuple(pair for pair in response.headers if pair[0].lower() in _KEPT_HEADERS)
        return Response(response.status, headers, response.body)

    async def _task(self, intent: dict[str, Any]) -> Task | None:
        try:
            task_id = UUID(intent["task_id"])
        except ValueError:
            return None
        context = self._context
        found = await context.in_thread(context.service.store.get_many, [task_id])
        return found[0] if found else None

    async def _was_changed(self, task: Task, intent: dict[str, Any]) -> bool:
        if intent["operation"] == "cancel":
            return task.cancel_requested_ts is not None or task.error_code == Cancelled.code
        context = self._context
        history = await context.in_thread(context.service.store.history, task.task_id)
        after = [row for row in history if row.version == intent.get("version", 0) + 1]
        return bool(after) and after[0].reason in ON_REQUEST
