"""Bodies that the gateway has to read: bounded, only from callers whom the catalog knows, and large
ones parsed in threads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from starlette.types import Receive

from moraine.errors import BadRequest, PayloadTooLarge, UnsupportedMediaType
from moraine.gateway.upstream import REFUSALS, CatalogRequest, PassedOn, Upstream
from moraine.http.bodies import read_bounded
from moraine.http.limits import HEAD
from moraine.idempotency.fingerprint import fingerprint
from moraine.settings import GatewaySettings

T = TypeVar("T")

# Parsing a larger body takes longer than starting a thread does.
_AT_ONCE = 4 << 10
# More threads would only take turns, and hold memory meanwhile.
_PARSED_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class IncomingBody:
    """The body of a request, not received yet."""

    is_present: bool
    receive: Receive
    hold: Callable[[int], None]
    """Is told the size of what is kept in memory, and raises if there is no room for it."""

    async def head_first(self, max_bytes: int) -> bytes | AsyncIterator[bytes]:
        """A small body whole; of a larger one what has arrived, and the rest as a stream. So a
        client that sends a byte a minute holds no connection to a catalog."""
        head, chunks = bytearray(), self.chunks(max_bytes)
        async for chunk in chunks:
            self.hold(len(chunk))
            head += chunk
            if len(head) >= HEAD:
                return _joined(bytes(head), chunks)
        return bytes(head)

    async def chunks(self, max_bytes: int) -> AsyncIterator[bytes]:
        """As they arrive, up to a limit."""
        seen, more = 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("The caller hung up before the body was complete.")
            chunk = message.get("body", b"")
            seen += len(chunk)
            if seen > max_bytes:
                raise PayloadTooLarge(f"The body is larger than {max_bytes} bytes.")
            more = message.get("more_body", False)
            if chunk:
                yield chunk


@dataclass(frozen=True, slots=True)
class Content:
    """The body of a request, received and parsed."""

    body: bytes = field(default=b"", repr=False)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Empty if the body is not a JSON object."""
    payload_hash: str = ""
    """Only of a request with a key."""


class BodyReader:
    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._parsing = asyncio.Semaphore(_PARSED_AT_ONCE)

    async def read(
        self, upstream: Upstream, request: CatalogRequest, body: IncomingBody, *, keyed: bool
    ) -> Content:
        content = await self._receive(upstream, request, body, keyed)
        if len(content) <= _AT_ONCE:
            return _parse(content, request.query, keyed)
        async with self._parsing:
            return await asyncio.to_thread(_parse, content, request.query, keyed)

    async def _receive(
        self, upstream: Upstream, request: CatalogRequest, body: IncomingBody, keyed: bool
    ) -> bytes:
        max_bytes = self._settings.max_body_bytes
        if keyed:
            max_bytes = min(max_bytes, self._settings.max_keyed_body_bytes)
        length = request.header("content-length") or ""
        admit = partial(check_known, upstream, request)
        try:
            return await read_bounded(body.receive, length, max_bytes, admit=admit, hold=body.hold)
        except PayloadTooLarge:
            if not keyed:
                raise
            raise PayloadTooLarge(
                f"The body of a request with an Idempotency-Key is larger than {max_bytes} bytes. "
                "Send less, send it without the key, or raise gateway.max-keyed-body-bytes."
            ) from None


async def check_known(upstream: Upstream, request: CatalogRequest) -> None:
    """Raise PassedOn for a caller to whom the catalog refuses even its configuration."""
    asking = request.reading("/v1/config", upstream.config_query(""))
    answer = await upstream.fetch_whole(asking)
    if answer.status in REFUSALS:
        raise PassedOn(answer)


async def _joined(head: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield head
    async for chunk in rest:
        yield chunk


def refuse_compressed(request: CatalogRequest) -> None:
    """A compressed body could name a hidden table, or be two bodies under one key."""
    encoding = (request.header("content-encoding") or "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMediaType(
            "Send the body of a request that changes something without Content-Encoding: the "
            "gateway has to read it."
        )


async def in_thread_if_large(size: int, call: Callable[..., T], *args: Any) -> T:
    """The result of a call whose work grows with a body of so many bytes."""
    return await asyncio.to_thread(call, *args) if size > _AT_ONCE else call(*args)


def _parse(body: bytes, query: str, keyed: bool) -> Content:
    try:
        document = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        document = {}
    # The fingerprint parses the body by itself: it refuses repeated names and rewrites numbers, so
    # its document is not the one that was sent.
    payload_hash = fingerprint(body, query) if keyed else ""
    return Content(body, document if isinstance(document, dict) else {}, payload_hash)
