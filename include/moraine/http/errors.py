"""Errors as HTTP responses: never a stack trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal
from uuid import UUID

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from moraine.errors import BodyTooSlow, MoraineError, Unauthorized, ValidationFailed
from moraine.http.openapi import omit_default
from moraine.log import get_logger

log = get_logger(__name__)

_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


class ErrorResponse(BaseModel):
    """The body of every error. Act on `error_code`; `message` is for people."""

    delegation_task_id: UUID | SkipJsonSchema[None] = Field(
        None, description="The task, if there is one", json_schema_extra=omit_default
    )
    status: Literal["FAILED_TERMINAL"] | SkipJsonSchema[None] = Field(
        None, description="The task's end, if it failed", json_schema_extra=omit_default
    )
    error_code: str = Field(examples=["CREDENTIAL_VENDING_FAILED"])
    message: str
    details: str | SkipJsonSchema[None] = Field(
        None, description="Details for troubleshooting", json_schema_extra=omit_default
    )


class HttpError(MoraineError):
    """An error of the web framework: no such route, or not with this method."""

    code = "HTTP_ERROR"

    def __init__(self, error: HTTPException) -> None:
        super().__init__(str(error.detail))
        self.status = error.status_code
        self.own_code = _CODES.get(error.status_code, self.code)
        self.headers = dict(error.headers or {})


Render = Callable[[Request, MoraineError], JSONResponse]
"""Writes an error in the form of an app's contract."""


def install_error_handlers(app: Starlette, render: Render | None = None) -> None:
    """Answer every exception in the form of the app's contract."""
    write = render or render_error

    async def own(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, MoraineError)
        return write(request, error)

    async def invalid_parameters(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        problems = (
            f"{'.'.join(str(part) for part in problem['loc'][1:])}: {problem['msg']}"
            for problem in error.errors()[:10]
        )
        return write(request, ValidationFailed("; ".join(problems)))

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return write(request, HttpError(error))

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        # The server logs the trace. Here it would come with the variables of each frame, tokens
        # and bodies among them, where structlog's development output is on.
        log.error("api.unexpected", path=request.url.path, error=type(error).__name__)
        return write(request, MoraineError("An unexpected error; the service's log has it."))

    app.add_exception_handler(MoraineError, own)
    app.add_exception_handler(RequestValidationError, invalid_parameters)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected)


def render_error(_request: Request, error: MoraineError) -> JSONResponse:
    return response_to(error)


def response_to(error: MoraineError) -> JSONResponse:
    """The delegation API's ErrorResponse."""
    return error_response(
        status_of(error),
        code_of(error),
        str(error),
        details=error.details,
        delegation_task_id=getattr(error, "task_id", None),
        headers=headers_of(error),
    )


def error_response(
    http_status: int, code: str, message: str, *, headers: dict[str, str] | None = None, **more: Any
) -> JSONResponse:
    body = ErrorResponse(error_code=code, message=message, **more)
    return JSONResponse(body.model_dump(mode="json", exclude_none=True), http_status, headers)


def status_of(error: MoraineError) -> int:
    return error.status if isinstance(error, HttpError) else error.http_status


def code_of(error: MoraineError) -> str:
    return error.own_code if isinstance(error, HttpError) else error.code


def headers_of(error: MoraineError) -> dict[str, str]:
    headers = error.headers if isinstance(error, HttpError) else {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, BodyTooSlow):
        headers["Connection"] = "close"  # the rest of the body would come just as slowly
    if error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    return headers
