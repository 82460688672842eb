"""Waiting for tasks: their changes, as PostgreSQL announces them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from moraine.ledger.listener import Feed
from moraine.tasks.model import Task
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore
from moraine.threads import Threads

CHANNEL = "moraine_tasks"
_CHUNK = 1000


class TaskFeed(Feed[UUID, Task]):
    def __init__(self, ledger_url: str, store: TaskStore, *, poll_interval: float = 15.0) -> None:
        super().__init__(ledger_url, CHANNEL, poll_interval=poll_interval)
        self._store = store

    async def find(self, keys: list[UUID]) -> Mapping[UUID, Task]:
        found: dict[UUID, Task] = {}
        for start in range(0, len(keys), _CHUNK):
            tasks = await asyncio.to_thread(self._store.get_many, keys[start : start + _CHUNK])
            found |= {task.task_id: task for task in tasks}
        return found

    def keys_in(self, announced: list[str]) -> set[UUID]:
        """Any role of the database may notify, so payloads that are no task ids are ignored."""
        found = set()
        for part in ",".join(announced).split(","):
            with contextlib.suppress(ValueError):
                found.add(UUID(part))
        return found


@dataclass(frozen=True, slots=True)
class TaskRuns:
    """Starts tasks and waits for their end."""

    service: TaskService
    feed: TaskFeed
    in_thread: Threads

    async def run_to_end(self, task: Task, limit: float) -> Task | None:
        """Start a task and wait until it is terminal. None: it is not after `limit` seconds."""
        if task.status.terminal:
            return task
        with self.feed.subscribe(task.task_id) as subscription:
            await self.in_thread(self.service.launch, task)
            # It may have ended before the subscription, and no notification will report that.
            current = await self.in_thread(self.service.store.get, task.task_id)
            if current.status.terminal:
                return current
            return await subscription.until(lambda changed: changed.status.terminal, limit)
