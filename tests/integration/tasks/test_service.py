"""The use cases of tasks: admission, exclusive subjects, cancel, retry, the sweep."""

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
from support.tasks import submit

from .conftest import AddTask, Database, Starts, finish, lose_lease, noop

# --- Admission ------------------------------------------------------------------------------


def test_task_service_writes_a_task_before_it_starts_anything(
    service: TaskService, starts: Starts
) -> None:
    starts.down = True
    task = submit(service, noop("orders"))
    assert task.status is Status.SUBMITTED
    assert service.store.get(task.task_id) == task
    assert starts.started == []

    starts.down = False
    assert [started.task_id for started in service.sweep()] == [task.task_id]
    assert starts.started == [("noop", task.task_id, 1)]
    assert service.sweep() == [], "the same version is not started twice"


def test_task_service_refuses_another_realm_and_leaves_no_trace(
    service: TaskService, store: TaskStore
) -> None:
    with pytest.raises(RealmMismatch):
        submit(service, noop(realm="prod"))
    assert store.totals() == []


def test_task_service_sweep_starts_what_is_due_or_lost_and_nothing_else(
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


def test_task_service_refuses_a_second_task_for_a_subject_and_names_the_first(
    service: TaskService,
) -> None:
    first = submit(service, noop("orders"))
    with pytest.raises(AlreadyInProgress, match=str(first.task_id)) as conflict:
        submit(service, noop("orders"))
    assert conflict.value.task_id == first.task_id
    submit(service, noop("items"))


def test_task_service_frees_the_subject_when_its_task_has_ended(
    service: TaskService, store: TaskStore
) -> None:
    first = submit(service, noop("orders"))
    finish(store, first.task_id)
    second = submit(service, noop("orders"))
    service.cancel(second.task_id)
    submit(service, noop("orders"))


@pytest.mark.parametrize("state", ["RUNNING", "RETRY_SCHEDULED", "lost"])
def test_task_service_keeps_the_subject_in_every_live_state(
    service: TaskService, store: TaskStore, database: Database, state: str
) -> None:
    first = submit(service, noop("orders"))
    assert store.claim_one(first.task_id, "me")
    claim = store.start(Claim(first.task_id, 2, "me"))
    if state == "RETRY_SCHEDULED":
        store.advance(claim, Status.RETRY_SCHEDULED, "failed", next_run=datetime.now(UTC))
    elif state == "lost":
        lose_lease(database, first.task_id)
    with pytest.raises(AlreadyInProgress) as conflict:
        submit(service, noop("orders"))
    assert conflict.value.task_id == first.task_id


def test_task_service_dry_runs_do_not_occupy_the_subject(service: TaskService) -> None:
    submit(service, noop("orders", dry_run=True))
    submit(service, noop("orders"))
    submit(service, noop("orders", dry_run=True))


def test_task_service_treats_other_types_and_realms_as_other_subjects(add: AddTask) -> None:
    add(exclusive=True)
    add(exclusive=True, task_type="OTHER")
    add(exclusive=True, realm_id="other")
    with pytest.raises(AlreadyInProgress):
        add(exclusive=True)


def test_task_service_gives_the_subject_to_one_of_many_at_once(service: TaskService) -> None:
    barrier = threading.Barrier(8)

    def ask(_number: int) -> UUID | None:
        barrier.wait(timeout=10)
        try:
            return submit(service, noop("orders")).task_id
        except AlreadyInProgress:
            return None

    with ThreadPoolExecutor(8) as callers:
        (winner,) = [task_id for task_id in callers.map(ask, range(8)) if task_id]
    with pytest.raises(AlreadyInProgress) as conflict:
        submit(service, noop("orders"))
    assert conflict.value.task_id == winner


# --- Cancel ---------------------------------------------------------------------------------


def test_task_service_cancels_a_waiting_task_at_once(
    service: TaskService, store: TaskStore
) -> None:
    task = submit(service, noop())
    cancelled = service.cancel(task.task_id)
    assert (cancelled.status, cancelled.error_code) == (Status.FAILURE, "CANCELLED")
    assert store.claim_one(task.task_id, "me") is None
    with pytest.raises(TaskConflict, match="FAILED_TERMINAL"):
        service.cancel(task.task_id)


def test_task_service_asks_the_worker_of_a_running_task_to_cancel(
    service: TaskService, store: TaskStore
) -> None:
    task = submit(service, noop())
    assert store.claim_one(task.task_id, "me")
    asked = service.cancel(task.task_id)
    assert asked.status is Status.ACQUIRING_RESOURCES
    assert asked.cancel_requested_ts is not None
    assert store.heartbeat(Claim(task.task_id, 2, "me")) is True
    again = service.cancel(task.task_id)
    assert again.cancel_requested_ts == asked.cancel_requested_ts


def test_task_service_cancel_that_races_a_claim_reaches_the_worker(
    service: TaskService, store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = submit(service, noop())
    look = store.get
    monkeypatch.setattr(store, "get", lambda task_id: _then(look(task_id), claim))

    def claim() -> None:
        monkeypatch.setattr(store, "get", look)
        assert store.claim_one(task.task_id, "me")

    assert service.cancel(task.task_id).cancel_requested_ts is not None
    assert store.get(task.task_id).status is Status.ACQUIRING_RESOURCES


def test_task_service_refuses_an_unknown_task(service: TaskService) -> None:
    with pytest.raises(TaskNotFound):
        service.cancel(UUID(int=1))
    with pytest.raises(TaskNotFound):
        service.retry(UUID(int=1))


# --- Retry now ------------------------------------------------------------------------------


def test_task_service_retry_starts_a_failed_task_again(
    service: TaskService, store: TaskStore, starts: Starts
) -> None:
    task = submit(service, noop())
    finish(store, task.task_id, Status.FAILURE, error_code="FILES_REMAIN", summary="2 files left")
    driven = service.retry(task.task_id)
    assert (driven.status, driven.attempt_count, driven.version) == (Status.SUBMITTED, 0, 5)
    assert driven.error_code is None
    assert starts.started[-1] == ("noop", task.task_id, 5)
    claimed = store.claim_one(task.task_id, "me")
    assert claimed is not None
    assert claimed.attempt_count == 1


def test_task_service_retry_of_a_cancelled_task_is_not_cancelled_again(
    service: TaskService, store: TaskStore
) -> None:
    task = submit(service, noop())
    assert store.claim_one(task.task_id, "me")
    service.cancel(task.task_id)
    store.advance(Claim(task.task_id, 2, "me"), Status.FAILURE, "cancelled")
    service.retry(task.task_id)
    assert store.claim_one(task.task_id, "me")
    assert store.heartbeat(Claim(task.task_id, 5, "me")) is False


def test_task_service_retry_brings_a_scheduled_retry_forward(
    service: TaskService, store: TaskStore, starts: Starts
) -> None:
    task = submit(service, noop())
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


def test_task_service_retry_does_not_enter_an_occupied_subject(
    service: TaskService, store: TaskStore
) -> None:
    failed = submit(service, noop("orders"))
    service.cancel(failed.task_id)
    live = submit(service, noop("orders"))
    with pytest.raises(AlreadyInProgress) as conflict:
        service.retry(failed.task_id)
    assert conflict.value.task_id == live.task_id
    assert store.get(failed.task_id).status is Status.FAILURE
    assert len(store.history(failed.task_id)) == 2


@pytest.mark.parametrize("state", ["SUBMITTED", "ACQUIRING_RESOURCES", "RUNNING", "SUCCESS"])
def test_task_service_refuses_what_cannot_be_retried(
    service: TaskService, store: TaskStore, state: str
) -> None:
    task = submit(service, noop())
    if state == "SUCCESS":
        finish(store, task.task_id)
    elif state != "SUBMITTED":
        assert store.claim_one(task.task_id, "me")
    if state == "RUNNING":
        store.start(Claim(task.task_id, 2, "me"))
    before = store.get(task.task_id)
    with pytest.raises(TaskConflict):
        service.retry(task.task_id)
    assert store.get(task.task_id) == before


def _then(task: Task, something: Any) -> Task:
    something()
    return task
