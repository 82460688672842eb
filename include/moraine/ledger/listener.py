"""PostgreSQL's notifications, and the subscribers that wait for what they announce."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic, TypeVar

import psycopg

from moraine.errors import LedgerUnavailable
from moraine.log import get_logger

log = get_logger(__name__)

K = TypeVar("K")
V = TypeVar("V")

_RECONNECT_AFTER = 1.0

Look = Callable[[list[str] | None], Awaitable[None]]
"""Called with the payloads of notifications; with None when anything may have changed."""


@dataclass(slots=True, repr=False)
class Listener:
    """Listens on one channel and reconnects when the connection breaks.

    Notifications are lost while there is no connection. So everything is looked at again after
    every connect and every `poll_interval` seconds.
    """

    url: str
    channel: str
    _: KW_ONLY
    poll_interval: float = 15.0
    application_name: str = "moraine-feed"
    listening: bool = field(default=False, init=False)

    async def run(self, look: Look) -> None:
        """Listen until cancelled."""
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    self.url,
                    autocommit=True,
                    application_name=self.application_name,
                    connect_timeout=5,
                )
                async with connection:
                    await connection.execute(f"LISTEN {self.channel}")
                    self.listening = True
                    while True:
                        await look(None)
                        async for announced in self._batches(connection):
                            await look(announced)
            except (psycopg.Error, LedgerUnavailable) as error:
                self.listening = False
                log.warning("feed.reconnect", channel=self.channel, error=type(error).__name__)
                await asyncio.sleep(_RECONNECT_AFTER)

    async def _batches(self, connection: psycopg.AsyncConnection) -> AsyncIterator[list[str]]:
        """Notifications until the next poll. Those that arrive during a look are one batch."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.poll_interval
        while (left := end - loop.time()) > 0:
            yield [
                notification.payload
                async for notification in connection.notifies(timeout=left, stop_after=1)
            ]


class Subscription(Generic[V]):
    """The newest state of one thing. A state that is replaced before it is read is skipped."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._state: V | None = None

    def offer(self, state: V) -> None:
        self._state = state
        self._changed.set()

    async def next(self, timeout: float | None = None) -> V | None:
        """The state after the next change, or None after the timeout."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return None
        self._changed.clear()
        return self._state

    async def until(self, condition: Callable[[V], bool], limit: float) -> V | None:
        """The first state that meets the condition, or None after `limit` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while True:
                    state = await self.next()
                    if state is not None and condition(state):
                        return state
        return None


class Feed(ABC, Generic[K, V]):
    """Gives subscribers the state of what they wait for, with one LISTEN connection for all.

    A change costs one query for everything that changed, however many subscribers there are.
    """

    def __init__(self, url: str, channel: str, *, poll_interval: float) -> None:
        self._listener = Listener(url, channel, poll_interval=poll_interval)
        self._waiting: dict[K, set[Subscription[V]]] = defaultdict(set)

    @abstractmethod
    async def find(self, keys: list[K]) -> Mapping[K, V]:
        """The current states of those keys that have one."""

    def keys_in(self, announced: list[str]) -> Iterable[K]:
        """The keys that notifications name; every key, if they name none."""
        del announced
        return self._waiting

    def check(self) -> None:
        """Raise if no change would be noticed right now."""
        if not self._listener.listening:
            raise LedgerUnavailable("The notification connection is down; it is being reopened.")

    @contextlib.contextmanager
    def subscribe(self, key: K) -> Iterator[Subscription[V]]:
        """A change before this call is not reported: look once after subscribing."""
        subscription: Subscription[V] = Subscription()
        self._waiting[key].add(subscription)
        try:
            yield subscription
        finally:
            self._waiting[key].discard(subscription)
            if not self._waiting[key]:
                del self._waiting[key]

    async def run(self) -> None:
        """Listen until cancelled."""
        await self._listener.run(self._look)

    async def _look(self, announced: list[str] | None) -> None:
        changed = set(self._waiting)
        if announced is not None:
            changed &= set(self.keys_in(announced))
        if not changed:
            return
        for key, state in (await self.find(list(changed))).items():
            for subscription in self._waiting.get(key, ()):
                subscription.offer(state)
