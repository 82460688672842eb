"""A token endpoint, and a gate before a catalog that lets nobody in without a token of its own."""

from __future__ import annotations

import base64
import secrets
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote_plus

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse


@dataclass
class Realm:
    """One client, and the tokens it was given."""

    client_id: str = "moraine"
    client_secret: str = field(default_factory=lambda: secrets.token_urlsafe(12) + "+/ &=")
    scope: str = "catalog"
    lifetime: float = 3600.0
    failure: int | None = None
    """What the token endpoint answers instead of tokens."""
    url: str = ""
    basic_used: int = 0
    turned_away: int = 0
    issued: dict[str, float] = field(default_factory=dict)

    @property
    def catalog_uri(self) -> str:
        """The catalog behind the gate, with a token endpoint of its own."""
        return f"{self.url}/catalog"

    @property
    def token_uri(self) -> str:
        """An endpoint that is not the catalog's."""
        return f"{self.url}/idp/token"

    def revoke(self) -> None:
        for token in self.issued:
            self.issued[token] = 0.0

    def issue(self, form: dict[str, str], authorization: str) -> JSONResponse:
        if self.failure:
            return JSONResponse({"error": "server_error"}, self.failure)
        client = (form.get("client_id", ""), form.get("client_secret", ""))
        if authorization.startswith("Basic "):
            self.basic_used += 1
            plain = base64.b64decode(authorization.removeprefix("Basic ")).decode()
            client_id, _, client_secret = plain.partition(":")
            client = (unquote_plus(client_id), unquote_plus(client_secret))
        if form.get("grant_type") != "client_credentials":
            return JSONResponse({"error": "unsupported_grant_type"}, 400)
        if client != (self.client_id, self.client_secret):
            # A server that talks too much: what it repeats must not get any further.
            words = f"{client[1]} is not the secret of {client[0]}"
            return JSONResponse({"error": "invalid_client", "error_description": words}, 401)
        if form.get("scope") != self.scope:
            return JSONResponse({"error": "invalid_scope"}, 400)
        token = secrets.token_urlsafe(32)
        self.issued[token] = time.monotonic() + self.lifetime
        return JSONResponse(
            {"access_token": token, "token_type": "bearer", "expires_in": self.lifetime}
        )

    def accepts(self, authorization: str) -> bool:
        accepted = self.issued.get(authorization.removeprefix("Bearer "), 0.0) > time.monotonic()
        self.turned_away += not accepted
        return accepted


def _app(realm: Realm, catalog: str) -> FastAPI:
    inner = httpx.AsyncClient(timeout=30)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with inner:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/catalog/v1/oauth/tokens")
    @app.post("/idp/token")
    async def issue(request: Request) -> Response:
        form = {key: values[0] for key, values in parse_qs((await request.body()).decode()).items()}
        return realm.issue(form, request.headers.get("Authorization", ""))

    @app.api_route("/catalog/{path:path}", methods=["GET", "POST", "DELETE"])
    async def forward(request: Request) -> Response:
        given = request.headers.get("Authorization", "")
        if not realm.accepts(given):
            words = f"Not authorized: {given}"
            error = {"message": words, "type": "NotAuthorizedException", "code": 401}
            return JSONResponse({"error": error}, 401)
        whole = request.scope["raw_path"].decode().removeprefix("/catalog")
        answer = await inner.request(
            request.method,
            httpx.URL(f"{catalog}{whole}", query=request.url.query.encode()),
            content=await request.body(),
            headers={"Content-Type": request.headers.get("Content-Type", "application/json")},
        )
        return Response(answer.content, answer.status_code, media_type="application/json")

    return app


@contextmanager
def running_realm(catalog: str, realm: Realm) -> Iterator[Realm]:
    """The realm, while its endpoint and the gate before `catalog` are served."""
    config = uvicorn.Config(
        _app(realm, catalog), host="127.0.0.1", port=0, log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="oauth")
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        realm.url = f"http://127.0.0.1:{port}"
        yield realm
    finally:
        server.should_exit = True
        thread.join()
