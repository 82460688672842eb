"""Whole responses as ASGI messages, and an app's messages as a whole response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Headers = tuple[tuple[str, str], ...]


class WholeResponse(Protocol):
    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def body(self) -> bytes: ...
    @property
    def rest(self) -> AsyncIterator[bytes] | None:
        """What follows `body`, if it is too large to be held at once."""


async def respond(send: Send, response: WholeResponse) -> None:
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in response.headers
        if response.rest is not None or name.lower() != "content-length"
    ]
    if response.rest is None and response.status not in (204, 304):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    if response.rest is None:
        await send({"type": "http.response.body", "body": response.body})
        return
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    async for chunk in response.rest:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


_in_background: set[asyncio.Future[None]] = set()


async def ask(
    app: ASGIApp, scope: Scope, body: bytes, receive: Receive
) -> tuple[int, Headers, bytes]:
    """Send a request with this body to an app; returns the status, headers and body of its answer.
    The app's background tasks continue after that."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[tuple[int, Headers, bytes]] = loop.create_future()
    unread = [body]
    start: dict[str, Any] = {}
    content = bytearray()

    async def give() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    async def take(message: Message) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
            return
        content.extend(message.get("body", b""))
        if not message.get("more_body") and not answered.done():
            headers = tuple(
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in start.get("headers", ())
            )
            answered.set_result((start["status"], headers, bytes(content)))

    async def run() -> None:
        try:
            await app(scope, give, take)
        except Exception as error:
            if answered.done():
                raise
            answered.set_exception(error)
        if not answered.done():
            answered.set_exception(RuntimeError("The app ended without an answer."))

    running = asyncio.ensure_future(run())
    _in_background.add(running)
    running.add_done_callback(_in_background.discard)
    return await answered
