"""kill -9 of a worker at every point where it could leave something half done."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from moraine.errors import LeaseLost
from moraine.tasks.model import Status
from support.platform import MAX_ATTEMPTS, Platform, wait_for
from support.purges import Purge, check_consecutive, ends_of_attempts


@pytest.mark.parametrize(
    "failpoint",
    [
        "purge.acquire.claimed",
        "purge.acquire.pinned",
        "purge.plan.written",
        "purge.plan.recorded",
        "purge.delete.content.before",
        "purge.delete.content.batch",
        "purge.delete.current_metadata.after",
        "purge.verify.before",
    ],
)
def test_a_step_that_is_killed_is_done_by_the_next_attempt(
    purge: Purge, platform: Platform, failpoint: str
) -> None:
    platform.failpoints.kill_at(failpoint)
    task_id = purge.submit()
    task = purge.check_done_once(task_id, ["WORKER_LOST"])
    assert platform.failpoints.hit(failpoint)
    lost = next(row for row in platform.history(task_id) if row.error_code)
    assert lost.reason.startswith("attempt 1 failed, the next is due at ")
    first, second = platform.runs_of(task_id)
    assert platform.finished_run(first["dag_run_id"])["state"] == "failed"
    assert "Next attempt at" in platform.run(first["dag_run_id"])["note"]
    assert platform.finished_run(second["dag_run_id"])["state"] == "success"
    assert task.lease_owner == second["dag_run_id"]


def test_killed_when_all_was_verified_is_a_success(purge: Purge, platform: Platform) -> None:
    """Nothing is left to do, so `settle` need not send for another attempt."""
    platform.failpoints.kill_at("purge.verify.after")
    purge.check_done_once(purge.submit(), [])
    assert platform.failpoints.hit("purge.verify.after")


def test_killed_before_it_settles_is_taken_over(purge: Purge, platform: Platform) -> None:
    """Nobody is left to write anything down: the lease runs out, and the sweep sees it."""
    platform.failpoints.kill_at("purge.settle.before")
    purge.check_done_once(purge.submit(), ["LEASE_LOST"])
    assert platform.failpoints.hit("purge.settle.before")


def test_a_whole_machine_that_is_lost(purge: Purge, platform: Platform) -> None:
    """The process and Airflow's supervisor of it are gone: Airflow itself would wait a minute."""
    task_id = purge.hold("purge.delete.content.before")
    run_id = platform.task(task_id).lease_owner or ""
    process = platform.process_of(run_id, "delete")
    process.parent().kill()
    process.kill()
    task = purge.check_done_once(task_id, ["LEASE_LOST"])
    # Airflow would find out in a minute; tell it. The run has nothing to say any more.
    platform.mark_failed(run_id, "delete")
    platform.finished_run(run_id)
    assert platform.task_states(run_id)["settle"] == "skipped"
    assert platform.task(task_id) == task


def test_a_stalled_worker_that_wakes_after_it_was_replaced(
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


def test_workers_that_die_every_time(purge: Purge, platform: Platform) -> None:
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
