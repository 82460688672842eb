"""OTLP over HTTP: protobuf or JSON, plain or gzip. Errors come in the form of the request."""

from __future__ import annotations

import asyncio
import gzip
import io
import math
import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message

from moraine.api.body import read_bounded
from moraine.errors import BadRequest, PayloadTooLarge, UnsupportedMediaType
from moraine.ingest.otlp.decoding import Decoded, decode_json, decode_protobuf
from moraine.ingest.otlp.door import Authorize, OtlpDoor, bearer_token
from moraine.ingest.otlp.failures import OTHER_SIGNAL, Failure, failure_of

MAX_BODY_BYTES = 16 * 2**20

# Not in the API's own contract: OTLP has one of its own.
router = APIRouter(include_in_schema=False)


class Encoding(StrEnum):
    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"


@dataclass(frozen=True, slots=True)
class OtlpHttp:
    """What the routes need of the process they run in."""

    door: OtlpDoor
    authorize: Authorize
    max_body_bytes: int = MAX_BODY_BYTES
    """Of a body as it is sent, and of what it becomes when it is decompressed."""


def otlp_of(request: Request) -> OtlpHttp:
    otlp: OtlpHttp = request.app.state.context.otlp
    return otlp


Otlp = Annotated[OtlpHttp, Depends(otlp_of)]


@router.post("/v1/logs")
async def export_logs(request: Request, otlp: Otlp) -> Response:
    encoding = _encoding_of(request)
    try:
        await otlp.authorize(bearer_token(request.headers.get("authorization")))
        if encoding is None:
            raise UnsupportedMediaType(f"Send logs as {' or '.join(Encoding)}.")
        compressed = _is_compressed(request)
        declared = request.headers.get("content-length", "")
        body = await read_bounded(request.receive, declared, otlp.max_body_bytes)
        limit = otlp.max_body_bytes if compressed else None
        decoded = await asyncio.to_thread(_decode, body, encoding, limit)
        return _answer(await otlp.door.export(decoded.request, decoded.rejects), encoding)
    except Exception as error:
        return _refusal(failure_of(error), encoding)


@router.post("/v1/traces")
@router.post("/v1/metrics")
async def refuse_other_signals(request: Request) -> Response:
    return _refusal(OTHER_SIGNAL, _encoding_of(request))


def _encoding_of(request: Request) -> Encoding | None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return next((encoding for encoding in Encoding if encoding == media_type), None)


def _is_compressed(request: Request) -> bool:
    match request.headers.get("content-encoding", "").strip().lower():
        case "" | "identity":
            return False
        case "gzip":
            return True
        case other:
            raise UnsupportedMediaType(f"Compress with gzip or not at all, not {other[:50]!r}.")


def _decode(body: bytes, encoding: Encoding, decompress_to: int | None) -> Decoded:
    if decompress_to is not None:
        body = _gunzip(body, decompress_to)
    return decode_json(body) if encoding is Encoding.JSON else decode_protobuf(body)


def _gunzip(body: bytes, max_bytes: int) -> bytes:
    try:
        with gzip.open(io.BytesIO(body)) as file:
            plain = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error):
        raise BadRequest("The body is not whole gzip, as Content-Encoding says.") from None
    if len(plain) > max_bytes:
        raise PayloadTooLarge(f"The body is larger than {max_bytes} bytes when decompressed.")
    return plain


def _refusal(failure: Failure, encoding: Encoding | None) -> Response:
    response = _answer(failure.status(), encoding or Encoding.JSON, failure.http_status)
    if failure.http_status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if failure.retry_after is not None:
        response.headers["Retry-After"] = str(math.ceil(failure.retry_after))
    return response


def _answer(message: Message, encoding: Encoding, http_status: int = 200) -> Response:
    content = (
        MessageToJson(message, indent=None).encode()
        if encoding is Encoding.JSON
        else message.SerializeToString()
    )
    return Response(content, http_status, media_type=encoding.value)
