"""The listener of `moraine api`: uvicorn with TLS, showing apps the certificates of their callers.

uvicorn does not implement the ASGI TLS extension. Its protocols look up the app once for each
connection, so a protocol whose app adds the certificate to the scope is all that is missing.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from moraine.access.peer import add_connection
from moraine.settings import ApiSettings
from moraine.tls.contexts import ListenerContext


def with_peer(base: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
    """uvicorn's protocol (httptools or h11), with the connection's certificate in each scope."""

    class PeerProtocol(base):  # type: ignore[misc, valid-type]
        app: ASGIApp

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.app = _WithPeer(self.app, transport)

    return PeerProtocol


class _WithPeer:
    """The app of one connection. It wraps what uvicorn wraps around the app, so the address is
    that of the connection, whatever a header says."""

    def __init__(self, app: ASGIApp, transport: asyncio.Transport) -> None:
        self._app = app
        peer = transport.get_extra_info("peername")
        self._address = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None
        connection: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        self._der = connection.getpeercert(binary_form=True) if connection else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        add_connection(scope, self._address, self._der)
        await self._app(scope, receive, send)


def server_options(settings: ApiSettings) -> dict[str, Any]:
    """For uvicorn.Config: the protocol, TLS, and what else `moraine api` sets."""
    options: dict[str, Any] = {
        "http": with_peer(AutoHTTPProtocol),
        "log_config": None,
        "access_log": False,  # it would be a twentieth of what a read through the gateway costs
        "server_header": False,  # the gateway's answers have that of the catalog
    }
    if settings.tls.enabled:
        context = ListenerContext.of(settings.tls)
        options["ssl_context_factory"] = lambda _config, _default: context
    return options
