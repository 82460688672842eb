"""A connection that breaks leaves it open whether a write happened. Nothing is done twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from moraine.errors import AlreadyInProgress, LeaseLost, LedgerUnavailable
from moraine.tasks.model import Claim, Status
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore, open_pool
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


def test_a_task_is_added_once(store: TaskStore, database: Database, went_through: bool) -> None:
    given = new_task(exclusive=True)
    with breaking_once(went_through=went_through):
        task = store.add(given)
    assert (task.task_id, task.status, task.version) == (given.task_id, Status.SUBMITTED, 1)
    rows = database.execute("SELECT task_id, version FROM task_history").fetchall()
    assert rows == [{"task_id": given.task_id, "version": 1}]


def test_a_task_that_another_came_before_is_still_refused(store: TaskStore, add: AddTask) -> None:
    given = new_task(exclusive=True)
    with (
        pytest.raises(AlreadyInProgress),
        breaking_once(went_through=False, meanwhile=lambda: add(exclusive=True)),
    ):
        store.add(given)
    assert store.get_many([given.task_id]) == []


def test_a_task_is_claimed_once(store: TaskStore, add: AddTask, went_through: bool) -> None:
    task_id = add().task_id
    with breaking_once(went_through=went_through):
        task = store.claim_one(task_id, "me")
    assert task is not None
    assert (task.version, task.attempt_count, task.lease_owner) == (2, 1, "me")
    assert store.get(task_id).version == 2
    assert store.heartbeat(Claim(task_id, 2, "me")) is False


def test_a_claim_that_another_got_is_not_taken_for_ours(store: TaskStore, add: AddTask) -> None:
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
def test_a_task_is_moved_once(
    store: TaskStore, add: AddTask, went_through: bool, status: Status, reason: str
) -> None:
    task_id = add().task_id
    assert store.claim_one(task_id, "me")
    claim = store.start(Claim(task_id, 2, "me"))
    with breaking_once(went_through=went_through):
        task = store.advance(claim, status, reason, summary="so it was")
    assert (task.status, task.version, task.result_summary) == (status, 4, "so it was")
    assert [version.version for version in store.history(task_id)] == [1, 2, 3, 4]


def test_a_task_that_moved_on_after_our_write_is_not_lost(store: TaskStore, add: AddTask) -> None:
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


def test_a_task_that_another_took_over_is_not_taken_for_ours(
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


def test_a_waiting_task_is_cancelled_once(
    service: TaskService, store: TaskStore, went_through: bool
) -> None:
    """Nobody held it, so no owner's name says whose write it was."""
    task = service.submit(noop())
    claim = Claim(task.task_id, 1, "")
    with breaking_once(went_through=went_through):
        cancelled = store.advance(claim, Status.FAILURE, "cancelled", error_code="CANCELLED")
    assert (cancelled.version, cancelled.error_code) == (2, "CANCELLED")


def test_a_batch_is_finished_once(
    store: TaskStore, add: AddTask, database: Database, went_through: bool
) -> None:
    for _ in range(3):
        add()
    leases = store.claim("me", limit=3, status=Status.RUNNING)
    with breaking_once(went_through=went_through):
        store.succeed_many(leases, "done")
    for task in store.get_many(lease.task_id for lease in leases):
        assert (task.status, task.version) == (Status.SUCCESS, 3)
    assert database.execute("SELECT count(*) AS n FROM task_history").fetchone() == {"n": 9}


# --- The database as a whole ----------------------------------------------------------------


@pytest.fixture
def way(ledger_url: str) -> Iterator[TcpProxy]:
    with proxied(ledger_url) as proxy:
        yield proxy


def test_connections_that_died_while_nobody_used_them_are_no_outage(
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


def test_an_outage_is_told_from_a_failure(way: TcpProxy, add: AddTask) -> None:
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


def test_a_patient_store_waits_an_outage_out(way: TcpProxy, add: AddTask) -> None:
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


def test_payloads_that_a_fast_parser_refuses_are_read(store: TaskStore) -> None:
    deep: Any = "bottom"
    for _ in range(400):
        deep = [deep]
    task = store.add(new_task(task_payload={"deep": deep, "large": 10**400}))
    assert store.get(task.task_id).task_payload == {"deep": deep, "large": 10**400}
    (lease,) = store.claim("me")
    assert lease.task_payload == {"deep": deep, "large": 10**400}


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
