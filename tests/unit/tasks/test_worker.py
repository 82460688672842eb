"""What a worker writes when an attempt is over, and what it refuses to begin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from moraine.errors import Cancelled, LeaseLost, StorageRefused, StorageUnavailable
from moraine.settings import Settings
from moraine.tasks.model import Status
from moraine.tasks.store import TaskStore
from moraine.tasks.worker import Worker

from .fakes import NOW, OWNER, FakeStore, a_task


def worker_of(store: FakeStore) -> Worker:
    return Worker(cast(TaskStore, store), Settings(), OWNER)


def outcome_of(error: Exception, **task: Any) -> dict[str, Any]:
    """What is written when a step of the work raises this."""
    store = FakeStore(a_task(**task))
    with pytest.raises(type(error)), worker_of(store).working_on(store.task.task_id):
        raise error
    (move,) = store.moves
    assert move["claim"] == store.claim
    return move


def test_worker_schedules_the_next_attempt_after_a_transient_error() -> None:
    before = datetime.now(UTC)
    move = outcome_of(StorageUnavailable("S3 is slow"), attempt_count=2)
    assert move["status"] is Status.RETRY_SCHEDULED
    assert move["error_code"] == "STORAGE_UNAVAILABLE"
    assert move["summary"] == "S3 is slow"
    # TABLE_PURGE begins with a minute, so the second wait is two, and a tenth of chance.
    wait = move["next_run"] - before
    assert timedelta(minutes=2) <= wait <= timedelta(minutes=2, seconds=12 + 10)
    assert move["reason"].startswith("attempt 2 failed, the next is due at ")


def test_worker_ends_the_task_at_once_after_a_final_error() -> None:
    move = outcome_of(StorageRefused("not yours", details="403 for a/b.parquet"))
    assert move["status"] is Status.FAILURE
    assert move["next_run"] is None
    assert move["reason"] == "given up: the error is final"
    assert (move["summary"], move["extended"]) == ("not yours", "403 for a/b.parquet")


def test_worker_schedules_nothing_after_the_last_attempt() -> None:
    move = outcome_of(StorageUnavailable("S3 is slow"), attempt_count=10)
    assert move["status"] is Status.FAILURE
    assert move["reason"] == "given up: all 10 attempts are used up"


def test_worker_retries_a_foreign_error_and_keeps_its_message_out_of_the_ledger() -> None:
    move = outcome_of(OSError("could not connect to s3://key:hunter2@bucket"))
    assert move["status"] is Status.RETRY_SCHEDULED
    assert move["error_code"] == "INTERNAL_ERROR"
    assert move["summary"] == "An unexpected OSError ended the attempt."
    assert "hunter2" not in str(move)
    assert "outcome_of, line" in move["extended"], "the place is named"


def test_worker_writes_a_cancel_as_a_failure_with_its_own_code() -> None:
    move = outcome_of(Cancelled())
    assert (move["status"], move["error_code"]) == (Status.FAILURE, "CANCELLED")
    assert move["reason"] == "cancelled"


def test_worker_writes_nothing_after_a_lost_lease() -> None:
    store = FakeStore(a_task(), LeaseLost("gone"))
    with pytest.raises(LeaseLost), worker_of(store).working_on(store.task.task_id):
        pytest.fail("the work began")
    assert store.moves == []


@pytest.mark.parametrize(
    "task",
    [a_task(lease_owner="another"), a_task(status=Status.SUCCESS), a_task(lease_owner=None)],
)
def test_worker_begins_no_step_without_a_lease(task: Any) -> None:
    store = FakeStore(task)
    with pytest.raises(LeaseLost), worker_of(store).working_on(task.task_id):
        pytest.fail("the work began")
    assert (store.moves, store.beats) == ([], [])


def test_worker_writes_a_failure_after_the_start_with_the_version_of_the_start() -> None:
    def work(store: FakeStore) -> None:
        with worker_of(store).working_on(store.task.task_id) as work:
            assert work.start().status is Status.RUNNING
            raise StorageUnavailable

    store = FakeStore(a_task())
    with pytest.raises(StorageUnavailable):
        work(store)
    assert [move["claim"].version for move in store.moves] == [3]


def test_worker_claim_gives_the_task() -> None:
    store = FakeStore(a_task())
    assert worker_of(store).claim(store.task.task_id) is store.task
    assert store.moves == []


def test_worker_does_not_begin_a_task_cancelled_while_its_worker_was_gone() -> None:
    store = FakeStore(a_task(cancel_requested_ts=NOW))
    assert worker_of(store).claim(store.task.task_id) is None
    (move,) = store.moves
    assert (move["status"], move["error_code"]) == (Status.FAILURE, "CANCELLED")


@pytest.mark.parametrize(("attempt", "goes_on"), [(10, True), (11, False)])
def test_worker_gives_up_a_task_whose_workers_vanish(attempt: int, goes_on: bool) -> None:
    store = FakeStore(a_task(attempt_count=attempt))
    assert (worker_of(store).claim(store.task.task_id) is not None) == goes_on
    codes = [(move["status"], move["error_code"]) for move in store.moves]
    assert codes == ([] if goes_on else [(Status.FAILURE, "WORKER_LOST")])
