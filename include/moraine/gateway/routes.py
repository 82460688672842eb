"""The gateway over HTTP: requests become calls, and what the service decides becomes an answer.

It is plain ASGI, because a proxy has to stream both ways.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import quote

from starlette.types import Message, Receive, Scope, Send

from moraine.errors import BadRequest, MoraineError
from moraine.gateway.errors import ClientTooSlow, error_response
from moraine.gateway.intake import IncomingBody
from moraine.gateway.service import Call, Forward, Gateway
from moraine.gateway.upstream import (
    CatalogRequest,
    Connections,
    PassedOn,
    forwarded_headers,
    returned_headers,
)
from moraine.http.asgi import respond
from moraine.http.context import caller_of
from moraine.http.limits import BodyPace, ByteBudget, Concurrency, LimitCounts, client_of
from moraine.iceberg.paths import split_path
from moraine.log import get_logger
from moraine.settings import GatewaySettings

log = get_logger(__name__)

# A smaller answer is sent in one piece.
_SMALL = 64 << 10
# Airflow's pages may be in the same origin: whatever a catalog says must not run there.
_SHOWN_AS_TEXT = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
)
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """What one client and one catalog may cost this process."""

    clients: Concurrency
    catalogs: Concurrency
    pace: BodyPace
    memory: ByteBudget
    send_wait: float
    counts: LimitCounts

    @classmethod
    def of(cls, connections: Connections) -> GatewayLimits:
        limits, counts = connections.limits, connections.counts
        return cls(
            Concurrency("client", limits.requests_per_client, counts),
            Concurrency("catalog", limits.requests_per_catalog, counts),
            BodyPace(limits.body_grace.total_seconds(), limits.min_body_rate, counts),
            connections.memory,
            limits.send_wait.total_seconds(),
            counts,
        )


class GatewayRoutes:
    """Serves everything below `/v1/` of every catalog."""

    def __init__(self, settings: GatewaySettings, gateway: Gateway, limits: GatewayLimits) -> None:
        self._settings = settings
        self._gateway = gateway
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = _Answer(send, self._limits)
        try:
            with ExitStack() as held:
                held.enter_context(self._limits.clients.hold(client_of(scope)))
                await self._serve(await self._call(scope, receive, held), answer.send)
        except PassedOn as refusal:
            await respond(answer.send, refusal.response)
        except MoraineError as error:
            if answer.started:
                # The client sees that the answer is cut: the connection ends before it does.
                log.warning("gateway.cut", path=scope["path"], error=error.code)
                return
            await respond(answer.send, error_response(error))
        except Exception as error:
            if answer.started:
                raise
            log.exception("gateway.unexpected", path=scope["path"], error=type(error).__name__)
            await respond(answer.send, error_response(MoraineError()))

    async def _call(self, scope: Scope, receive: Receive, held: ExitStack) -> Call:
        _require_one_caller(scope)
        caller = caller_of(scope)
        # First of all: a stranger neither learns the names of catalogs nor makes Moraine ask one.
        known = await self._gateway.identify(caller)
        root, method = scope.get("root_path", ""), scope["method"]
        address = split_path(scope["raw_path"].decode("latin-1").removeprefix(quote(root)))
        upstream = self._gateway.find(address.catalog)
        route = await upstream.route(method, address)
        query = scope["query_string"].decode("latin-1")
        request = CatalogRequest(method, route.path, query, forwarded_headers(scope["headers"]))
        base = self._settings.public_uri.rstrip("/") or _own_address(scope, root)
        if address.catalog:
            base = f"{base}/{quote(address.catalog, safe='')}"
        body = self._body(scope, receive, upstream.name, held)
        return Call(route, upstream, request, caller, known, base, body)

    def _body(self, scope: Scope, receive: Receive, catalog: str, held: ExitStack) -> IncomingBody:
        """A request counts among those to its catalog once its body has arrived: others, which may
        send a byte a minute, are only their client's."""
        in_catalog, limits = self._limits.catalogs.hold(catalog), self._limits
        hold = held.enter_context(limits.memory.holding())
        if not _has_body(scope):
            held.enter_context(in_catalog)
            return IncomingBody(False, receive, hold)
        paced = limits.pace.paced(receive, lambda: held.enter_context(in_catalog))
        return IncomingBody(True, paced, hold)

    async def _serve(self, call: Call, send: Send) -> None:
        decided = await self._gateway.serve(call)
        if isinstance(decided, Forward):
            await self._forward(call, decided, send)
        else:
            await respond(send, decided)

    async def _forward(self, call: Call, decided: Forward, send: Send) -> None:
        """Forward the request as it comes in, and return the answer as it comes back."""
        content: bytes | AsyncIterator[bytes] | None = decided.body
        if content is None and call.body.is_present:
            content = await call.body.head_first(self._settings.max_body_bytes)
        async with call.upstream.open(decided.request, content) as answer:
            headers = [
                (name.encode("latin-1"), value.encode("latin-1"))
                for name, value in returned_headers(answer)
            ]
            start = {"type": "http.response.start", "status": answer.status, "headers": headers}
            length = answer.content_length
            if length is not None and length <= _SMALL:
                whole = await answer.read()
                await send(start)
                await send({"type": "http.response.body", "body": whole})
                return
            await send(start)
            async for chunk in answer.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def _require_one_caller(scope: Scope) -> None:
    """The catalog could take another of two tokens than Moraine, and so another caller."""
    if sum(name == b"authorization" for name, _ in scope["headers"]) > 1:
        raise BadRequest("The header Authorization is given more than once.")


class _Answer:
    """Sends an answer, to clients that take it, in a form that is harmless in a browser."""

    def __init__(self, send: Send, limits: GatewayLimits) -> None:
        self.started = False
        self._send = send
        self._limits = limits

    async def send(self, message: Message) -> None:
        if not self.started:
            self.started = True
            message["headers"].extend(_SHOWN_AS_TEXT)
        try:
            async with asyncio.timeout(self._limits.send_wait):
                await self._send(message)
        except TimeoutError:
            self._limits.counts.add("unread")
            raise ClientTooSlow() from None


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )


def _own_address(scope: Scope, root: str) -> str:
    """The address that the client used. It is a part of this client's answers only."""
    host = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"host"), "")
    if not _HOST.fullmatch(host):
        raise BadRequest("The header Host is not a host and a port.")
    return f"{scope['scheme']}://{host}{quote(root)}"
