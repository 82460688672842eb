"""Leasing: who gets which task, when, and what a lost lease leaves behind."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from structlog.testing import capture_logs

from moraine.errors import LeaseLost
from moraine.tasks.model import Claim, Lease, Status
from moraine.tasks.store import TaskStore
from support.waiting import wait_for

from .conftest import AddTask, Database, lose_lease, new_task


def test_eight_workers_get_each_task_exactly_once(store: TaskStore, database: Database) -> None:
    tasks = store.add_many([new_task() for _ in range(400)])

    def work(name: str) -> list[Lease]:
        mine: list[Lease] = []
        while leases := store.claim(name, limit=7):
            mine += leases
        return mine

    with ThreadPoolExecutor(8) as workers:
        claimed = [lease for mine in workers.map(work, "abcdefgh") for lease in mine]

    assert sorted(lease.task_id for lease in claimed) == sorted(task.task_id for task in tasks)
    assert {(lease.version, lease.attempt_count) for lease in claimed} == {(2, 1)}
    owners = {lease.task_id: lease.owner for lease in claimed}
    kept = database.execute("SELECT task_id, lease_owner FROM tasks").fetchall()
    assert {row["task_id"]: row["lease_owner"] for row in kept} == owners
    written = database.execute("SELECT count(*) AS n FROM task_history").fetchone()
    assert written == {"n": 800}


def test_what_a_claim_gives(store: TaskStore, add: AddTask) -> None:
    task = add(subject="demo.shop.items", task_payload={"files": [1, 2]}, task_type="PURGE")
    (lease,) = store.claim("me", limit=5)
    assert lease == Lease(
        task.task_id, 2, "me", "PURGE", "demo.shop.items", {"files": [1, 2]}, {}, 1, False
    )
    claimed = store.get(task.task_id)
    assert claimed.status is Status.ACQUIRING_RESOURCES
    assert claimed.lease_expires_ts is not None
    assert claimed.lease_acquired_ts is not None
    assert claimed.lease_expires_ts - claimed.lease_acquired_ts == timedelta(hours=1)
    assert [version.reason for version in store.history(task.task_id)] == ["submitted", "claimed"]


def test_the_oldest_come_first_whatever_made_them_runnable(
    store: TaskStore, add: AddTask, database: Database
) -> None:
    due, lost, new, soon, far = (add().task_id for _ in range(5))
    for task_id in (due, lost, soon, far):
        assert store.claim_one(task_id, "me")
    for task_id in (due, soon):
        store.advance(Claim(task_id, 2, "me"), Status.RETRY_SCHEDULED, "failed")
    _set(database, due, "next_scheduled_run_ts", -30)
    _set(database, lost, "lease_expires_ts", -20)
    _set(database, new, "last_status_change_ts", -10)
    _set(database, soon, "next_scheduled_run_ts", 60)

    assert [task.task_id for task in store.due(10)] == [due, lost, new]
    assert store.queue_age() == pytest.approx(30, abs=5)
    assert [lease.task_id for lease in store.claim("me", limit=1)] == [due]
    assert {lease.task_id for lease in store.claim("me", limit=10)} == {lost, new}
    assert store.claim("me", limit=10) == []
    assert store.claim_one(soon, "me") is None, "its retry is not due"
    assert store.claim_one(far, "me") is None, "its lease holds"
    assert store.queue_age() == 0


def test_a_claim_takes_as_many_as_it_asks_for_and_of_the_types_it_asks_for(
    store: TaskStore, add: AddTask
) -> None:
    for number in range(6):
        add(task_type="EVEN" if number % 2 == 0 else "ODD")
    assert [lease.task_type for lease in store.claim("me", limit=2, task_types=["ODD"])] == [
        "ODD",
        "ODD",
    ]
    assert store.claim("me", limit=2, task_types=[]) == []
    assert len(store.claim("me", limit=3)) == 3
    assert len(store.claim("me", limit=3)) == 1


def test_a_locked_row_holds_nobody_up(store: TaskStore, add: AddTask, database: Database) -> None:
    locked, *others = (add().task_id for _ in range(3))
    with database.transaction():
        database.execute("SELECT FROM tasks WHERE task_id = %s FOR UPDATE", [locked])
        assert {lease.task_id for lease in store.claim("me", limit=10)} == set(others)
    assert [lease.task_id for lease in store.claim("me", limit=10)] == [locked]


def test_a_task_that_is_being_written_is_waited_for_and_not_taken_for_leased(
    store: TaskStore, add: AddTask, database: Database
) -> None:
    task_id = add().task_id
    assert store.claim_one(task_id, "lost")
    lose_lease(database, task_id)
    with ThreadPoolExecutor(1) as another:
        with database.transaction():
            database.execute(
                "UPDATE tasks SET cancel_requested_ts = now() WHERE task_id = %s", [task_id]
            )
            claiming = another.submit(store.claim_one, task_id, "me")
            _wait_until_blocked(database)
        claimed = claiming.result(timeout=10)
    assert claimed is not None
    assert (claimed.version, claimed.lease_owner) == (3, "me")
    assert claimed.cancel_requested_ts is not None


def test_a_task_is_claimed_by_its_id_once(store: TaskStore, add: AddTask) -> None:
    task_id = add().task_id
    barrier = threading.Barrier(8)

    def claim(name: str) -> str | None:
        barrier.wait(timeout=10)
        task = store.claim_one(task_id, name)
        return task and task.lease_owner

    with ThreadPoolExecutor(8) as workers:
        owners = [owner for owner in workers.map(claim, "abcdefgh") if owner]
    assert owners == [store.get(task_id).lease_owner]


def test_only_what_is_runnable_is_claimed_by_its_id(store: TaskStore, add: AddTask) -> None:
    task_id = add().task_id
    assert store.claim_one(task_id, "me")
    store.advance(store.start(Claim(task_id, 2, "me")), Status.SUCCESS, "succeeded")
    assert store.claim_one(task_id, "you") is None
    assert store.claim_one(UUID(int=0), "you") is None


def test_a_lost_lease_is_taken_over_logged_and_counted(
    store: TaskStore, add: AddTask, database: Database
) -> None:
    first, second = add().task_id, add().task_id
    store.claim("gone", limit=2)
    lose_lease(database, first)
    lose_lease(database, second)

    with capture_logs() as logs:
        task = store.claim_one(first, "me")
        (lease,) = store.claim("me", limit=5)

    assert task is not None
    assert (task.version, task.attempt_count, task.lease_owner) == (3, 2, "me")
    assert (lease.task_id, lease.version, lease.attempt_count) == (second, 3, 2)
    assert lease.taken_over
    lost = [entry for entry in logs if entry["event"] == "task.lease.lost"]
    assert [entry["task_id"] for entry in lost] == [str(first), str(second)]
    assert {(entry["attempt"], entry["new_owner"]) for entry in lost} == {(2, "me")}
    for task_id in (first, second):
        assert store.history(task_id)[-1].reason == "taken over after a lost lease"
    (total,) = store.totals()
    assert (total["tasks"], total["attempts"], total["lease_losses"]) == (2, 4, 2)


def test_a_first_claim_is_no_lost_lease(store: TaskStore, add: AddTask) -> None:
    first, _ = add().task_id, add()
    with capture_logs() as logs:
        assert store.claim_one(first, "me")
        (lease,) = store.claim("me")
    assert not lease.taken_over
    assert logs == []
    assert store.totals()[0]["lease_losses"] == 0


def test_a_worker_that_wakes_up_too_late_is_refused_everywhere(
    store: TaskStore, add: AddTask, database: Database
) -> None:
    """A stalled worker must not overwrite its successor, whatever it tries."""
    task_id = add().task_id
    assert store.claim_one(task_id, "stalled")
    old = store.start(Claim(task_id, 2, "stalled"))
    lose_lease(database, task_id)
    assert store.claim_one(task_id, "successor")
    new = store.start(Claim(task_id, 4, "successor"))
    before = store.get(task_id), store.history(task_id)

    for attempt in (
        lambda: store.heartbeat(old, {"files": 1}),
        lambda: store.checkpoint(old, {"phase": "data"}),
        lambda: store.start(old),
        lambda: store.advance(old, Status.SUCCESS, "succeeded", result={"files_deleted": 1}),
        lambda: store.advance(old, Status.RETRY_SCHEDULED, "failed"),
        lambda: store.advance(old, Status.FAILURE, "given up"),
    ):
        with pytest.raises(LeaseLost):
            attempt()
    assert store.succeed_many([old], "done") == 0
    assert store.exchange([old], "done", "stalled", limit=1) == []

    assert (store.get(task_id), store.history(task_id)) == before
    assert store.advance(new, Status.SUCCESS, "succeeded").version == 6


def test_a_lease_that_ran_out_is_good_until_somebody_takes_it(
    store: TaskStore, add: AddTask, database: Database
) -> None:
    task_id = add().task_id
    assert store.claim_one(task_id, "me")
    claim = Claim(task_id, 2, "me")
    lose_lease(database, task_id)
    assert store.heartbeat(claim) is False
    assert store.claim_one(task_id, "you") is None, "the heartbeat renewed the lease"
    lose_lease(database, task_id)
    assert store.start(claim).version == 3
    assert store.claim("you") == [], "the start renewed the lease"


def test_an_exchange_finishes_and_claims(store: TaskStore, add: AddTask) -> None:
    tasks = [add().task_id for _ in range(5)]
    done: list[Lease] = []
    seen = []
    while leases := store.exchange(done, "done", "me", limit=2):
        seen += leases
        done = leases
    assert sorted(lease.task_id for lease in seen) == tasks
    for task in store.get_many(tasks):
        assert (task.status, task.version, task.result_summary) == (Status.SUCCESS, 3, "done")
        assert [v.status for v in store.history(task.task_id)] == [
            Status.SUBMITTED,
            Status.RUNNING,
            Status.SUCCESS,
        ]


def test_an_exchange_of_different_attempts(
    store: TaskStore, add: AddTask, database: Database
) -> None:
    first, second, third = (add().task_id for _ in range(3))
    store.claim("gone", limit=1, status=Status.RUNNING)
    lose_lease(database, first)
    held = store.claim("me", limit=2, status=Status.RUNNING)
    assert {(lease.task_id, lease.version) for lease in held} == {(first, 3), (second, 2)}
    (lease,) = store.exchange(held, "done", "me", limit=5)
    assert lease.task_id == third
    assert {task.status for task in store.get_many([first, second])} == {Status.SUCCESS}


def test_an_exchange_of_one_type(store: TaskStore, add: AddTask) -> None:
    odd, even, _ = (add(task_type=name).task_id for name in ("ODD", "EVEN", "EVEN"))
    held = store.claim("me", task_types=["ODD"], status=Status.RUNNING)
    assert [lease.task_id for lease in held] == [odd]
    (lease,) = store.exchange(held, "done", "me", limit=1, task_types=["EVEN"])
    assert lease.task_id == even
    assert store.exchange([lease], "done", "me", limit=5, task_types=["ODD"]) == []
    assert {task.status for task in store.get_many([odd, even])} == {Status.SUCCESS}


def test_an_exchange_after_the_own_lease_ran_out_does_one_thing_or_the_other(
    store: TaskStore, add: AddTask, database: Database
) -> None:
    task_id = add().task_id
    held = store.claim("me", limit=1, status=Status.RUNNING)
    lose_lease(database, task_id)
    again = store.exchange(held, "done", "me", limit=1)
    task = store.get(task_id)
    assert task.version == 3
    assert [v.version for v in store.history(task_id)] == [1, 2, 3]
    assert task.status is (Status.RUNNING if again else Status.SUCCESS)


def test_a_lease_says_when_somebody_asked_to_cancel(store: TaskStore, add: AddTask) -> None:
    task_id = add().task_id
    assert store.request_cancel(task_id) is None, "nobody holds it yet"
    assert store.claim_one(task_id, "me")
    claim = Claim(task_id, 2, "me")
    assert store.heartbeat(claim) is False
    assert store.request_cancel(task_id)
    assert store.heartbeat(claim) is True
    assert store.get(task_id).version == 2, "asking is no transition"


def test_what_an_attempt_leaves_for_the_next(
    store: TaskStore, add: AddTask, database: Database
) -> None:
    task_id = add().task_id
    assert store.claim_one(task_id, "me")
    claim = Claim(task_id, 2, "me")
    store.checkpoint(claim, {"phase": "data", "files": 10})
    store.checkpoint(claim, {"phase": "manifests"})
    store.heartbeat(claim, {"files": 12})
    assert store.heartbeat(claim) is False
    assert store.get(task_id).progress == {"files": 12}, "a beat without news keeps the last"
    lose_lease(database, task_id)
    (lease,) = store.claim("you")
    assert lease.checkpoint == {"phase": "manifests", "files": 10}
    assert store.get(task_id).progress is None, "progress is an attempt's own"


def _set(database: Database, task_id: UUID, column: str, seconds: int) -> None:
    database.execute(
        psycopg.sql.SQL("UPDATE tasks SET {} = now() + %s WHERE task_id = %s").format(
            psycopg.sql.Identifier(column)
        ),
        [timedelta(seconds=seconds), task_id],
    )


def _wait_until_blocked(database: Database) -> None:
    blocked = "SELECT FROM pg_locks WHERE NOT granted"
    wait_for(lambda: database.execute(blocked).fetchall(), "nobody waits for the row", pause=0.01)
