"""What FastAPI cannot derive for the contract: headers, streamed bodies, errors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from moraine.http.openapi import REFERENCE, error_responses


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
    408: ("The body arrives too slowly.", "body_too_slow"),
    409: ("The request is in progress, or the table exists already.", "request_in_progress"),
    413: ("The body is too large, as sent or decompressed.", "payload_too_large"),
    415: ("The media type or the encoding is not supported.", "unsupported_media_type"),
    422: ("The key was used for other bytes or another table.", "idempotency_key_reused"),
    429: ("Too many requests of this client; see Retry-After.", "rate_limited"),
    502: ("The catalog does not answer.", "catalog_error"),
    503: ("Nothing can be written at the moment; retry with the same key.", "writer_unavailable"),
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error responses of a route; every route may answer 401, 403, 429 and 503."""
    given = {401, 403, 429, 503, *statuses} | ({408} if 413 in statuses else set())
    return error_responses(
        "Error",
        {
            status: (
                description,
                {"error": {"code": code, "message": "…", "request_id": "5f0c…"}},
            )
            for status, (description, code) in _ERRORS.items()
            if status in given
        },
    )


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": name in ("X-Database", "X-Table"),
        "description": description,
        "schema": {"type": "string", **schema},
    }


_KEY = "Identifies the request: a retry is written once, and gets the same answer."
_KEY_SCHEMA: dict[str, Any] = {"minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
_FLAG = {"enum": ["true", "false", "1", "0"]}

LINES = {
    "parameters": [
        _header("X-Database", "The namespace; its levels are separated by dots."),
        _header("X-Table", "The table."),
        _header("X-Idempotency-Key", _KEY, **_KEY_SCHEMA),
        _header("Idempotency-Key", "The same, where there is no X-Idempotency-Key.", **_KEY_SCHEMA),
        _header("X-Auto-Create", "Create the table if it does not exist.", **_FLAG),
        _header("X-Schema-Evolve", "Add columns for fields that have none.", **_FLAG),
        _header("X-Request-ID", "The response repeats it."),
        _header(
            "Content-Encoding", "The compression of the body.", enum=["identity", "gzip", "zstd"]
        ),
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
    """The body of a request that a route reads itself."""
    schema = {"$ref": REFERENCE.format(model=model.__name__)}
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def complete(document: dict[str, Any], *requests: type[BaseModel]) -> None:
    """Add the schemas that only these parts refer to."""
    models: list[type[BaseModel]] = [Error, *requests]
    for model in models:
        schema = model.model_json_schema(ref_template=REFERENCE)
        document["components"]["schemas"] |= schema.pop("$defs", {})
        document["components"]["schemas"][model.__name__] = schema
