"""OTLP over gRPC, the default of exporters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

from moraine.access.model import Caller
from moraine.access.peer import certificate_of_call
from moraine.errors import BadRequest, BodyTooSlow, TooManyRequests
from moraine.http.limits import Concurrency, LimitCounts, client_of
from moraine.ingest.otlp.decoding import decode_protobuf
from moraine.ingest.otlp.service import (
    OTHER_SIGNAL,
    Authorize,
    OtlpDoor,
    OtlpFailure,
    failure_of,
)
from moraine.settings.tls import ListenerTlsSettings
from moraine.tls.grpc import server_credentials

_COLLECTOR = "opentelemetry.proto.collector"
_SERVICES = {
    "logs": f"{_COLLECTOR}.logs.v1.LogsService",
    "traces": f"{_COLLECTOR}.trace.v1.TraceService",
    "metrics": f"{_COLLECTOR}.metrics.v1.MetricsService",
}
_STREAMS_OF_A_CONNECTION = 32
_SECONDS_TO_FINISH = 5.0
_SECONDS_FOR_A_TURN = 10.0
# Exporters export every few seconds: one that does not holds a connection that others may need.
_IDLE_MILLISECONDS = 60_000
_HANDSHAKE_MILLISECONDS = 10_000
_CODES = {code.value[0]: code for code in grpc.StatusCode}

_Context = grpc.aio.ServicerContext[bytes, ExportLogsServiceResponse]
_Handler = Callable[[AsyncIterator[bytes], _Context], Awaitable[ExportLogsServiceResponse]]


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What exporters may cost one process."""

    max_message_bytes: int
    max_connections: int = 1000
    requests_at_once: int = 32
    requests_per_client: int = 1000
    read_timeout: float = 30.0


@contextlib.asynccontextmanager
async def serving(
    door: OtlpDoor,
    authorize: Authorize,
    host: str = "127.0.0.1",
    port: int = 4317,
    *,
    limits: GrpcLimits,
    counts: LimitCounts | None = None,
    share_port: bool = False,
    tls: ListenerTlsSettings | None = None,
) -> AsyncIterator[int]:
    """Serve inside the context, on the port that it yields (a free one for 0).

    `share_port` lets several processes of one deployment listen on the same port. At the end,
    requests in progress are completed.
    """
    server = grpc.aio.server(
        options=[
            # gRPC applies it to the decompressed message too.
            ("grpc.max_receive_message_length", limits.max_message_bytes),
            ("grpc.max_concurrent_streams", _STREAMS_OF_A_CONNECTION),
            ("grpc.max_allowed_incoming_connections", limits.max_connections),
            ("grpc.max_connection_idle_ms", _IDLE_MILLISECONDS),
            ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MILLISECONDS),
            # Otherwise gRPC reads some megabytes of a message ahead of the handler that asks for
            # it. Without, it is 64 KiB, and the whole message once the handler does ask.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.so_reuseport", int(share_port)),
        ]
    )
    logs = LogsExport(door, authorize, limits, counts or LimitCounts())
    server.add_generic_rpc_handlers(
        (
            _service("logs", logs.export),
            _service("traces", _refuse),
            _service("metrics", _refuse),
        )
    )
    address = f"{host}:{port}"
    if tls and tls.enabled:
        bound = server.add_secure_port(address, server_credentials(tls))
    else:
        bound = server.add_insecure_port(address)
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(_SECONDS_TO_FINISH)


def _service(signal: str, handler: _Handler) -> grpc.GenericRpcHandler:
    """Requests arrive as bytes: gRPC would report a malformed one as an internal error.

    The handler is one of a stream, though exporters send one message: gRPC calls the handler of a
    single message only after all of that message was received, whoever sent it.
    """
    method: grpc.RpcMethodHandler[Any, Any] = grpc.stream_unary_rpc_method_handler(
        handler,
        response_serializer=ExportLogsServiceResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_SERVICES[signal], {"Export": method})


class LogsExport:
    """The handler of logs: first the caller, then the message."""

    def __init__(
        self, door: OtlpDoor, authorize: Authorize, limits: GrpcLimits, counts: LimitCounts
    ) -> None:
        self._door = door
        self._authorize = authorize
        self._limits = limits
        self._counts = counts
        self._clients = Concurrency("client", limits.requests_per_client, counts)
        self._free = asyncio.Semaphore(limits.requests_at_once)

    async def export(
        self, messages: AsyncIterator[bytes], context: _Context
    ) -> ExportLogsServiceResponse:
        try:
            with self._clients.hold(client_of({"client": (_address(context), 0)})):
                principal = await self._authorize(_caller(context))
                async with self._turn():
                    decoded = await asyncio.to_thread(decode_protobuf, await self._read(messages))
                    return await self._door.export(principal, decoded.request, decoded.rejects)
        except Exception as error:
            failure = failure_of(error)
        await _abort(context, failure)

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """The size of a message is known only when it is in memory: so few are read at once."""
        try:
            async with asyncio.timeout(_SECONDS_FOR_A_TURN):
                await self._free.acquire()
        except TimeoutError:
            self._counts.add("otlp")
            raise TooManyRequests("Too many requests are in progress. Try again later.") from None
        try:
            yield
        finally:
            self._free.release()

    async def _read(self, messages: AsyncIterator[bytes]) -> bytes:
        seconds = self._limits.read_timeout
        try:
            async with asyncio.timeout(seconds):
                return await anext(messages)
        except TimeoutError:
            self._counts.add("pace")
            raise BodyTooSlow(f"The request did not arrive in {seconds:g} seconds.") from None
        except StopAsyncIteration:
            raise BadRequest("The request has no message.") from None


async def _refuse(_messages: AsyncIterator[bytes], context: _Context) -> ExportLogsServiceResponse:
    await _abort(context, OTHER_SIGNAL)


def _caller(context: _Context) -> Caller:
    certificate = certificate_of_call(context.auth_context())
    return Caller(_authorization(context), certificate, _address(context))


def _authorization(context: _Context) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value if isinstance(value, str) else value.decode("latin-1")
    return None


def _address(context: _Context) -> str:
    """Without the port, which differs from connection to connection. gRPC names its peer
    `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`."""
    kind, _, address = unquote(context.peer()).partition(":")
    return address.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else address


async def _abort(context: _Context, failure: OtlpFailure) -> NoReturn:
    trailer: list[tuple[str, bytes]] = [
        ("grpc-status-details-bin", failure.status().SerializeToString())
    ]
    if info := failure.retry_info():
        # OpenTelemetry's Python SDK reads it here.
        trailer.append(("google.rpc.retryinfo-bin", info.SerializeToString()))
    await context.abort(_CODES[failure.code], failure.message, tuple(trailer))
