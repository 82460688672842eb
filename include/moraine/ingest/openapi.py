"""What FastAPI cannot know about the doors: their headers, bodies that are streams, errors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

_REFERENCE = "#/components/schemas/{model}"


class ErrorDetail(BaseModel):
    code: str
    message: str
    request_id: str


class Error(BaseModel):
    error: ErrorDetail


_ERRORS = {
    400: ("A header, a name or the body is wrong, or a line does not fit.", "bad_request_body"),
    401: ("There is no valid token.", "unauthorized"),
    403: ("The token does not allow this.", "forbidden"),
    404: ("There is no such table, or no such key.", "table_not_found"),
    409: ("It is under way, or there already.", "request_in_progress"),
    413: ("The body is too large, as it is sent or once it is unpacked.", "payload_too_large"),
    415: ("The body is of another kind.", "unsupported_media_type"),
    422: ("The key was used for other bytes or another table.", "idempotency_key_reused"),
    429: ("Too many requests for this database; see Retry-After.", "rate_limited"),
    502: ("The catalog does not answer.", "catalog_error"),
    503: ("Nothing can be written just now; repeat it with the same key.", "writer_unavailable"),
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route. Any may be without its right."""
    return {
        status: {
            "description": _ERRORS[status][0],
            "content": {
                "application/json": {
                    "schema": {"$ref": _REFERENCE.format(model="Error")},
                    "example": _example(_ERRORS[status][1]),
                }
            },
        }
        for status in sorted({401, 403, 503, *statuses})
    }


def _example(code: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": "…", "request_id": "5f0c…"}}


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": name in ("X-Database", "X-Table"),
        "description": description,
        "schema": {"type": "string", **schema},
    }


_KEY = "Names the request: a repetition is written once, and answered alike."
_KEY_SCHEMA: dict[str, Any] = {"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
_FLAG = {"enum": ["true", "false", "1", "0"]}

LINES = {
    "parameters": [
        _header("X-Database", "The namespace; its levels parted by dots."),
        _header("X-Table", "The table."),
        _header("X-Idempotency-Key", _KEY, **_KEY_SCHEMA),
        _header("Idempotency-Key", "The same, where there is no X-Idempotency-Key.", **_KEY_SCHEMA),
        _header("X-Auto-Create", "Make the table if there is none.", **_FLAG),
        _header("X-Schema-Evolve", "Make columns for fields that have none.", **_FLAG),
        _header("X-Request-ID", "How the answer names this request."),
        _header("Content-Encoding", "How the body is packed.", enum=["identity", "gzip", "zstd"]),
    ],
    "requestBody": {
        "required": True,
        "description": "One JSON object a line.",
        "content": {
            "application/x-ndjson": {
                "schema": {"type": "string"},
                "example": '{"message": "one"}\n{"message": "two", "place": 2}\n',
            }
        },
    },
}
"""The request of the REST door."""


def json_body(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """A request that a route reads by itself."""
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def complete(document: dict[str, Any], *requests: type[BaseModel]) -> None:
    """Add the schemas that only the above refers to."""
    models: list[type[BaseModel]] = [Error, *requests]
    for model in models:
        schema = model.model_json_schema(ref_template=_REFERENCE)
        document["components"]["schemas"] |= schema.pop("$defs", {})
        document["components"]["schemas"][model.__name__] = schema
