"""The Dag's work on keys that nobody came back for, as Moraine's own principal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import uuid6

from moraine.gateway.reconcile import Reconciler, Settled
from moraine.idempotency.model import Scope
from moraine.idempotency.store import RecordStore, open_async_pool
from moraine.operations.purge.tombstones import TombstoneStore
from moraine.settings import CatalogSettings, IdempotencySettings
from moraine.tasks.store import TaskStore, open_pool
from support.gateway import REPLAYED, Caller, Scene, Way, new_key
from support.keyed_catalog import answers, error, reset_after, reset_before
from support.relay import Answer

Rows = Callable[[str], list[dict[str, Any]]]
Reconcile = Callable[[], dict[Settled, int]]

NO_TIME = timedelta(0)
AWAY = error(503, kind="ServiceUnavailableException")


@pytest.fixture
def tasks(ledger: str) -> Iterator[TaskStore]:
    with open_pool(ledger) as pool:
        yield TaskStore(pool)


@pytest.fixture
def reconcile(ledger: str, way: Way, tasks: TaskStore) -> Reconcile:
    """One run of the Dag, that gives nobody time to come back. Others' keys are settled before."""

    async def run() -> dict[Settled, int]:
        async with open_async_pool(ledger, size=2) as pool:
            reconciler = Reconciler(
                RecordStore.of(pool, IdempotencySettings()),
                tasks,
                TombstoneStore(tasks.pool, "demo"),
                lambda _: CatalogSettings(uri=way.url),
                "demo",
            )
            return dict(await reconciler.run(quiet=NO_TIME))

    with psycopg.connect(ledger, autocommit=True) as connection:
        connection.execute("DELETE FROM idempotency_records")
    return lambda: asyncio.run(run())


def test_a_change_that_is_there_is_finalized_and_a_late_repetition_gets_it(
    caller: Caller, way: Way, scene: Scene, rows: Rows, reconcile: Reconcile
) -> None:
    key = new_key()
    way.break_with(reset_after)
    assert caller.send(*scene.create_table("t"), key=key).status_code == 502

    assert reconcile() == {Settled.FINALIZED: 1}

    (record,) = rows(key)
    assert record["http_status"] == 200
    again = caller.send(*scene.create_table("t"), key=key)
    assert again.status_code == 200
    assert again.headers[REPLAYED] == "true"
    assert again.json()["metadata"] == scene.load("t")["metadata"]
    assert len(way.mutations) == 1
    assert reconcile() == {}


def test_a_change_that_is_not_there_is_released_and_may_be_made(
    caller: Caller, way: Way, scene: Scene, rows: Rows, reconcile: Reconcile
) -> None:
    key = new_key()
    way.break_with(reset_before)
    assert caller.send(*scene.create_table("t"), key=key).status_code == 502

    assert reconcile() == {Settled.RELEASED: 1}

    assert rows(key) == []
    assert scene.tables() == []
    assert caller.send(*scene.create_table("t"), key=key).status_code == 200
    assert scene.tables() == ["t"]


def test_a_drop_is_finalized_without_a_body(
    caller: Caller, way: Way, scene: Scene, reconcile: Reconcile
) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    way.break_with(reset_after)
    assert caller.send(*scene.drop_table("t"), key=key).status_code == 502
    assert reconcile() == {Settled.FINALIZED: 1}
    again = caller.send(*scene.drop_table("t"), key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (204, "true")


@pytest.mark.parametrize(
    "trouble",
    [
        answers(AWAY),
        lambda _: Answer(404, b"<html>no such page</html>", (("Content-Type", "text/html"),)),
    ],
    ids=["away", "another's 404"],
)
def test_a_catalog_that_does_not_say_is_asked_again_later(
    caller: Caller, way: Way, scene: Scene, rows: Rows, reconcile: Reconcile, trouble: Any
) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    way.break_with(reset_before)
    assert caller.send(*scene.drop_table("t"), key=key).status_code == 502
    way.break_reads_with(trouble)

    assert reconcile() == {Settled.LEFT: 1}

    assert rows(key)[0]["http_status"] is None
    assert reconcile() == {Settled.RELEASED: 1}
    assert scene.tables() == ["t"]


def test_a_table_that_is_being_purged_is_left_to_its_purge(
    caller: Caller, way: Way, scene: Scene, tasks: TaskStore, reconcile: Reconcile
) -> None:
    scene.direct.done(scene.create_table("t"))
    way.break_with(reset_after)
    assert caller.send(*scene.drop_table("t"), key=new_key()).status_code == 502
    tombstones = TombstoneStore(tasks.pool, "demo")
    task_id = uuid4()
    assert tombstones.add("prod", (scene.namespace,), "t", "", task_id)
    try:
        assert reconcile() == {Settled.LEFT: 1}
        assert tombstones.of_task(task_id), "its task may be written any moment"
    finally:
        tombstones.remove(task_id)
    assert reconcile() == {Settled.FINALIZED: 1}


def test_keys_of_the_delegation_api(ledger: str, rows: Rows, reconcile: Reconcile) -> None:
    """Without a task nothing was done; with one, whoever comes back finds it."""
    lost, steering = new_key(), new_key()

    async def abandon(key: str, intent: dict[str, Any]) -> None:
        async with open_async_pool(ledger, size=1) as pool:
            records = RecordStore.of(pool, IdempotencySettings())
            claim = await records.reserve(Scope("demo", "POST", "/v1/tasks", key), "0" * 64, intent)
            await records.abandon(claim)  # type: ignore[arg-type]

    task_id = str(uuid6.uuid7())
    asyncio.run(abandon(lost, {"operation": "submit", "task_id": task_id}))
    asyncio.run(abandon(steering, {"operation": "cancel", "task_id": task_id}))
    assert reconcile() == {Settled.RELEASED: 1, Settled.LEFT: 1}
    assert rows(lost) == []
    assert len(rows(steering)) == 1


def test_only_what_nobody_came_back_for(
    caller: Caller, way: Way, scene: Scene, rows: Rows, ledger: str, tasks: TaskStore
) -> None:
    key = new_key()
    way.break_with(answers(AWAY))
    assert caller.send(*scene.create_table("t"), key=key).status_code == 503

    async def run() -> None:
        async with open_async_pool(ledger, size=1) as pool:
            records = RecordStore.of(pool, IdempotencySettings())
            tombstones = TombstoneStore(tasks.pool, "demo")
            catalog = CatalogSettings(uri=way.url)
            await Reconciler(records, tasks, tombstones, lambda _: catalog, "demo").run()

    asyncio.run(run())
    assert rows(key)[0]["abandoned"], "its client has five minutes"
    assert caller.send(*scene.create_table("t"), key=key).status_code == 200
