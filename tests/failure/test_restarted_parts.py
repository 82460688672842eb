"""kill -9 of the platform's parts while a purge is under way."""

from __future__ import annotations

import pytest

from moraine.client.delegation import ApiError
from moraine.orchestration.dag_runs import OrchestratorUnavailable
from moraine.tasks.model import Status, TaskFilter
from support.platform import MAX_ATTEMPTS, Platform
from support.purges import Purge, ends_of_attempts


def test_api_server_restarted_while_a_request_waits(purge: Purge, platform: Platform) -> None:
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


def test_purge_call_that_does_not_get_through_changes_nothing(
    purge: Purge, platform: Platform
) -> None:
    platform.stack.stop("api-server")
    try:
        with pytest.raises(OrchestratorUnavailable):
            platform.post(platform.payload(purge.table))
        wanted = TaskFilter(subject=purge.table.subject)
        assert platform.service.store.find(wanted, limit=1) == []
        assert purge.table.files() == purge.files
    finally:
        platform.stack.start("api-server")
    purge.check_done_once(purge.submit(), [])


def test_purge_while_the_catalog_is_away_changes_nothing_and_is_a_bad_gateway(
    purge: Purge, platform: Platform
) -> None:
    platform.stack.stop("catalog")
    try:
        caller = platform.executing(purge.table)
        task = platform.finish(platform.task_of(purge.table).task_id)
        error = caller.exception(timeout=30)
    finally:
        platform.stack.start("catalog")
    assert isinstance(error, ApiError)
    assert (error.status, error.body["error_code"]) == (502, "CREDENTIAL_VENDING_FAILED")
    ends = ends_of_attempts(platform.history(task.task_id))
    assert ends == ["CREDENTIAL_VENDING_FAILED"] * MAX_ATTEMPTS
    assert purge.table.files() == purge.files
    platform.client.call("POST", f"/v1/tasks/{task.task_id}/retry")
    assert platform.finish(task.task_id).status is Status.SUCCESS
    assert purge.table.files() == {}
