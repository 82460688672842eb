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
from moraine.tasks.model import Claim, Status, Task
from moraine.tasks.store import TaskStore
from support.tasks import claim_due
from support.waiting import wait_for

from .conftest import AddTask, Database, lose_lease, new_task


def test_claims_of_eight_workers_give_each_task_exactly_once(
    store: TaskStore, database: Database
) -> None:
    tasks = [store.add(new_task()).task_id for _ in range(100)]

    def work(name: str) -> list[Task]:
        return [task for task_id in tasks if (task := store.claim_one(task_id, name))]

    with ThreadPoolExecutor(8) as workers:
        claimed = [task for mine in workers.map(work, "abcdefgh") for task in mine]

    assert sorted(task.task_id for task in claimed) == tasks
    assert {(task.version, task.attempt_count) for task in claimed} == {(2, 1)}
    owners = {task.task_id: task.lease_owner for task in claimed}
    kept = database.execute("SELECT task_id, lease_owner FROM tasks").fetchall()
    assert {row["task_id"]: row["lease_owner"] for row in kept} == owners
    written = database.execute("SELECT count(*) AS n FROM task_history").fetchone()
    assert written == {"n": 200}


def test_claim_has_the_task_and_its_lease(store: TaskStore, add: AddTask) -> None:
    task = add(subject="demo.shop.items", task_payload={"files": [1, 2]}, task_type="PURGE")
    claimed = store.claim_one(task.task_id, "me")
    assert claimed == store.get(task.task_id)
    assert claimed is not None
    assert (claimed.version, claimed.attempt_count, claimed.lease_owner) == (2, 1, "me")
    assert (claimed.subject, claimed.task_payload) == ("demo.shop.items", {"files": [1, 2]})
    assert claimed.status is Status.ACQUIRING_RESOURCES
    assert claimed.lease_expires_ts is not None
    assert claimed.lease_acquired_ts is not None
    assert claimed.lease_expires_ts - claimed.lease_acquired_ts == timedelta(hours=1)
    assert [version.reason for version in store.history(task.task_id)] == ["submitted", "claimed"]


def test_claims_take_the_oldest_due_task_first_whatever_made_it_runnable(
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
    assert [task.task_id for task in store.due(1)] == [due]
    assert [task.task_id for task in claim_due(store, "me")] == [due, lost, new]
    assert store.due(10) == []
    assert store.claim_one(soon, "me") is None, "its retry is not due"
    assert store.claim_one(far, "me") is None, "its lease holds"
    assert store.queue_age() == 0


def test_claim_waits_for_a_task_that_is_being_written(
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


def test_claim_by_id_succeeds_once(store: TaskStore, add: AddTask) -> None:
    task_id = add().task_id
    barrier = threading.Barrier(8)

    def claim(name: str) -> str | None:
        barrier.wait(timeout=10)
        task = store.claim_one(task_id, name)
        return task and task.lease_owner

    with ThreadPoolExecutor(8) as workers:
        owners = [owner for owner in workers.map(claim, "abcdefgh") if owner]
    assert owners == [store.get(task_id).lease_owner]


def test_claim_by_id_takes_only_a_runnable_task(store: TaskStore, add: AddTask) -> None:
    task_id = add().task_id
    assert store.claim_one(task_id, "me")
    store.advance(store.start(Claim(task_id, 2, "me")), Status.SUCCESS, "succeeded")
    assert store.claim_one(task_id, "you") is None
    assert store.claim_one(UUID(int=0), "you") is None


def test_claim_of_a_lost_lease_is_logged_and_counted(
    store: TaskStore, add: AddTask, database: Database
) -> None:
    task_id = add().task_id
    assert store.claim_one(task_id, "gone")
    lose_lease(database, task_id)

    with capture_logs() as logs:
        task = store.claim_one(task_id, "me")

    assert task is not None
    assert (task.version, task.attempt_count, task.lease_owner) == (3, 2, "me")
    (lost,) = [entry for entry in logs if entry["event"] == "task.lease.lost"]
    assert (lost["task_id"], lost["attempt"], lost["new_owner"]) == (str(task_id), 2, "me")
    assert store.history(task_id)[-1].reason == "taken over after a lost lease"
    (total,) = store.totals()
    assert (total["tasks"], total["attempts"], total["lease_losses"]) == (1, 2, 1)


def test_claim_that_is_the_first_is_no_lost_lease(store: TaskStore, add: AddTask) -> None:
    with capture_logs() as logs:
        assert store.claim_one(add().task_id, "me")
    assert logs == []
    assert store.totals()[0]["lease_losses"] == 0


def test_lease_of_a_worker_that_wakes_up_too_late_is_refused_everywhere(
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

    assert (store.get(task_id), store.history(task_id)) == before
    assert store.advance(new, Status.SUCCESS, "succeeded").version == 6


def test_lease_that_expired_is_valid_until_another_worker_takes_the_task(
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
    assert store.claim_one(task_id, "you") is None, "the start renewed the lease"


def test_heartbeat_says_when_a_cancel_was_requested(store: TaskStore, add: AddTask) -> None:
    task_id = add().task_id
    assert store.request_cancel(task_id) is None, "no worker holds it yet"
    assert store.claim_one(task_id, "me")
    claim = Claim(task_id, 2, "me")
    assert store.heartbeat(claim) is False
    assert store.request_cancel(task_id)
    assert store.heartbeat(claim) is True
    assert store.get(task_id).version == 2, "asking is no transition"


def test_attempt_leaves_its_checkpoint_for_the_next(
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
    claimed = store.claim_one(task_id, "you")
    assert claimed is not None
    assert claimed.checkpoint == {"phase": "manifests", "files": 10}
    assert claimed.progress is None, "progress is an attempt's own"


def _set(database: Database, task_id: UUID, column: str, seconds: int) -> None:
    database.execute(
        psycopg.sql.SQL("UPDATE tasks SET {} = now() + %s WHERE task_id = %s").format(
            psycopg.sql.Identifier(column)
        ),
        [timedelta(seconds=seconds), task_id],
    )


def _wait_until_blocked(database: Database) -> None:
    blocked = "SELECT FROM pg_locks WHERE NOT granted"
    wait_for(lambda: database.execute(blocked).fetchall(), "no claim waits for the row", pause=0.01)
