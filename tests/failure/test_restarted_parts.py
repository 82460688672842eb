"""kill -9 of the platform's parts while a purge is under way."""

from __future__ import annotations

from moraine.dag_runs import OrchestratorUnavailable
from support.platform import Platform
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
