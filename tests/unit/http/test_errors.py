"""Every error has a stable code, one status, and a body that the contract allows."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from fastapi import FastAPI
from starlette.exceptions import HTTPException

import moraine.app.assembly
from moraine.errors import (
    AlreadyInProgress,
    FinalError,
    LedgerUnavailable,
    MoraineError,
    TransientError,
    Unauthorized,
    http_status_of,
)
from moraine.http.errors import ErrorResponse, install_error_handlers

assert moraine.app.assembly  # its import makes every error of the API known
CONTRACT = {400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 502, 503}


def subclasses(cls: type[MoraineError]) -> Iterator[type[MoraineError]]:
    yield cls
    for sub in cls.__subclasses__():
        yield from subclasses(sub)


# Those of the client's side, of the embedded stack, the gateway and ingest never reach its callers.
ELSEWHERE = (
    "moraine.local",
    "moraine.client.delegation",
    "moraine.cli",
    "moraine.gateway",
    "moraine.ingest",
)
SERVED = [cls for cls in subclasses(MoraineError) if not cls.__module__.startswith(ELSEWHERE)]


@pytest.mark.parametrize("cls", SERVED, ids=lambda cls: cls.__name__)
def test_http_error_has_a_code_and_a_status_of_the_contract(cls: type[MoraineError]) -> None:
    assert cls.http_status in CONTRACT
    assert cls.code == cls.code.upper()
    assert cls.__doc__
    assert cls.__doc__ != MoraineError.__doc__ or cls is MoraineError


def test_http_error_code_means_one_thing() -> None:
    """Two classes share a code only as the transient and the final form of one failure; closer
    descriptions of one of them aside."""
    by_code = defaultdict(list)
    for cls in SERVED:
        if cls.__bases__[0] is Exception or cls.code != cls.__bases__[0].code:  # type: ignore[attr-defined]
            by_code[cls.code].append(cls)
    for code, classes in by_code.items():
        assert len({cls.http_status for cls in classes}) == 1, code
        if len(classes) > 1:
            assert len(classes) == 2, code
            assert {issubclass(cls, TransientError) for cls in classes} == {True, False}, code
            assert {issubclass(cls, FinalError) for cls in classes} == {True, False}, code


def test_http_error_code_read_from_the_ledger_has_its_status() -> None:
    for cls in SERVED:
        if cls.__module__ == "moraine.errors":
            assert http_status_of(cls.code) == cls.http_status
    assert http_status_of("UNKNOWN_CODE") == http_status_of(None) == 500


def answer(error: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    app = FastAPI()
    install_error_handlers(app)
    handler = next(
        app.exception_handlers[cls] for cls in type(error).__mro__ if cls in app.exception_handlers
    )
    request: Any = type("Request", (), {"url": type("Url", (), {"path": "/v1/tasks"})})
    response = asyncio.run(handler(request, error))  # type: ignore[arg-type]
    body = json.loads(response.body)
    ErrorResponse.model_validate(body, extra="forbid")
    return response.status_code, body, dict(response.headers)


def test_http_error_becomes_the_contracts_body() -> None:
    status, body, _ = answer(LedgerUnavailable("Away.", details="OperationalError"))
    assert status == 503
    assert body == {
        "error_code": "LEDGER_UNAVAILABLE",
        "message": "Away.",
        "details": "OperationalError",
    }


def test_http_error_of_a_conflict_names_the_task() -> None:
    task_id = uuid4()
    _, body, _ = answer(AlreadyInProgress("Busy.", task_id=task_id))
    assert body["delegation_task_id"] == str(task_id)
    assert "status" not in body


def test_http_error_401_names_the_authentication_scheme() -> None:
    status, _, headers = answer(Unauthorized())
    assert (status, headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    ("status", "code"), [(404, "NOT_FOUND"), (405, "METHOD_NOT_ALLOWED"), (418, "HTTP_ERROR")]
)
def test_http_errors_of_the_framework_have_the_contracts_body(status: int, code: str) -> None:
    found, body, headers = answer(HTTPException(status, headers={"Allow": "GET"}))
    assert (found, body["error_code"], headers["allow"]) == (status, code, "GET")


def test_http_error_of_a_bug_reveals_nothing() -> None:
    status, body, _ = answer(RuntimeError("password=hunter2"))
    assert (status, body["error_code"]) == (500, "INTERNAL_ERROR")
    assert "hunter2" not in json.dumps(body)
