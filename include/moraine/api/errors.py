"""Errors as callers see them: the contract's ErrorResponse, never a stack trace."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from moraine.errors import MoraineError, Unauthorized
from moraine.log import get_logger
from moraine.tasks.schemas import ErrorResponse

log = get_logger(__name__)

_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


def error_response(
    http_status: int, code: str, message: str, *, headers: dict[str, str] | None = None, **more: Any
) -> JSONResponse:
    body = ErrorResponse(error_code=code, message=message, **more)
    return JSONResponse(body.model_dump(mode="json", exclude_none=True), http_status, headers)


def install_error_handlers(app: Starlette) -> None:
    app.add_exception_handler(MoraineError, _moraine_error)
    app.add_exception_handler(RequestValidationError, _invalid_parameters)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


def response_to(error: MoraineError) -> JSONResponse:
    headers = {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    if retry_after := getattr(error, "retry_after", None):
        headers["Retry-After"] = str(retry_after)
    return error_response(
        error.http_status,
        error.code,
        str(error),
        details=error.details,
        delegation_task_id=getattr(error, "task_id", None),
        headers=headers or None,
    )


async def _moraine_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, MoraineError)
    return response_to(error)


async def _invalid_parameters(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = (
        f"{'.'.join(str(part) for part in problem['loc'][1:])}: {problem['msg']}"
        for problem in error.errors()[:10]
    )
    return error_response(400, "VALIDATION_FAILED", "; ".join(problems))


async def _http_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "HTTP_ERROR")
    headers = dict(error.headers) if error.headers else None
    return error_response(error.status_code, code, str(error.detail), headers=headers)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    # The server logs the trace. Here it would come with the variables of each frame, tokens and
    # bodies among them, where structlog's development output is on.
    log.error("api.unexpected", path=request.url.path, error=type(error).__name__)
    return error_response(500, "INTERNAL_ERROR", "An unexpected error; the service's log has it.")
