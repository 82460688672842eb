"""OTLP over HTTP: protobuf or JSON, plain or gzip. Errors have the encoding of the request."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message

from moraine.errors import UnsupportedMediaType
from moraine.http.bodies import read_bounded
from moraine.http.context import caller_of
from moraine.ingest.decompression import unpack
from moraine.ingest.otlp.decoding import decode_json, decode_protobuf
from moraine.ingest.otlp.service import (
    OTHER_SIGNAL,
    Authorize,
    OtlpDoor,
    OtlpFailure,
    failure_of,
)

# Not in the API's contract: OTLP has its own.
router = APIRouter(include_in_schema=False)


class Encoding(StrEnum):
    PROTOBUF = "application/x-protobuf"
    JSON = "application/json"


_DECODERS = {Encoding.PROTOBUF: decode_protobuf, Encoding.JSON: decode_json}


@dataclass(frozen=True, slots=True)
class OtlpHttp:
    """What the routes need from their process."""

    door: OtlpDoor
    authorize: Authorize
    max_body_bytes: int
    """The limit of a body as sent, and decompressed."""


def otlp_of(request: Request) -> OtlpHttp:
    otlp: OtlpHttp = request.app.state.context.otlp
    return otlp


Otlp = Annotated[OtlpHttp, Depends(otlp_of)]


@router.post("/v1/logs")
async def export_logs(request: Request, otlp: Otlp) -> Response:
    encoding = _encoding_of(request)
    try:
        principal = await otlp.authorize(caller_of(request.scope))
        if encoding is None:
            raise UnsupportedMediaType(f"Send logs as {' or '.join(Encoding)}.")
        compression = _compression_of(request)
        declared = request.headers.get("content-length", "")
        body = await read_bounded(request.receive, declared, otlp.max_body_bytes)
        plain = await asyncio.to_thread(unpack, body, compression, otlp.max_body_bytes)
        decoded = await asyncio.to_thread(_DECODERS[encoding], plain)
        answer = await otlp.door.export(principal, decoded.request, decoded.rejects)
        return _answer(answer, encoding)
    except Exception as error:
        return _refusal(failure_of(error), encoding)


@router.post("/v1/traces")
@router.post("/v1/metrics")
async def refuse_other_signals(request: Request) -> Response:
    return _refusal(OTHER_SIGNAL, _encoding_of(request))


def _encoding_of(request: Request) -> Encoding | None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return next((encoding for encoding in Encoding if encoding == media_type), None)


def _compression_of(request: Request) -> str:
    given = request.headers.get("content-encoding", "").strip().lower()
    if given not in ("", "identity", "gzip"):
        raise UnsupportedMediaType(f"Compress with gzip or not at all, not {given[:50]!r}.")
    return given


def _refusal(failure: OtlpFailure, encoding: Encoding | None) -> Response:
    response = _answer(failure.status(), encoding or Encoding.JSON, failure.http_status)
    if failure.http_status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if failure.http_status == 408:
        response.headers["Connection"] = "close"
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
