"""Request bodies: bounded, UTF-8, JSON, and nothing else."""

from __future__ import annotations

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from moraine.errors import BadRequest, PayloadTooLarge, UnsupportedMediaType, ValidationFailed
from moraine.validation import explain

M = TypeVar("M", bound=BaseModel)


async def read_model(request: Request, model: type[M], max_bytes: int) -> M:
    """The body as the model. The parser refuses deep nesting, so a small bomb does no harm."""
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if media_type.strip().lower() != "application/json" or charset not in ("", "utf-8", "utf8"):
        raise UnsupportedMediaType()
    body = await _read_bounded(request, max_bytes)
    if not body.strip():
        raise BadRequest("The request has no body.")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(f"The body is not UTF-8: byte {error.start} is out of place.") from None
    return validate(model, body)


def validate(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise ValidationFailed(explain(error)) from None


async def _read_bounded(request: Request, max_bytes: int) -> bytes:
    too_large = PayloadTooLarge(f"The body is larger than {max_bytes} bytes.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)
