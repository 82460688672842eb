"""Starting a task and waiting for its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from moraine.tasks.feed import TaskFeed, TaskRuns
from moraine.tasks.model import Status, Task
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore
from moraine.threads import Threads

from .fakes import a_task

NO_SERVER = "postgresql://127.0.0.1:1/none"


class OneTask:
    """A service over one task, and its store. `ends` says when another process ends the task."""

    def __init__(self, task: Task, *, ends: str = "never") -> None:
        self.task = task
        self.store = self
        self.launched: list[UUID] = []
        self._ends = ends

    def launch(self, task: Task) -> bool:
        self.launched.append(task.task_id)
        if self._ends == "with its start":
            self.end()
        return True

    def get(self, _task_id: UUID) -> Task:
        return self.task

    def end(self) -> Task:
        self.task = replace(self.task, status=Status.SUCCESS, version=self.task.version + 1)
        return self.task


def run_to_end(service: OneTask, asked: Task, limit: float, **later: Any) -> Task | None:
    """Without a listener: what the waiter does not read itself, it never learns."""
    feed = TaskFeed(NO_SERVER, cast(TaskStore, service))

    async def run() -> Task | None:
        runs = TaskRuns(cast(TaskService, service), feed, Threads())
        waiting = asyncio.create_task(runs.run_to_end(asked, limit))
        if announce := later.get("announce"):
            while not feed._waiting or not service.launched:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.05)
            announce()
            await feed._look(None)
        return await waiting

    service.get_many = lambda _ids: [service.task]  # type: ignore[attr-defined]
    return asyncio.run(run())


def test_task_run_does_not_wait_for_a_task_that_ended_before_the_subscription() -> None:
    asked = a_task(status=Status.RUNNING)
    service = OneTask(asked)
    service.end()
    ended = run_to_end(service, asked, limit=0.2)
    assert ended is not None
    assert ended.status is Status.SUCCESS


def test_task_run_does_not_wait_for_a_task_that_ends_while_it_is_started() -> None:
    asked = a_task(status=Status.SUBMITTED)
    ended = run_to_end(OneTask(asked, ends="with its start"), asked, limit=0.2)
    assert ended is not None
    assert ended.status is Status.SUCCESS


def test_task_run_waits_until_the_end_is_announced() -> None:
    asked = a_task(status=Status.SUBMITTED)
    service = OneTask(asked)
    ended = run_to_end(service, asked, limit=10, announce=service.end)
    assert ended is not None
    assert ended.status is Status.SUCCESS
    assert service.launched == [asked.task_id]


def test_task_run_wait_has_a_limit() -> None:
    asked = a_task(status=Status.SUBMITTED)
    assert run_to_end(OneTask(asked), asked, limit=0.05) is None


@pytest.mark.parametrize("status", [Status.SUCCESS, Status.FAILURE])
def test_task_run_does_not_start_a_task_that_has_ended(status: Status) -> None:
    asked = a_task(status=status)
    service = OneTask(asked)
    assert run_to_end(service, asked, limit=0) == asked
    assert service.launched == []
