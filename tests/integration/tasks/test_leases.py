"""A worker's lease, while the worker waits for another process to do the work."""

from __future__ import annotations

from datetime import datetime

import pytest

from moraine.errors import LeaseLost
from moraine.settings import Settings
from moraine.tasks.model import Claim, Status
from moraine.tasks.store import TaskStore
from moraine.tasks.worker import Worker
from support.waiting import wait_for

from .conftest import AddTask

SETTINGS = Settings.model_validate(
    {"delegation": {"task": {"lease": {"heartbeat_interval": "0.1s"}}}}
)


def expiry(store: TaskStore, worker: Worker, add: AddTask) -> tuple[Claim, datetime]:
    task = worker.claim(add().task_id)
    assert task is not None
    assert task.lease_expires_ts is not None
    return Claim(task.task_id, task.version, worker.owner), task.lease_expires_ts


def test_lease_is_kept_while_another_process_starts(store: TaskStore, add: AddTask) -> None:
    worker = Worker(store, SETTINGS, "owner")
    claim, before = expiry(store, worker, add)

    def is_extended() -> bool:
        expires = store.get(claim.task_id).lease_expires_ts
        return expires is not None and expires > before

    with worker.keeping_lease(store.get(claim.task_id)):
        wait_for(is_extended, "no heartbeat extended the lease")


def test_lease_that_the_other_process_ended_is_not_kept(store: TaskStore, add: AddTask) -> None:
    worker = Worker(store, SETTINGS, "owner")
    claim, _before = expiry(store, worker, add)
    with worker.keeping_lease(store.get(claim.task_id)):
        started = store.start(claim)
        ended = store.advance(started, Status.SUCCESS, "succeeded")
    assert store.get(claim.task_id) == ended
    with pytest.raises(LeaseLost), worker.working_on(claim.task_id):
        pass
