"""Tells waiters about their tasks: one LISTEN connection for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator
from uuid import UUID

from moraine.errors import LedgerUnavailable
from moraine.listening import Listener
from moraine.tasks.model import Task
from moraine.tasks.store import TaskStore

CHANNEL = "moraine_tasks"
_CHUNK = 1000


class Subscription:
    """The newest state of one task; states that nobody looked at in time are passed over."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._task: Task | None = None

    def offer(self, task: Task) -> None:
        self._task = task
        self._changed.set()

    async def until_terminal(self, limit: float) -> Task | None:
        """The task once it has ended, or None if it has not after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while True:
                    task = await self.next()
                    if task is not None and task.status.terminal:
                        return task
        return None

    async def next(self, timeout: float | None = None) -> Task | None:
        """The task once it changes, or None after the timeout."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return None
        self._changed.clear()
        return self._task


class TaskFeed:
    """However many wait, a change costs one query for all the tasks that changed."""

    def __init__(
        self,
        ledger_url: str,
        store: TaskStore,
        *,
        poll_interval: float = 15.0,
    ) -> None:
        self._store = store
        self._listener = Listener(ledger_url, CHANNEL, poll_interval=poll_interval)
        self._waiting: dict[UUID, set[Subscription]] = defaultdict(set)

    def check(self) -> None:
        """Raise if nobody would be told of a change right now."""
        if not self._listener.listening:
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
        await self._listener.run(self._look)

    async def _look(self, announced: list[str] | None) -> None:
        changed = set(self._waiting)
        if announced is not None:
            changed &= set().union(*map(_task_ids, announced))
        await self._tell(changed)

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
