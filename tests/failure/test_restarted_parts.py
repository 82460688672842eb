"""kill -9 of the platform's parts while a purge is under way."""

from __future__ import annotations

import time

import pytest

from moraine.dag_runs import OrchestratorUnavailable
from support.platform import Platform, wait_for
from support.purges import Purge


def test_the_api_server_while_a_request_waits(purge: Purge, platform: Platform) -> None:
    platform.failpoints.hold_at("purge.plan.before")
    caller = platform.executing(purge.table)
    platform.failpoints.wait_until_hit("purge.plan.before")
    task_id = platform.task_of(purge.table).task_id
    platform.stack.kill("api-server")
    assert isinstance(caller.exception(timeout=30), OrchestratorUnavailable)
    platform.stack.wait("api-server")
    platform.failpoints.release("purge.plan.before")
    purge.check_done_once(task_id, [])
    told = platform.client.task(str(task_id))
    assert told["status"] == "COMPLETED_SUCCESS"
    assert told["execution_result"]["files_deleted"] == len(purge.files)


@pytest.mark.parametrize("failpoint", ["purge.plan.before", "purge.delete.content.before"])
def test_postgresql(purge: Purge, platform: Platform, failpoint: str) -> None:
    task_id = purge.hold(failpoint)
    platform.stack.kill("postgres")
    platform.failpoints.release(failpoint)
    platform.stack.wait("postgres")
    task = platform.finish(task_id)
    # The worker waits for the ledger to come back. Whether Airflow lets it live depends on
    # whether its scheduler survived: if not, its workers end with it, and the lease runs out.
    lost = ["LEASE_LOST"] * (task.attempt_count - 1)
    purge.check_done_once(task_id, lost)
    # The next test begins with a platform that answers.
    for part in ("api-server", "scheduler"):
        platform.stack.wait(part)


@pytest.mark.parametrize("failpoint", ["purge.plan.before", "purge.delete.content.before"])
def test_the_spark_server(purge: Purge, platform: Platform, failpoint: str) -> None:
    task_id = purge.hold(failpoint)
    platform.close_spark()
    platform.stack.kill("spark")
    killed = time.monotonic()
    platform.failpoints.release(failpoint)
    failed = wait_for(
        lambda: next((row for row in platform.history(task_id) if row.error_code), None),
        "the step goes on without Spark",
    )
    assert failed.error_code == "SPARK_UNAVAILABLE"
    assert time.monotonic() - killed < 60
    platform.stack.wait("spark")
    task = platform.finish(task_id)
    purge.check_done_once(task_id, ["SPARK_UNAVAILABLE"] * (task.attempt_count - 1))
