"""A connection that breaks leaves it open whether a write happened. Nothing is done twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from moraine.drops.tombstones import TombstoneStore
from moraine.errors import AlreadyInProgress, LeaseLost, LedgerUnavailable
from moraine.ledger.pools import open_pool
from moraine.tasks.model import Claim, Status, Task
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore
from support.tasks import submit
from support.tcp_proxy import TcpProxy, proxied

from .conftest import AddTask, Database, lose_lease, new_task, noop

Meanwhile = Callable[[], object]


@pytest.fixture(params=[True, False], ids=["it went through", "it did not"])
def went_through(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@contextmanager
def breaking_once(*, went_through: bool, meanwhile: Meanwhile = lambda: None) -> Iterator[None]:
    """The next statement's connection breaks, after the statement reached the server or before.

    `meanwhile` happens before the store looks again.
    """
    execute = psycopg.Cursor.execute
    broken = threading.Event()

    def break_once(self: psycopg.Cursor[Any], *args: Any, **options: Any) -> Any:
        if broken.is_set():
            return execute(self, *args, **options)
        broken.set()
        if went_through:
            execute(self, *args, **options)
        self.connection.close()
        meanwhile()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psycopg.Cursor, "execute", break_once)
        yield
    assert broken.is_set()


def test_task_store_adds_a_task_once(
    store: TaskStore, database: Database, went_through: bool
) -> None:
    given = new_task(exclusive=True)
    with breaking_once(went_through=went_through):
        task = store.add(given)
    assert (task.task_id, task.status, task.version) == (given.task_id, Status.SUBMITTED, 1)
    rows = database.execute("SELECT task_id, version FROM task_history").fetchall()
    assert rows == [{"task_id": given.task_id, "version": 1}]


def test_task_store_still_refuses_a_task_that_another_preceded(
    store: TaskStore, add: AddTask
) -> None:
    given = new_task(exclusive=True)
    with (
        pytest.raises(AlreadyInProgress),
        breaking_once(went_through=False, meanwhile=lambda: add(exclusive=True)),
    ):
        store.add(given)
    assert store.get_many([given.task_id]) == []


def test_task_store_claims_a_task_once(store: TaskStore, add: AddTask, went_through: bool) -> None:
    task_id = add().task_id
    with breaking_once(went_through=went_through):
        task = store.claim_one(task_id, "me")
    assert task is not None
    assert (task.version, task.attempt_count, task.lease_owner) == (2, 1, "me")
    assert store.get(task_id).version == 2
    assert store.heartbeat(Claim(task_id, 2, "me")) is False


def test_task_store_does_not_take_the_claim_of_another_for_its_own(
    store: TaskStore, add: AddTask
) -> None:
    task_id = add().task_id
    with breaking_once(went_through=False, meanwhile=lambda: store.claim_one(task_id, "you")):
        assert store.claim_one(task_id, "me") is None
    assert store.get(task_id).lease_owner == "you"


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.SUCCESS, "succeeded"),
        (Status.RETRY_SCHEDULED, "attempt 1 failed"),
        (Status.FAILURE, "given up"),
    ],
)
def test_task_store_moves_a_task_once(
    store: TaskStore, add: AddTask, went_through: bool, status: Status, reason: str
) -> None:
    task_id = add().task_id
    assert store.claim_one(task_id, "me")
    claim = store.start(Claim(task_id, 2, "me"))
    with breaking_once(went_through=went_through):
        task = store.advance(claim, status, reason, summary="so it was")
    assert (task.status, task.version, task.result_summary) == (status, 4, "so it was")
    assert [version.version for version in store.history(task_id)] == [1, 2, 3, 4]


def test_task_store_does_not_lose_a_task_that_moved_on_after_its_write(
    store: TaskStore, add: AddTask
) -> None:
    """Our write went through; before we can look, the next worker is already at it."""
    task_id = add().task_id
    now = datetime.now(UTC)
    assert store.claim_one(task_id, "me")

    def next_worker() -> None:
        assert store.claim_one(task_id, "you")

    with breaking_once(went_through=True, meanwhile=next_worker):
        task = store.advance(
            Claim(task_id, 2, "me"),
            Status.RETRY_SCHEDULED,
            "failed",
            next_run=now - timedelta(minutes=1),
        )
    assert (task.version, task.lease_owner) == (4, "you")


def test_task_store_does_not_take_a_task_taken_over_by_another_for_its_own(
    store: TaskStore, add: AddTask, database: Database
) -> None:
    task_id = add().task_id
    assert store.claim_one(task_id, "me")
    lose_lease(database, task_id)

    def take_over() -> None:
        assert store.claim_one(task_id, "you")

    with pytest.raises(LeaseLost), breaking_once(went_through=False, meanwhile=take_over):
        store.start(Claim(task_id, 2, "me"))
    assert store.get(task_id).lease_owner == "you"


def test_task_store_cancels_a_waiting_task_once(
    service: TaskService, store: TaskStore, went_through: bool
) -> None:
    """No worker held it, so no owner's name says whose write it was."""
    task = submit(service, noop())
    claim = Claim(task.task_id, 1, "")
    with breaking_once(went_through=went_through):
        cancelled = store.advance(claim, Status.FAILURE, "cancelled", error_code="CANCELLED")
    assert (cancelled.version, cancelled.error_code) == (2, "CANCELLED")


# --- Tombstones -----------------------------------------------------------------------------


def test_task_store_hides_a_table_once(store: TaskStore, went_through: bool) -> None:
    tombstones = TombstoneStore(store.pool, "demo")
    with breaking_once(went_through=went_through):
        hidden = tombstones.add("lake", ("shop",), "orders", "", uuid4())
    assert hidden is not None, "this call hid it, on either try"
    assert tombstones.all() == [hidden]


def test_task_store_does_not_take_a_table_hidden_by_another_for_its_own(store: TaskStore) -> None:
    tombstones = TombstoneStore(store.pool, "demo")

    def hide() -> None:
        assert tombstones.add("lake", ("shop",), "orders", "", uuid4())

    with breaking_once(went_through=False, meanwhile=hide):
        assert tombstones.add("lake", ("shop",), "orders", "", uuid4()) is None


def test_task_store_shows_a_table_again_once(
    store: TaskStore, add: AddTask, monkeypatch: pytest.MonkeyPatch, went_through: bool
) -> None:
    tombstones = TombstoneStore(store.pool, "demo")
    task_id = add().task_id
    hidden = tombstones.add("lake", ("shop",), "orders", "", task_id)
    store.advance(Claim(task_id, 1, ""), Status.FAILURE, "cancelled")
    run = store.get

    with ExitStack() as broken:

        def then_break(wanted: UUID) -> Task:
            task = run(wanted)
            broken.enter_context(breaking_once(went_through=went_through))
            return task

        monkeypatch.setattr(store, "get", then_break)
        assert tombstones.lift(task_id, store) == hidden
    assert tombstones.all() == []


# --- The database as a whole ----------------------------------------------------------------


@pytest.fixture
def way(ledger_url: str) -> Iterator[TcpProxy]:
    with proxied(ledger_url) as proxy:
        yield proxy


def test_task_store_replaces_connections_that_died_while_idle(
    store: TaskStore, add: AddTask, database: Database
) -> None:
    tasks = [add().task_id for _ in range(8)]
    with _all_connections_in_use(store):
        pass
    killed = database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchall()
    assert len(killed) >= 4
    for task_id in tasks:
        assert store.claim_one(task_id, "me")
        assert store.get(task_id).version == 2


def test_task_store_distinguishes_an_outage_from_a_failure(way: TcpProxy, add: AddTask) -> None:
    task_id = add().task_id
    with open_pool(way.url, timeout=1) as pool:
        store = TaskStore(pool)
        assert store.claim_one(task_id, "me")
        way.cut()
        for call in (
            lambda: store.get(task_id),
            lambda: store.heartbeat(Claim(task_id, 2, "me")),
            lambda: store.start(Claim(task_id, 2, "me")),
            store.ping,
        ):
            with pytest.raises(LedgerUnavailable):
                call()
        way.restore()
        _wait_for(lambda: store.get(task_id).version == 2)


def test_task_store_that_is_patient_waits_until_an_outage_ends(way: TcpProxy, add: AddTask) -> None:
    task_id = add().task_id
    with open_pool(way.url, timeout=1) as pool:
        store = TaskStore(pool, patience=timedelta(seconds=60))
        assert store.claim_one(task_id, "me")
        way.cut()
        back = threading.Timer(1.5, way.restore)
        back.start()
        begun = time.monotonic()
        claim = store.start(Claim(task_id, 2, "me"))
        assert time.monotonic() - begun > 1
        back.join()
        assert claim.version == 3
        assert len(store.history(task_id)) == 3


def test_task_store_reads_payloads_that_a_fast_parser_refuses(store: TaskStore) -> None:
    deep: Any = "bottom"
    for _ in range(400):
        deep = [deep]
    task = store.add(new_task(task_payload={"deep": deep, "large": 10**400}))
    assert store.get(task.task_id).task_payload == {"deep": deep, "large": 10**400}
    claimed = store.claim_one(task.task_id, "me")
    assert claimed is not None
    assert claimed.task_payload == {"deep": deep, "large": 10**400}


@contextmanager
def _all_connections_in_use(store: TaskStore) -> Iterator[None]:
    """So that the pool holds several connections afterwards."""
    barrier = threading.Barrier(4)

    def use() -> None:
        with store.pool.connection() as connection:
            connection.execute("SELECT 1")
            barrier.wait(timeout=10)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            assert condition()
            return
        except (AssertionError, LedgerUnavailable):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
