"""Tells waiters about their tasks: one LISTEN connection for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from uuid import UUID

import psycopg

from moraine.errors import LedgerUnavailable
from moraine.log import get_logger
from moraine.tasks.model import Task
from moraine.tasks.store import TaskStore

log = get_logger(__name__)

CHANNEL = "moraine_tasks"
_RECONNECT_AFTER = 1.0
_CHUNK = 1000


class Subscription:
    """The newest state of one task; states that nobody looked at in time are passed over."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._task: Task | None = None

    def offer(self, task: Task) -> None:
        self._task = task
        self._changed.set()

    async def next(self, timeout: float | None = None) -> Task | None:
        """The task once it changes, or None after the timeout."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return None
        self._changed.clear()
        return self._task


class TaskFeed:
    """However many wait, a change costs one query for all the tasks that changed.

    A notification can be lost while the connection is; so after every connect, and every
    `poll_interval` seconds, all tasks that somebody waits for are looked at again.
    """

    def __init__(
        self,
        ledger_url: str,
        store: TaskStore,
        *,
        poll_interval: float = 15.0,
    ) -> None:
        self._url = ledger_url
        self._store = store
        self._poll_interval = poll_interval
        self._listening = False
        self._waiting: dict[UUID, set[Subscription]] = defaultdict(set)

    def check(self) -> None:
        """Raise if nobody would be told of a change right now."""
        if not self._listening:
            raise LedgerUnavailable("The notification connection is down; it is being remade.")

    @contextlib.contextmanager
    def subscribe(self, task_id: UUID) -> Iterator[Subscription]:
        subscription = Subscription()
        self._waiting[task_id].add(subscription)
        try:
            yield subscription
        finally:
            self._waiting[task_id].discard(subscription)
            if not self._waiting[task_id]:
                del self._waiting[task_id]

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                connection = await psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, application_name="moraine-feed", connect_timeout=5
                )
                async with connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._listening = True
                    while True:
                        await self._tell(set(self._waiting))
                        async for changed in self._batches(connection):
                            await self._tell(changed & self._waiting.keys())
            except (psycopg.Error, LedgerUnavailable) as error:
                self._listening = False
                log.warning("feed.reconnect", error=type(error).__name__)
                await asyncio.sleep(_RECONNECT_AFTER)

    async def _batches(self, connection: psycopg.AsyncConnection) -> AsyncIterator[set[UUID]]:
        """Ids of changed tasks as they come in, until it is time to poll.

        Changes that came in while the last ones were looked up are one batch.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._poll_interval
        while (left := end - loop.time()) > 0:
            changed: set[UUID] = set()
            async for notification in connection.notifies(timeout=left, stop_after=1):
                changed |= _task_ids(notification.payload)
            yield changed

    async def _tell(self, task_ids: set[UUID]) -> None:
        wanted = list(task_ids)
        for start in range(0, len(wanted), _CHUNK):
            chunk = wanted[start : start + _CHUNK]
            for task in await asyncio.to_thread(self._store.get_many, chunk):
                for subscription in self._waiting.get(task.task_id, ()):
                    subscription.offer(task)


def _task_ids(payload: str) -> set[UUID]:
    """Anyone who can connect to the database can notify; what is no task id is passed over."""
    found = set()
    for part in payload.split(","):
        with contextlib.suppress(ValueError):
            found.add(UUID(part))
    return found
