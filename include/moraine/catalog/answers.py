"""What servers answer, read with care: bounded, and an object or nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import requests

_CHUNK = 1 << 16
_MOST_ERROR_BYTES = 1 << 20


class AnswerTooLarge(Exception):
    """The answer has more bytes than it may."""


def read_json(response: requests.Response, most_bytes: int) -> Any:
    """The document in the body, which must not have been read yet; ValueError if there is none."""
    content = _read(response, most_bytes)
    try:
        return json.loads(content) if content else {}
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_object(response: requests.Response, most_bytes: int) -> dict[str, Any]:
    """The object in the body, empty if there is none that can be read."""
    try:
        body = read_json(response, most_bytes)
    except (ValueError, AnswerTooLarge):
        return {}
    return body if isinstance(body, dict) else {}


def read_error(response: requests.Response) -> dict[str, Any]:
    """Iceberg's error model, empty if the server does not speak it."""
    error = read_object(response, _MOST_ERROR_BYTES).get("error")
    return error if isinstance(error, dict) else {}


def words_of(response: requests.Response, error: Mapping[str, Any]) -> str:
    """The catalog's own words, if it speaks Iceberg's error form; never a page, nor the token."""
    words = str(error.get("message") or response.reason or "no reason given")
    token = str(response.request.headers.get("Authorization", "")).removeprefix("Bearer ")
    return (words.replace(token, "***") if token else words)[:500]


def keep_body(response: requests.Response, most_bytes: int) -> None:
    """Read the body now, and keep it for others: a connection that breaks then breaks here."""
    content = _read(response, most_bytes)
    response._content, response._content_consumed = content, True  # type: ignore[attr-defined]


def _read(response: requests.Response, most_bytes: int) -> bytes:
    content = bytearray()
    try:
        for chunk in response.iter_content(_CHUNK):
            content += chunk
            if len(content) > most_bytes:
                raise AnswerTooLarge
    finally:
        response.close()
    return bytes(content)
