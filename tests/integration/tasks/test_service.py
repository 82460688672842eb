"""Admission and care of tasks: exclusive subjects, cancel, retry, the sweep, retention."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from moraine.errors import AlreadyInProgress, RealmMismatch, TaskConflict, TaskNotFound
from moraine.tasks.model import Claim, Status, Task
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore

from .conftest import AddTask, Database, Starts, finish, lose_lease, new_task, noop

# --- Admission ------------------------------------------------------------------------------


def test_a_task_is_in_the_ledger_before_anything_is_started(
    service: TaskService, starts: Starts
) -> None:
    starts.down = True
    task = service.submit(noop("orders"))
    assert task.status is Status.SUBMITTED
    assert service.store.get(task.task_id) == task
    assert starts.started == []

    starts.down = False
    assert [started.task_id for started in service.sweep()] == [task.task_id]
    assert starts.started == [("noop", task.task_id, 1)]
    assert service.sweep() == [], "the same version is not started twice"


def test_another_realm_is_refused_and_leaves_no_trace(
    service: TaskService, store: TaskStore
) -> None:
    with pytest.raises(RealmMismatch):
        service.submit(noop(realm="prod"))
    assert store.totals() == []


def test_the_sweep_starts_what_is_due_or_lost_and_nothing_else(
    service: TaskService, store: TaskStore, starts: Starts, database: Database
) -> None:
    names = ["new", "due", "later", "lost", "working", "done"]
    tasks = {name: service.admit(noop(name)).task_id for name in names}
    now = datetime.now(UTC)
    for name, wait in (("due", -1), ("later", 3600)):
        assert store.claim_one(tasks[name], "me")
        next_run = now + timedelta(seconds=wait)
        store.advance(
            Claim(tasks[name], 2, "me"), Status.RETRY_SCHEDULED, "failed", next_run=next_run
        )
    for name in ("lost", "working"):
        assert store.claim_one(tasks[name], "me")
    lose_lease(database, tasks["lost"])
    finish(store, tasks["done"])

    swept = {task.task_id for task in service.sweep()}
    assert swept == {tasks["new"], tasks["due"], tasks["lost"]}
    assert {(task_id, version) for _, task_id, version in starts.started} == {
        (tasks["new"], 1),
        (tasks["due"], 3),
        (tasks["lost"], 2),
    }


# --- One live task for a subject ------------------------------------------------------------


def test_a_second_task_for_the_subject_is_refused_and_told_of_the_first(
    service: TaskService,
) -> None:
    first = service.submit(noop("orders"))
    with pytest.raises(AlreadyInProgress, match=str(first.task_id)) as conflict:
        service.submit(noop("orders"))
    assert conflict.value.task_id == first.task_id
    service.submit(noop("items"))


def test_the_subject_is_free_again_when_its_task_has_ended(
    service: TaskService, store: TaskStore
) -> None:
    first = service.submit(noop("orders"))
    finish(store, first.task_id)
    second = service.submit(noop("orders"))
    service.cancel(second.task_id)
    service.submit(noop("orders"))


@pytest.mark.parametrize("state", ["RUNNING", "RETRY_SCHEDULED", "lost"])
def test_the_subject_is_taken_in_every_live_state(
    service: TaskService, store: TaskStore, database: Database, state: str
) -> None:
    first = service.submit(noop("orders"))
    assert store.claim_one(first.task_id, "me")
    claim = store.start(Claim(first.task_id, 2, "me"))
    if state == "RETRY_SCHEDULED":
        store.advance(claim, Status.RETRY_SCHEDULED, "failed", next_run=datetime.now(UTC))
    elif state == "lost":
        lose_lease(database, first.task_id)
    with pytest.raises(AlreadyInProgress) as conflict:
        service.submit(noop("orders"))
    assert conflict.value.task_id == first.task_id


def test_dry_runs_are_in_nobodys_way(service: TaskService) -> None:
    service.submit(noop("orders", dry_run=True))
    service.submit(noop("orders"))
    service.submit(noop("orders", dry_run=True))


def test_other_types_and_realms_are_other_subjects(add: AddTask) -> None:
    add(exclusive=True)
    add(exclusive=True, task_type="OTHER")
    add(exclusive=True, realm_id="other")
    with pytest.raises(AlreadyInProgress):
        add(exclusive=True)


def test_of_many_at_once_one_gets_the_subject(service: TaskService) -> None:
    barrier = threading.Barrier(8)

    def submit(_number: int) -> UUID | None:
        barrier.wait(timeout=10)
        try:
            return service.submit(noop("orders")).task_id
        except AlreadyInProgress:
            return None

    with ThreadPoolExecutor(8) as callers:
        (winner,) = [task_id for task_id in callers.map(submit, range(8)) if task_id]
    with pytest.raises(AlreadyInProgress) as conflict:
        service.submit(noop("orders"))
    assert conflict.value.task_id == winner


def test_a_batch_is_refused_as_a_whole(store: TaskStore) -> None:
    batch = [new_task(subject=name, exclusive=True) for name in ("a", "b", "a")]
    with pytest.raises(AlreadyInProgress):
        store.add_many(batch)
    assert store.get_many(task.task_id for task in batch) == []


# --- Cancel ---------------------------------------------------------------------------------


def test_a_waiting_task_is_cancelled_at_once(service: TaskService, store: TaskStore) -> None:
    task = service.submit(noop())
    cancelled = service.cancel(task.task_id)
    assert (cancelled.status, cancelled.error_code) == (Status.FAILURE, "CANCELLED")
    assert store.claim_one(task.task_id, "me") is None
    with pytest.raises(TaskConflict, match="FAILED_TERMINAL"):
        service.cancel(task.task_id)


def test_the_worker_of_a_running_task_is_asked(service: TaskService, store: TaskStore) -> None:
    task = service.submit(noop())
    assert store.claim_one(task.task_id, "me")
    asked = service.cancel(task.task_id)
    assert asked.status is Status.ACQUIRING_RESOURCES
    assert asked.cancel_requested_ts is not None
    assert store.heartbeat(Claim(task.task_id, 2, "me")) is True
    again = service.cancel(task.task_id)
    assert again.cancel_requested_ts == asked.cancel_requested_ts


def test_sub_tasks_are_cancelled_with_their_parent(service: TaskService, store: TaskStore) -> None:
    parent = service.submit(noop("parent"))
    waiting = service.submit(noop("waiting"), parent_id=parent.task_id)
    running = service.submit(noop("running"), parent_id=parent.task_id)
    below = service.submit(noop("below"), parent_id=running.task_id)
    ended = service.submit(noop("ended"), parent_id=parent.task_id)
    other = service.submit(noop("other"))
    assert store.claim_one(running.task_id, "me")
    finish(store, ended.task_id)

    service.cancel(parent.task_id)

    cancelled = [parent, waiting, below]
    assert {store.get(task.task_id).error_code for task in cancelled} == {"CANCELLED"}
    assert store.get(running.task_id).cancel_requested_ts is not None
    assert store.get(ended.task_id).status is Status.SUCCESS
    assert store.get(other.task_id).status is Status.SUBMITTED


def test_a_sub_task_that_ends_meanwhile_does_not_save_its_parent(
    service: TaskService, store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = service.submit(noop("parent"))
    child = service.submit(noop("child"), parent_id=parent.task_id)
    look = store.find

    def look_too_early(*args: Any, **options: Any) -> list[Task]:
        found = look(*args, **options)
        if found:
            finish(store, child.task_id)
        return found

    monkeypatch.setattr(store, "find", look_too_early)
    assert service.cancel(parent.task_id).error_code == "CANCELLED"
    assert store.get(child.task_id).status is Status.SUCCESS


def test_a_cancel_of_an_ended_parent_leaves_its_sub_tasks_alone(
    service: TaskService, store: TaskStore
) -> None:
    parent = service.submit(noop("parent"))
    child = service.submit(noop("child"), parent_id=parent.task_id)
    finish(store, parent.task_id)
    with pytest.raises(TaskConflict):
        service.cancel(parent.task_id)
    assert store.get(child.task_id).status is Status.SUBMITTED


def test_a_cancel_that_races_a_claim_reaches_the_worker(
    service: TaskService, store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = service.submit(noop())
    look = store.get
    monkeypatch.setattr(store, "get", lambda task_id: _then(look(task_id), claim))

    def claim() -> None:
        monkeypatch.setattr(store, "get", look)
        assert store.claim_one(task.task_id, "me")

    assert service.cancel(task.task_id).cancel_requested_ts is not None
    assert store.get(task.task_id).status is Status.ACQUIRING_RESOURCES


def test_what_is_not_there(service: TaskService) -> None:
    with pytest.raises(TaskNotFound):
        service.cancel(UUID(int=1))
    with pytest.raises(TaskNotFound):
        service.retry(UUID(int=1))


# --- Retry now ------------------------------------------------------------------------------


def test_a_failed_task_starts_anew(service: TaskService, store: TaskStore, starts: Starts) -> None:
    task = service.submit(noop())
    finish(store, task.task_id, Status.FAILURE, error_code="FILES_REMAIN", summary="2 files left")
    driven = service.retry(task.task_id)
    assert (driven.status, driven.attempt_count, driven.version) == (Status.SUBMITTED, 0, 5)
    assert driven.error_code is None
    assert starts.started[-1] == ("noop", task.task_id, 5)
    claimed = store.claim_one(task.task_id, "me")
    assert claimed is not None
    assert claimed.attempt_count == 1


def test_a_cancelled_task_that_starts_anew_is_not_cancelled_again(
    service: TaskService, store: TaskStore
) -> None:
    task = service.submit(noop())
    assert store.claim_one(task.task_id, "me")
    service.cancel(task.task_id)
    store.advance(Claim(task.task_id, 2, "me"), Status.FAILURE, "cancelled")
    service.retry(task.task_id)
    assert store.claim_one(task.task_id, "me")
    assert store.heartbeat(Claim(task.task_id, 5, "me")) is False


def test_a_scheduled_retry_is_brought_forward(
    service: TaskService, store: TaskStore, starts: Starts
) -> None:
    task = service.submit(noop())
    assert store.claim_one(task.task_id, "me")
    store.advance(
        Claim(task.task_id, 2, "me"),
        Status.RETRY_SCHEDULED,
        "failed",
        next_run=datetime.now(UTC) + timedelta(hours=1),
        error_code="STORAGE_UNAVAILABLE",
        summary="S3 is slow",
        extended="503",
    )
    assert store.claim_one(task.task_id, "me") is None
    hurried = service.retry(task.task_id)
    assert (hurried.status, hurried.attempt_count) == (Status.RETRY_SCHEDULED, 1)
    why = (hurried.error_code, hurried.result_summary, hurried.result_extended)
    assert why == ("STORAGE_UNAVAILABLE", "S3 is slow", "503")
    assert starts.started[-1] == ("noop", task.task_id, 4)
    assert store.claim_one(task.task_id, "me")


def test_a_failed_task_does_not_push_into_an_occupied_subject(
    service: TaskService, store: TaskStore
) -> None:
    failed = service.submit(noop("orders"))
    service.cancel(failed.task_id)
    live = service.submit(noop("orders"))
    with pytest.raises(AlreadyInProgress) as conflict:
        service.retry(failed.task_id)
    assert conflict.value.task_id == live.task_id
    assert store.get(failed.task_id).status is Status.FAILURE
    assert len(store.history(failed.task_id)) == 2


@pytest.mark.parametrize("state", ["SUBMITTED", "ACQUIRING_RESOURCES", "RUNNING", "SUCCESS"])
def test_what_cannot_be_retried(service: TaskService, store: TaskStore, state: str) -> None:
    task = service.submit(noop())
    if state == "SUCCESS":
        finish(store, task.task_id)
    elif state != "SUBMITTED":
        store.claim("me", status=Status(state))
    before = store.get(task.task_id)
    with pytest.raises(TaskConflict):
        service.retry(task.task_id)
    assert store.get(task.task_id) == before


def _then(task: Task, something: Any) -> Task:
    something()
    return task
