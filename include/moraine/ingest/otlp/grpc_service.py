"""OTLP over gRPC, where exporters look for it first."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from moraine.ingest.otlp.decoding import decode_protobuf
from moraine.ingest.otlp.door import Authorize, OtlpDoor, bearer_token
from moraine.ingest.otlp.failures import OTHER_SIGNAL, Failure, failure_of

MAX_MESSAGE_BYTES = 16 * 2**20
_COLLECTOR = "opentelemetry.proto.collector"
_SERVICES = {
    "logs": f"{_COLLECTOR}.logs.v1.LogsService",
    "traces": f"{_COLLECTOR}.trace.v1.TraceService",
    "metrics": f"{_COLLECTOR}.metrics.v1.MetricsService",
}
_STREAMS_OF_A_CONNECTION = 32
_SECONDS_TO_FINISH = 5.0
_CODES = {code.value[0]: code for code in grpc.StatusCode}

_Context = grpc.aio.ServicerContext[bytes, ExportLogsServiceResponse]
_Handler = Callable[[bytes, _Context], Awaitable[ExportLogsServiceResponse]]


@contextlib.asynccontextmanager
async def serving(
    door: OtlpDoor,
    authorize: Authorize,
    host: str = "127.0.0.1",
    port: int = 4317,
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    credentials: grpc.ServerCredentials | None = None,
    share_port: bool = False,
) -> AsyncIterator[int]:
    """Serve while the context lasts, on the port it gives (with 0, one that was free).

    `share_port` lets several processes of one deployment listen there together. On the way out,
    requests that have begun are finished.
    """
    server = grpc.aio.server(
        options=[
            # gRPC holds a compressed message to this after it is decompressed, too.
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_concurrent_streams", _STREAMS_OF_A_CONNECTION),
            ("grpc.so_reuseport", int(share_port)),
        ]
    )
    server.add_generic_rpc_handlers(
        (
            _service("logs", _logs_of(door, authorize)),
            _service("traces", _refuse),
            _service("metrics", _refuse),
        )
    )
    address = f"{host}:{port}"
    bound = (
        server.add_secure_port(address, credentials)
        if credentials
        else server.add_insecure_port(address)
    )
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(_SECONDS_TO_FINISH)


def _service(signal: str, handler: _Handler) -> grpc.GenericRpcHandler:
    """Requests come as bytes: gRPC would tell an exporter that sent a malformed one to blame us."""
    method: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
        handler,
        response_serializer=ExportLogsServiceResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_SERVICES[signal], {"Export": method})


def _logs_of(door: OtlpDoor, authorize: Authorize) -> _Handler:
    async def export(body: bytes, context: _Context) -> ExportLogsServiceResponse:
        try:
            await authorize(bearer_token(_authorization(context)))
            decoded = await asyncio.to_thread(decode_protobuf, body)
            return await door.export(decoded.request, decoded.rejects)
        except Exception as error:
            failure = failure_of(error)
        await _abort(context, failure)

    return export


async def _refuse(_body: bytes, context: _Context) -> ExportLogsServiceResponse:
    await _abort(context, OTHER_SIGNAL)


def _authorization(context: _Context) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value if isinstance(value, str) else value.decode("latin-1")
    return None


async def _abort(context: _Context, failure: Failure) -> NoReturn:
    trailer: list[tuple[str, bytes]] = [
        ("grpc-status-details-bin", failure.status().SerializeToString())
    ]
    if info := failure.retry_info():
        # Where OpenTelemetry's Python SDK looks for it.
        trailer.append(("google.rpc.retryinfo-bin", info.SerializeToString()))
    await context.abort(_CODES[failure.code], failure.message, tuple(trailer))
