"""What servers answer, read with care: bounded, and an object or nothing."""

from __future__ import annotations

import json
from typing import Any

import requests

_CHUNK = 1 << 16


class AnswerTooLarge(Exception):
    """The answer has more bytes than it may."""


def read_json(response: requests.Response, most_bytes: int) -> Any:
    """The document in the body, which must not have been read yet; ValueError if there is none."""
    content = bytearray()
    try:
        for chunk in response.iter_content(_CHUNK):
            content += chunk
            if len(content) > most_bytes:
                raise AnswerTooLarge
    finally:
        response.close()
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
