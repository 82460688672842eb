"""Request bodies: bounded, UTF-8, JSON, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.types import Receive

from moraine.errors import BadRequest, PayloadTooLarge, UnsupportedMediaType, ValidationFailed
from moraine.http.validation import explain

M = TypeVar("M", bound=BaseModel)
_FIRST_PIECE = 64 << 10


async def read_model(request: Request, model: type[M], max_bytes: int) -> M:
    """The body as the model. The parser refuses deep nesting."""
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if media_type.strip().lower() != "application/json" or charset not in ("", "utf-8", "utf8"):
        raise UnsupportedMediaType()
    declared = request.headers.get("content-length", "")
    body = await read_bounded(request.receive, declared, max_bytes)
    if not body.strip():
        raise BadRequest("The request has no body.")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: byte {error.start} is out of place.") from None
    return validate(model, body)


def validate(model: type[M], body: bytes) -> M:
    try:
        parsed = model.model_validate_json(body)
    except ValidationError as error:
        raise ValidationFailed(explain(error)) from None
    _refuse_repeated_names(body)
    return parsed


def _refuse_repeated_names(body: bytes) -> None:
    """Refuse two values for one name: either may be the wrong table to purge.

    The parser before this one has bounded the nesting. Numbers are not parsed.
    """

    def check(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise BadRequest("The body gives a name twice in one object.")

    json.loads(body, object_pairs_hook=check, parse_int=len, parse_float=len)


async def read_bounded(
    receive: Receive,
    declared: str,
    max_bytes: int,
    *,
    admit: Callable[[], Awaitable[None]] | None = None,
    hold: Callable[[int], None] | None = None,
) -> bytes:
    """A whole body of at most `max_bytes`. `declared` is its Content-Length, if it has one.

    `admit` is called before more than the first piece is held, and raises for a caller that is not
    to be served. `hold` is told the size of each piece, and raises if there is no room for it.
    """
    too_large = PayloadTooLarge(f"The body is larger than {max_bytes} bytes.")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("The caller hung up before the body was complete.")
        piece = message.get("body", b"")
        if len(body) + len(piece) > max_bytes:
            raise too_large
        if hold is not None:
            hold(len(piece))
        body += piece
        if admit is not None and len(body) > _FIRST_PIECE:
            await admit()
            admit = None
        more = message.get("more_body", False)
    return bytes(body)
