"""Waiting for tasks: one LISTEN connection wakes every waiter, and nothing is lost with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from moraine.errors import LedgerUnavailable
from moraine.ledger.listener import Subscription
from moraine.ledger.pools import open_pool
from moraine.tasks.feed import TaskFeed
from moraine.tasks.model import Claim, Status, Task
from moraine.tasks.store import TaskStore

from .conftest import AddTask, Database, new_task

NEVER = 3600.0
SUCCEED = """
    WITH ended AS (
        UPDATE tasks SET version = version + 1, status = 'SUCCESS', last_status_change_ts = now()
        WHERE task_id = ANY(%s)
        RETURNING *
    )
    INSERT INTO task_history (task_id, version, status, last_status_change_ts, attempt_count,
                              reason)
    SELECT task_id, version, status, last_status_change_ts, attempt_count, 'succeeded' FROM ended
"""
"""Ends many tasks at once, which no worker does."""


class CountingStore(TaskStore):
    """Counts the queries that waiters cost; a lookup can be held up."""

    lookups = 0
    gate: threading.Event | None = None

    def get_many(self, task_ids: Iterable[UUID]) -> list[Task]:
        wanted = list(task_ids)
        self.lookups += bool(wanted)
        if self.gate and wanted:
            assert self.gate.wait(timeout=30)
        return super().get_many(wanted)


@pytest.fixture
def counting(ledger_url: str) -> Any:
    with open_pool(ledger_url) as pool:
        yield CountingStore(pool)


@asynccontextmanager
async def listening(feed: TaskFeed) -> AsyncIterator[None]:
    runner = asyncio.create_task(feed.run())
    try:
        await until(lambda: not _raises(feed.check))
        yield
        assert not runner.done(), runner.result()
    finally:
        runner.cancel()


async def until(condition: Any, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 120))


async def state(subscription: Subscription[Task], wanted: Status) -> Task:
    """Wait until the task is told to be in this state."""
    while True:
        task = await subscription.next()
        if task is not None and task.status is wanted:
            return task


def test_task_feed_of_two_thousand_waiters_costs_a_few_queries(
    counting: CountingStore, ledger_url: str, database: Database
) -> None:
    tasks = [counting.add(new_task()).task_id for _ in range(2000)]

    def work() -> None:
        for start in range(0, len(tasks), 100):
            database.execute(SUCCEED, [tasks[start : start + 100]])

    async def test() -> None:
        feed = TaskFeed(ledger_url, counting, poll_interval=NEVER)
        async with listening(feed), asyncio.TaskGroup() as group:
            waiters = [group.create_task(wait(feed, task_id)) for task_id in tasks]
            await asyncio.sleep(0)
            before, counting.lookups = counting.lookups, 0
            await asyncio.to_thread(work)
            ended = await asyncio.gather(*waiters)
        assert [task.task_id for task in ended] == tasks
        assert before <= 1
        # 2,000 successes, announced in batches.
        assert counting.lookups <= 100
        (connections,) = database.execute(
            "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'moraine-feed'"
        ).fetchall()
        assert connections == {"n": 1}

    async def wait(feed: TaskFeed, task_id: UUID) -> Task:
        with feed.subscribe(task_id) as subscription:
            return await state(subscription, Status.SUCCESS)

    run(test())


def test_task_feed_looks_up_changes_together_that_arrive_during_a_lookup(
    counting: CountingStore, ledger_url: str
) -> None:
    first, *others = (counting.add(new_task()).task_id for _ in range(100))

    async def test() -> None:
        feed = TaskFeed(ledger_url, counting, poll_interval=NEVER)
        async with listening(feed):
            subscriptions = {id_: feed.subscribe(id_) for id_ in (first, *others)}
            waiting = {id_: each.__enter__() for id_, each in subscriptions.items()}
            counting.gate, counting.lookups = threading.Event(), 0
            assert counting.claim_one(first, "me")
            await until(lambda: counting.lookups == 1)
            for task_id in others:
                assert counting.claim_one(task_id, "me")
            counting.gate.set()
            for subscription in waiting.values():
                await state(subscription, Status.ACQUIRING_RESOURCES)
            assert counting.lookups <= 10
            for each in subscriptions.values():
                each.__exit__(None, None, None)

    run(test())


def test_task_feed_tells_a_waiter_of_every_change_and_of_progress(
    store: TaskStore, add: AddTask, ledger_url: str
) -> None:
    task_id, other = add().task_id, add().task_id

    async def test() -> None:
        feed = TaskFeed(ledger_url, store, poll_interval=NEVER)
        with feed.subscribe(task_id) as one, feed.subscribe(task_id) as two:
            async with listening(feed):
                for each in (one, two):
                    assert (await state(each, Status.SUBMITTED)).version == 1
                assert store.claim_one(task_id, "me")
                await state(one, Status.ACQUIRING_RESOURCES)
                await state(two, Status.ACQUIRING_RESOURCES)
                store.heartbeat(Claim(task_id, 2, "me"), {"files": 7})
                told = await one.next()
                assert told is not None
                assert told.progress == {"files": 7}
                await two.next()
                store.heartbeat(Claim(task_id, 2, "me"))
                assert store.claim_one(other, "me")
                assert await one.next(timeout=0.3) is None, "no news is not told"
                store.start(Claim(task_id, 2, "me"))
                await state(one, Status.RUNNING)

    run(test())


def test_task_feed_loses_nothing_with_the_connection(
    store: TaskStore, add: AddTask, ledger_url: str, database: Database
) -> None:
    task_id = add().task_id

    async def test() -> None:
        feed = TaskFeed(ledger_url, store, poll_interval=NEVER)
        async with listening(feed):
            with feed.subscribe(task_id) as subscription:
                killed = database.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                    "WHERE application_name = 'moraine-feed' AND datname = current_database()"
                ).fetchall()
                assert len(killed) == 1
                assert store.claim_one(task_id, "me"), "while there is no connection"
                await until(lambda: _raises(feed.check))
                await state(subscription, Status.ACQUIRING_RESOURCES)
                feed.check()
                store.start(Claim(task_id, 2, "me"))
                await state(subscription, Status.RUNNING)

    run(test())


def test_task_feed_covers_a_lost_notification_by_a_slow_poll(
    store: TaskStore, add: AddTask, ledger_url: str, database: Database
) -> None:
    task_id = add().task_id
    database.execute("ALTER TABLE task_history DISABLE TRIGGER task_changes_are_announced")

    async def test() -> None:
        feed = TaskFeed(ledger_url, store, poll_interval=0.2)
        async with listening(feed):
            with feed.subscribe(task_id) as subscription:
                assert store.claim_one(task_id, "me")
                await state(subscription, Status.ACQUIRING_RESOURCES)

    run(test())


def test_task_feed_subscription_ends_with_its_block(
    counting: CountingStore, add: AddTask, ledger_url: str
) -> None:
    task_id = add().task_id

    async def test() -> None:
        feed = TaskFeed(ledger_url, counting, poll_interval=NEVER)
        async with listening(feed):
            with feed.subscribe(task_id) as subscription:
                assert counting.claim_one(task_id, "me")
                await state(subscription, Status.ACQUIRING_RESOURCES)
            counting.lookups = 0
            counting.start(Claim(task_id, 2, "me"))
            await asyncio.sleep(0.3)
            assert counting.lookups == 0

    run(test())


def _raises(check: Any) -> bool:
    try:
        check()
    except LedgerUnavailable:
        return True
    return False
