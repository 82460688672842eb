"""Slices: what executors may do, and what of it the ledger remembers."""

from __future__ import annotations

import pickle
import threading
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from moraine.errors import LedgerUnavailable
from moraine.tasks import slices
from moraine.tasks.model import Claim, Status
from moraine.tasks.slices import Counts, Fence, FencedLedger, Stop
from moraine.tasks.store import TaskStore

from .conftest import AddTask, Database, finish, lose_lease

SECOND = timedelta(seconds=1)


@pytest.fixture
def claim(store: TaskStore, add: AddTask) -> Claim:
    """A task that a worker holds."""
    task = store.claim_one(add().task_id, "me")
    assert task is not None
    return store.start(Claim(task.task_id, task.version, "me"))


def take_over(store: TaskStore, database: Database, task_id: UUID) -> Claim:
    lose_lease(database, task_id)
    task = store.claim_one(task_id, "successor")
    assert task is not None
    return store.start(Claim(task_id, task.version, "successor"))


def test_slice_fence_lets_an_executor_send_while_its_attempt_holds_the_task(
    store: TaskStore, database: Database, claim: Claim
) -> None:
    fence = pickle.loads(pickle.dumps(store.fence(claim, SECOND)))
    with FencedLedger(fence) as ledger:
        assert ledger.permit()
        successor = take_over(store, database, claim.task_id)
        assert not ledger.permit()
        assert ledger.stopped_by is Stop.LOST
        with FencedLedger(store.fence(successor, SECOND)) as other:
            assert other.permit()
        assert not ledger.permit()


def test_slice_fence_stops_the_executors_after_a_cancel(store: TaskStore, claim: Claim) -> None:
    with FencedLedger(store.fence(claim, SECOND)) as ledger:
        assert ledger.permit()
        store.request_cancel(claim.task_id)
        assert not ledger.permit()
        assert ledger.stopped_by is Stop.CANCELLED


def test_slice_fence_sends_nothing_at_the_end_of_a_lease_until_it_is_extended(
    store: TaskStore, database: Database, claim: Claim
) -> None:
    """A request that begins now may last as long as the margin, and another worker may be at it
    by then."""
    database.execute("UPDATE tasks SET lease_expires_ts = now() + interval '5 seconds'")
    with FencedLedger(store.fence(claim, timedelta(seconds=20))) as ledger:
        answers: list[bool] = []
        asking = threading.Thread(target=lambda: answers.append(ledger.permit()))
        asking.start()
        asking.join(timeout=0.8)
        assert asking.is_alive()
        assert answers == []
        store.heartbeat(claim)
        asking.join(timeout=10)
        assert answers == [True]


def test_slice_fence_does_not_take_a_silent_ledger_for_a_lost_lease(
    store: TaskStore, database: Database, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    with FencedLedger(store.fence(claim, SECOND), clock=lambda: now) as ledger:
        assert ledger.permit()
        _cut_off(database)
        assert ledger.permit(), "the connection is opened again"

        monkeypatch.setattr(psycopg, "connect", _refuse)
        _cut_off(database)
        assert ledger.permit(), "the lease holds for an hour, whether the ledger answers or not"
        now = 3600.0
        monkeypatch.setattr(slices, "_PATIENCE", 0.0)
        with pytest.raises(LedgerUnavailable):
            ledger.permit()


def test_slice_begun_before_is_known_and_closed_to_the_attempt_that_began_it(
    store: TaskStore, database: Database, claim: Claim
) -> None:
    with FencedLedger(store.fence(claim, SECOND)) as lost:
        first = lost.begin("content", "a")
        assert first is not None
        assert not first.begun_before
        first.counts.files_done = 7
        first.end(finished=False)
        successor = take_over(store, database, claim.task_id)
        with FencedLedger(store.fence(successor, SECOND)) as ledger:
            second = ledger.begin("content", "a")
            assert second is not None
            assert second.begun_before
            second.counts.files_done, second.counts.bytes_done = 10, 1000
            second.end(finished=True)
        first.end(finished=False)
        assert lost.begin("content", "b") is None
        assert lost.stopped_by is Stop.LOST
    assert store.finished_slices(claim.task_id, ["content"]) == ["a"]
    counts = store.slice_totals(claim.task_id)["content"]
    assert (counts.files_done, counts.bytes_done) == (10, 1000)


def test_slice_totals_go_by_stage_and_are_removed_only_by_the_holder_of_the_task(
    store: TaskStore, database: Database, claim: Claim
) -> None:
    with FencedLedger(store.fence(claim, SECOND)) as ledger:
        for stage, name, files in (("content", "a", 3), ("content", "b", 4), ("verify", "a", 5)):
            slice_ = ledger.begin(stage, name)
            assert slice_ is not None
            slice_.counts.files_done, slice_.counts.files_missing = files, 1
            slice_.end(finished=name == "a")
    totals = store.slice_totals(claim.task_id)
    assert {stage: (one.files_done, one.files_missing) for stage, one in totals.items()} == {
        "content": (7, 2),
        "verify": (5, 1),
    }
    assert store.finished_slices(claim.task_id, ["content", "manifests"]) == ["a"]
    successor = take_over(store, database, claim.task_id)
    store.reopen_slices(claim)
    assert store.finished_slices(claim.task_id, ["content", "verify"]) == ["a", "a"]
    store.reopen_slices(successor)
    assert store.finished_slices(claim.task_id, ["content", "verify"]) == []
    store.forget_slices(claim)
    assert store.slice_totals(claim.task_id) == totals
    store.forget_slices(successor)
    assert store.slice_totals(claim.task_id) == {}


def test_slices_are_removed_with_their_task(
    store: TaskStore, add: AddTask, database: Database
) -> None:
    task_id = add().task_id
    database.execute(
        "INSERT INTO task_slices (task_id, stage, slice, version) VALUES (%s, 'a', 'b', 1)",
        [task_id],
    )
    finish(store, task_id, Status.FAILURE)
    assert store.remove_finished(timedelta(0), 10, []) == [task_id]
    assert database.execute("SELECT * FROM task_slices").fetchall() == []


def test_slice_fence_shows_no_password(claim: Claim, store: TaskStore) -> None:
    fence = store.fence(claim, SECOND)
    assert isinstance(fence, Fence)
    password = fence.ledger.get_secret_value().split(":")[2].split("@")[0]
    assert password
    assert password not in repr(fence)
    assert Counts() == Counts(0, 0, 0, 0.0)


def _cut_off(database: Database) -> None:
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'moraine executor'"
    )


def _refuse(*_: object, **__: object) -> None:
    raise psycopg.OperationalError("connection refused")
