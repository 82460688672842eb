"""Takes the certificates of callers from the headers of trusted proxies."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from moraine.access.peer import read_proxy_header


class ProxiedCertificates:
    """The outermost middleware of every app: nothing else sees the header of a proxy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            read_proxy_header(scope, scope["app"].state.context.settings.api.proxy)
        await self._app(scope, receive, send)
