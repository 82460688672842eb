"""Workers that stall, and workers that die every time."""

from __future__ import annotations

import os
import signal
from functools import partial

from moraine.errors import LeaseLost
from moraine.tasks.model import Status
from support.platform import MAX_ATTEMPTS, Platform
from support.purges import Purge, check_consecutive, ends_of_attempts
from support.waiting import wait_for


def test_worker_that_stalls_and_wakes_after_it_was_replaced(
    purge: Purge, platform: Platform
) -> None:
    task_id = purge.hold("purge.delete.content.before")
    stalled = platform.task(task_id)
    process = platform.process_of(stalled.lease_owner or "", "delete")
    os.kill(process.pid, signal.SIGSTOP)
    try:
        platform.failpoints.hold_at("purge.verify.before")
        wait_for(lambda: platform.service.sweep() or platform.task(task_id) != stalled, "no sweep")
        wait_for(
            lambda: platform.service.sweep() or platform.failpoints.hit("purge.verify.before"),
            "nobody took over",
            pause=0.5,
        )
    finally:
        os.kill(process.pid, signal.SIGCONT)
    platform.failpoints.release("purge.delete.content.before")
    old_run = platform.finished_run(stalled.lease_owner or "")
    assert LeaseLost.code in platform.log_of(old_run["dag_run_id"], "delete")
    assert platform.task_states(old_run["dag_run_id"])["settle"] == "skipped"
    successor = platform.task(task_id)
    assert (successor.status, successor.attempt_count) == (Status.RUNNING, 2)

    platform.failpoints.release("purge.verify.before")
    task = purge.check_done_once(task_id, ["LEASE_LOST"])
    assert task.lease_owner == successor.lease_owner


def test_worker_that_dies_every_time_is_given_up(purge: Purge, platform: Platform) -> None:
    platform.failpoints.kill_at("purge.acquire.claimed")
    task_id = purge.submit()

    def has_ended(attempt: int) -> bool:
        platform.service.sweep()
        return len(ends_of_attempts(platform.history(task_id))) >= attempt

    for attempt in range(1, MAX_ATTEMPTS + 1):
        wait_for(partial(has_ended, attempt), "the attempt has no end", pause=0.4)
        platform.failpoints.kill_at("purge.acquire.claimed")
    task = platform.task(task_id)
    assert (task.status, task.error_code) == (Status.FAILURE, "WORKER_LOST")
    assert task.reason == f"given up: all {MAX_ATTEMPTS} attempts are used up"
    assert purge.table.files() == purge.files
    check_consecutive(platform.history(task_id))

    platform.failpoints.clear()
    platform.client.call("POST", f"/v1/tasks/{task_id}/retry")
    assert platform.finish(task_id).status is Status.SUCCESS
    assert purge.table.files() == {}
    assert platform.task(task_id).attempt_count == 1
