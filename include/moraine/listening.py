"""Hears what PostgreSQL announces with NOTIFY, over a connection that is remade when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import psycopg

from moraine.errors import LedgerUnavailable
from moraine.log import get_logger

log = get_logger(__name__)

_RECONNECT_AFTER = 1.0

Look = Callable[[list[str] | None], Awaitable[None]]
"""Called with what was announced; with None when anything may have changed."""


class Listener:
    """A notification can be lost while the connection is; so after every connect, and every
    `poll_interval` seconds, everything is looked at again."""

    def __init__(self, url: str, channel: str, *, poll_interval: float = 15.0) -> None:
        self._url = url
        self._channel = channel
        self._poll_interval = poll_interval
        self.listening = False

    async def run(self, look: Look) -> None:
        """Listen until cancelled."""
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, application_name="moraine-feed", connect_timeout=5
                )
                async with connection:
                    await connection.execute(f"LISTEN {self._channel}")
                    self.listening = True
                    while True:
                        await look(None)
                        async for announced in self._batches(connection):
                            await look(announced)
            except (psycopg.Error, LedgerUnavailable) as error:
                self.listening = False
                log.warning("feed.reconnect", channel=self._channel, error=type(error).__name__)
                await asyncio.sleep(_RECONNECT_AFTER)

    async def _batches(self, connection: psycopg.AsyncConnection) -> AsyncIterator[list[str]]:
        """What is announced until it is time to poll. What came in while the last of it was
        looked at is one batch."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._poll_interval
        while (left := end - loop.time()) > 0:
            yield [
                notification.payload
                async for notification in connection.notifies(timeout=left, stop_after=1)
            ]
