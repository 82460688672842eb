"""The doors that speak HTTP, as one app with errors of its own form."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moraine.api.auth import Access
from moraine.api.base import document_of, new_app
from moraine.api.services import Services
from moraine.errors import LedgerUnavailable, MoraineError, Unauthorized
from moraine.ingest import openapi, routes
from moraine.ingest.otlp import http_routes
from moraine.ingest.routes import requires
from moraine.log import get_logger

log = get_logger(__name__)

INGEST_PATH = "/ingest"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_CODES = {404: "not_found", 405: "method_not_allowed"}


def create_ingest_app(services: Services | None = None) -> FastAPI:
    app = new_app(
        services or Services(),
        title="Moraine Ingest",
        summary="Lines of JSON become rows of Iceberg tables, once whatever crashes",
    )
    app.include_router(routes.router)
    app.include_router(http_routes.router)
    app.add_exception_handler(MoraineError, _moraine_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)

    app.add_middleware(_WithRequestId)

    @app.get("/openapi.json", include_in_schema=False, dependencies=[requires(Access.READ)])
    async def document() -> dict[str, Any]:
        return ingest_document(app)

    return app


def ingest_document(app: FastAPI | None = None) -> dict[str, Any]:
    """The contract of the doors that speak HTTP; OTLP has one of its own."""
    document = document_of(app or create_ingest_app(), INGEST_PATH)
    openapi.complete(document, routes.NewTable, routes.NewPromotion)
    return document


class _WithRequestId:
    """Every answer says which request it answers."""

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
    """As the caller calls the request, or as we do."""
    if not hasattr(request.state, "request_id"):
        given = request.headers.get("x-request-id", "")
        request.state.request_id = given if _REQUEST_ID.fullmatch(given) else str(uuid4())
    return str(request.state.request_id)


def _error(request: Request, status: int, code: str, message: str, **headers: str) -> JSONResponse:
    request_id = request_id_of(request)
    body = {"error": {"code": code, "message": message, "request_id": request_id}}
    return JSONResponse(body, status, headers)


async def _moraine_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, MoraineError)
    headers: dict[str, Any] = {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    retry_after = getattr(error, "retry_after", 5 if isinstance(error, LedgerUnavailable) else None)
    if retry_after:
        headers["Retry-After"] = str(retry_after)
    return _error(request, error.http_status, error.code.lower(), str(error), **headers)


async def _invalid_parameters(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return _error(request, 400, "bad_request", "A parameter of the request is wrong.")


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "bad_request")
    return _error(request, error.status_code, code, str(error.detail))


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("ingest.unexpected", path=request.url.path, error=type(error).__name__)
    return _error(request, 500, "internal_error", "An unexpected error; the log has it.")
