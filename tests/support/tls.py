"""Certificates of a test, and listeners that demand them, on real sockets."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import requests
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from moraine.access.peer import certificate_of
from moraine.http.peer import ProxiedCertificates
from moraine.http.server import server_options
from moraine.settings import ApiSettings, ClientTlsSettings, ListenerTlsSettings
from moraine.tls.authority import Authority
from support.waiting import wait_for

HOST = "127.0.0.1"


def files_of(folder: Path, name: str) -> dict[str, Path]:
    return {"cert": folder / f"{name}.crt", "key": folder / f"{name}.key"}


class Certificates:
    """A CA with a server and a client, and a CA that knows neither."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.create(folder / "own")
        self.foreign = Authority.create(folder / "foreign")
        self.folder = self.authority.folder
        self.ca = self.folder / "ca.crt"
        self.renew_server()
        self.authority.issue("client")
        self.authority.issue("late", lifetime=timedelta(seconds=-1), stem="expired")
        self.foreign.issue("client")

    def renew_server(self, name: str = "server") -> None:
        self.authority.issue(name, [HOST, "localhost"], stem="server")

    def listener(self, client_auth: str = "required") -> ListenerTlsSettings:
        return ListenerTlsSettings.model_validate(
            {"ca": self.ca, "client_auth": client_auth, **files_of(self.folder, "server")}
        )

    def client(self, name: str = "client", authority: Authority | None = None) -> ClientTlsSettings:
        folder = (authority or self.authority).folder
        return ClientTlsSettings(ca=self.ca, **files_of(folder, name))

    def stranger(self) -> ClientTlsSettings:
        """Trusts the server, and has no certificate."""
        return ClientTlsSettings(ca=self.ca)


async def _who(request: Request) -> JSONResponse:
    found = certificate_of(request.scope)
    body = found and {
        "subject": found.subject,
        "names": list(found.names),
        "thumbprint": found.thumbprint,
    }
    headers = {name: value for name, value in request.headers.items() if "cert" in name}
    return JSONResponse({"certificate": body, "headers": headers})


async def _config(request: Request) -> JSONResponse:
    """Of a catalog whose prefix is the name of its caller."""
    found = certificate_of(request.scope)
    return JSONResponse(
        {"overrides": {"prefix": found.subject if found else "nobody"}, "defaults": {}}
    )


async def _token(_request: Request) -> JSONResponse:
    return JSONResponse({"access_token": "a-token"})


@contextlib.contextmanager
def running_listener(settings: ApiSettings, **changes: Any) -> Iterator[str]:
    """An app that tells its callers who they are, behind the listener of `moraine api`."""
    routes = [
        Route("/", _who),
        Route("/v1/config", _config),
        Route("/auth/token", _token, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(ProxiedCertificates)
    app.state.context = SimpleNamespace(settings=SimpleNamespace(api=settings))
    options = {**server_options(settings), "timeout_graceful_shutdown": 1, **changes}
    config = uvicorn.Config(app, host=HOST, port=0, lifespan="off", **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"{'https' if settings.tls.enabled else 'http'}://{HOST}:{port}/"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def who_am_i(url: str, session: requests.Session, **headers: str) -> dict[str, Any]:
    answer = session.get(url, headers=headers, timeout=10)
    answer.raise_for_status()
    return dict(answer.json())
