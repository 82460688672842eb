"""The Dag settles keys whose clients do not come back, as Moraine's own principal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import uuid6

from moraine.drops.tombstones import TombstoneStore
from moraine.gateway.reconcile import Reconciler, Settled
from moraine.idempotency.model import Scope
from moraine.idempotency.store import RecordStore
from moraine.ledger.pools import open_async_pool, open_pool
from moraine.settings import CatalogSettings, IdempotencySettings
from moraine.tasks.store import TaskStore
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
    """One run of the Dag that gives clients no time to come back. Other keys are settled before."""

    async def run() -> dict[Settled, int]:
        async with open_async_pool(ledger, size=2) as pool:
            reconciler = Reconciler(
                RecordStore.of(pool, IdempotencySettings()),
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


def test_a_change_that_is_not_there_is_left_and_may_be_made(
    caller: Caller, way: Way, scene: Scene, rows: Rows, reconcile: Reconcile
) -> None:
    key = new_key()
    way.break_with(reset_before)
    assert caller.send(*scene.create_table("t"), key=key).status_code == 502
    before = rows(key)

    assert reconcile() == {Settled.LEFT: 1}

    assert rows(key) == before
    assert scene.tables() == []
    # It is known for its whole lifetime which request the key belongs to.
    assert caller.send(*scene.create_table("u"), key=key).status_code == 422
    assert caller.send(*scene.create_table("t"), key=key).status_code == 200
    assert scene.tables() == ["t"]


def test_a_late_repetition_still_knows_that_it_is_not_the_first(
    caller: Caller, way: Way, scene: Scene, reconcile: Reconcile
) -> None:
    """The first attempt comes through after the Dag has looked, while the second is under way."""
    key, ask = new_key(), scene.create_table("t")
    way.break_with(reset_before, lambda execute: (execute(), execute())[1])
    assert caller.send(*ask, key=key).status_code == 502
    assert reconcile() == {Settled.LEFT: 1}
    again = caller.send(*ask, key=key)
    assert again.status_code == 200, again.text


def test_a_late_drop_spares_what_was_made_since(
    caller: Caller, way: Way, scene: Scene, reconcile: Reconcile
) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    way.break_with(reset_before)
    assert caller.send(*scene.drop_table("t"), key=key).status_code == 502
    assert reconcile() == {Settled.LEFT: 1}
    scene.direct.done(scene.drop_table("t"))
    scene.direct.done(scene.create_table("t"))
    assert caller.send(*scene.drop_table("t"), key=key).status_code == 204
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
    scene.direct.done(scene.drop_table("t"))
    assert reconcile() == {Settled.FINALIZED: 1}


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


def abandon(ledger: str, path: str, key: str, intent: dict[str, Any]) -> None:
    async def run() -> None:
        async with open_async_pool(ledger, size=1) as pool:
            records = RecordStore.of(pool, IdempotencySettings())
            claim = await records.reserve(
                Scope("demo", "test", "POST", path, key), "0" * 64, intent
            )
            await records.abandon(claim)  # type: ignore[arg-type]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "intent"),
    [
        (
            "/catalog/prod/v1/transactions/commit",
            {"operation": "commitTransaction", "targets": [], "effect": {"tables": []}},
        ),
        ("/catalog/prod/v1/transactions/commit", {"operation": "of another version"}),
        ("/catalog/v1/v1/namespaces", {"operation": "createNamespace", "targets": []}),
        (
            "/catalog/prod/v1/other/namespaces/n",
            {"operation": "dropNamespace", "targets": [{"kind": "namespace", "namespace": ["n"]}]},
        ),
    ],
    ids=["no targets", "unknown operation", "no catalog", "another prefix"],
)
def test_a_record_that_cannot_be_settled_is_not_in_the_way_of_others(
    caller: Caller,
    way: Way,
    scene: Scene,
    rows: Rows,
    ledger: str,
    reconcile: Reconcile,
    path: str,
    intent: dict[str, Any],
) -> None:
    bad, good = new_key(), new_key()
    abandon(ledger, path, bad, intent)
    way.break_with(reset_after)
    assert caller.send(*scene.create_table("t"), key=good).status_code == 502

    assert reconcile() == {Settled.LEFT: 1, Settled.FINALIZED: 1}

    assert rows(good)[0]["http_status"] == 200
    assert rows(bad)[0]["http_status"] is None


def test_keys_of_the_delegation_api(ledger: str, rows: Rows, reconcile: Reconcile) -> None:
    """They are left: a repetition finds the task, or writes it."""
    lost, steering = new_key(), new_key()
    task_id = str(uuid6.uuid7())
    abandon(ledger, "/v1/tasks", lost, {"operation": "submit", "task_id": task_id})
    abandon(ledger, "/v1/tasks", steering, {"operation": "cancel", "task_id": task_id})
    assert reconcile() == {Settled.LEFT: 2}
    assert len(rows(lost)) == len(rows(steering)) == 1


def test_only_keys_whose_clients_stay_away(
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
            await Reconciler(records, tombstones, lambda _: catalog, "demo").run()

    asyncio.run(run())
    assert rows(key)[0]["abandoned"], "its client has five minutes"
    assert caller.send(*scene.create_table("t"), key=key).status_code == 200
