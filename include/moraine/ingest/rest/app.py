"""The app of the doors that speak HTTP, with the error format of ingest."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moraine.access.model import Action
from moraine.errors import MoraineError
from moraine.http.context import requires
from moraine.http.errors import code_of, headers_of, install_error_handlers, status_of
from moraine.http.limits import LimitedRequests
from moraine.http.openapi import Lifespan, document_of, new_app
from moraine.http.peer import ProxiedCertificates
from moraine.ingest.otlp import routes as otlp_routes
from moraine.ingest.rest import openapi, routes

INGEST_PATH = "/ingest"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def create_ingest_app(lifespan: Lifespan) -> FastAPI:
    app = new_app(
        lifespan,
        title="Moraine Ingest",
        summary="Lines of JSON become rows of Iceberg tables, exactly once",
    )
    app.include_router(routes.router)
    app.include_router(otlp_routes.router)
    install_error_handlers(app, render_error)
    app.add_middleware(LimitedRequests, limits_of=lambda limits: limits.ingest, render=render_error)
    app.add_middleware(_WithRequestId)
    app.add_middleware(ProxiedCertificates)

    @app.get("/openapi.json", include_in_schema=False, dependencies=[requires(Action.WRITE_INGEST)])
    async def document() -> dict[str, Any]:
        return ingest_document(app)

    return app


def ingest_document(app: FastAPI) -> dict[str, Any]:
    """The contract of the REST door. OTLP has its own."""
    document = document_of(app, INGEST_PATH)
    openapi.complete(document, routes.NewTable, routes.NewPromotion)
    return document


class _WithRequestId:
    """Adds X-Request-ID to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = request_id_of(Request(scope))

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        await self._app(scope, receive, send_named)


def request_id_of(request: Request) -> str:
    """The caller's X-Request-ID, or a new one."""
    if not hasattr(request.state, "request_id"):
        given = request.headers.get("x-request-id", "")
        request.state.request_id = given if _REQUEST_ID.fullmatch(given) else str(uuid4())
    return str(request.state.request_id)


def render_error(request: Request, error: MoraineError) -> JSONResponse:
    detail = {
        "code": code_of(error).lower(),
        "message": str(error),
        "request_id": request_id_of(request),
    }
    return JSONResponse({"error": detail}, status_of(error), headers_of(error))
