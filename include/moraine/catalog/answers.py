"""Reading the answers of servers: of bounded size, and never trusted to be well formed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import requests

_CHUNK = 1 << 16
_MAX_ERROR_BYTES = 1 << 20


class AnswerTooLarge(Exception):
    """The answer is larger than the maximum."""


def read_json(response: requests.Response, max_bytes: int) -> Any:
    """The JSON of a body that has not been read yet. Raises ValueError if it is not JSON."""
    content = _read(response, max_bytes)
    try:
        return json.loads(content) if content else {}
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_object(response: requests.Response, max_bytes: int) -> dict[str, Any]:
    """The JSON object in the body, or an empty one if there is none."""
    try:
        body = read_json(response, max_bytes)
    except (ValueError, AnswerTooLarge):
        return {}
    return body if isinstance(body, dict) else {}


def read_error(response: requests.Response) -> dict[str, Any]:
    """The error in Iceberg's error model, or an empty object if the server sent none."""
    error = read_object(response, _MAX_ERROR_BYTES).get("error")
    return error if isinstance(error, dict) else {}


def words_of(response: requests.Response, error: Mapping[str, Any]) -> str:
    """The catalog's error message, if it used Iceberg's model. Never HTML, never the token."""
    words = str(error.get("message") or response.reason or "no reason given")
    token = str(response.request.headers.get("Authorization", "")).removeprefix("Bearer ")
    return (words.replace(token, "***") if token else words)[:500]


def keep_body(response: requests.Response, max_bytes: int) -> None:
    """Read the body now and keep it for later readers, so that a broken connection shows here."""
    content = _read(response, max_bytes)
    response._content, response._content_consumed = content, True  # type: ignore[attr-defined]


def _read(response: requests.Response, max_bytes: int) -> bytes:
    content = bytearray()
    try:
        for chunk in response.iter_content(_CHUNK):
            content += chunk
            if len(content) > max_bytes:
                raise AnswerTooLarge
    finally:
        response.close()
    return bytes(content)
