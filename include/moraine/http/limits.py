"""What one client may cost a process: requests at once, slow bodies, and bytes in memory.

Every limit is of one process and holds no client that has no request in progress, so that many
clients cost no memory either.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Network

from starlette._utils import get_route_path
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moraine.errors import BodyTooSlow, TooManyRequests
from moraine.http.errors import Render

HEAD = 64 << 10
"""What may be received of a body before anything else is used for its request."""
# Probes are bounded by themselves, and must be answered however much a client asks.
_NOT_LIMITED = "/health/"


class LimitCounts:
    """How often each limit refused a request, for the metrics of this process."""

    def __init__(self) -> None:
        self._refused: Counter[str] = Counter()

    def add(self, limit: str) -> None:
        self._refused[limit] += 1

    def all(self) -> Mapping[str, int]:
        return dict(self._refused)


class Concurrency:
    """At most `limit` requests at once for each key, which is a client or a catalog."""

    def __init__(self, name: str, limit: int, counts: LimitCounts) -> None:
        self._name = name
        self._limit = limit
        self._counts = counts
        self._held: dict[str, int] = {}

    @contextmanager
    def hold(self, key: str) -> Iterator[None]:
        held = self._held.get(key, 0)
        if held >= self._limit:
            self._counts.add(self._name)
            raise TooManyRequests(
                f"{self._limit} requests of this {self._name} are in progress, which is the "
                "maximum. Try again later."
            )
        self._held[key] = held + 1
        try:
            yield
        finally:
            if self._held[key] == 1:
                del self._held[key]
            else:
                self._held[key] -= 1

    def __len__(self) -> int:
        """The keys that are remembered."""
        return len(self._held)


class ByteBudget:
    """Bytes that one process may hold in memory for all requests together.

    Bytes count when they arrive, not when they are announced: a client must send what it takes.
    """

    def __init__(self, limit: int, counts: LimitCounts) -> None:
        self._limit = limit
        self._counts = counts
        self._used = 0

    @property
    def used(self) -> int:
        return self._used

    @contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """Takes bytes with each call of what it yields, and gives all of them back at the end."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self._used + size > self._limit:
                self._counts.add("bytes")
                raise TooManyRequests(
                    "The requests in progress take all the memory that there is for bodies. Try "
                    "again later."
                )
            self._used += size
            taken += size

        try:
            yield take
        finally:
            self._used -= taken


@dataclass(frozen=True, slots=True)
class BodyPace:
    """How slowly a body may arrive: `grace` seconds, and one more for each `rate` bytes. But no
    pause is longer than `grace`, however much has arrived before."""

    grace: float
    rate: float
    counts: LimitCounts

    def paced(self, receive: Receive, arrived: Callable[[], object] | None = None) -> Receive:
        """The same messages. Raises BodyTooSlow if a body keeps its reader waiting for too long:
        only the time counts in which the reader waits. `arrived` is called once, as soon as the
        body or its first 64 KiB are there."""
        waited, received, more, told = 0.0, 0, True, arrived is None

        async def receive_in_time() -> Message:
            nonlocal waited, received, more, told
            if not more:
                return await receive()  # nothing is left but that the client hangs up
            clock = asyncio.get_running_loop().time
            began = clock()
            left = self.grace + min(0.0, received / self.rate - waited)
            try:
                async with asyncio.timeout(left):
                    message = await receive()
            except TimeoutError:
                self.counts.add("pace")
                raise BodyTooSlow(
                    f"Only {received} bytes of the body arrived in {waited + clock() - began:.0f} "
                    f"seconds. Send at least {self.rate:g} bytes a second."
                ) from None
            waited += clock() - began
            received += len(message.get("body", b""))
            more = message.get("more_body", False)
            if not told and (received >= HEAD or not more):
                told = True
                assert arrived is not None
                arrived()
            return message

        return receive_in_time


def client_of(scope: Scope) -> str:
    """The client's address. One host has a whole /64 network of IPv6 addresses."""
    address = (scope.get("client") or ("",))[0]
    if ":" not in address:
        return str(address)
    try:
        return str(IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return str(address)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of one app."""

    clients: Concurrency
    pace: BodyPace


@dataclass(frozen=True, slots=True)
class AppLimits:
    delegation: RequestLimits
    ingest: RequestLimits


class LimitedRequests:
    """Middleware that applies the limits of an app before anything else looks at a request.

    `limits_of` finds them among those of the app's context, which there is once it has started.
    """

    def __init__(
        self, app: ASGIApp, limits_of: Callable[[AppLimits], RequestLimits], render: Render
    ) -> None:
        self._app = app
        self._limits_of = limits_of
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or get_route_path(scope).startswith(_NOT_LIMITED):
            return await self._app(scope, receive, send)
        limits = self._limits_of(scope["app"].state.context.limits)
        try:
            with limits.clients.hold(client_of(scope)):
                await self._app(scope, limits.pace.paced(receive), send)
        except TooManyRequests as error:
            await self._render(Request(scope), error)(scope, receive, send)
