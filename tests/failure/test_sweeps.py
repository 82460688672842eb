"""Sweeps that run at the same time start each task once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from moraine.operations.processes import open_service
from moraine.operations.purge import OPERATION
from moraine.operations.purge.model import PurgeParameters
from moraine.tasks.service import Submission
from support.platform import Platform
from support.purges import Purge


def test_sweep_during_another_starts_a_task_once(purge: Purge, platform: Platform) -> None:
    other = platform.write_table()
    tasks = []
    for table in (purge.table, other):
        parameters = platform.payload(table)["operation_parameters"]
        submission = Submission(
            OPERATION, PurgeParameters.model_validate(parameters), "demo", "test"
        )
        tasks.append(platform.service.admit(submission))

    with open_service(platform.settings) as second, ThreadPoolExecutor(4) as pool:
        sweeps = [pool.submit(s.sweep) for s in (platform.service, second) * 2]
        started = [task.task_id for sweep in sweeps for task in sweep.result()]

    # The scheduled sweep may have come first, so at most once here; the runs tell the rest.
    assert len(started) == len(set(started))
    for task in tasks:
        platform.finish(task.task_id)
        assert len(platform.runs_of(task.task_id)) == 1
    purge.check_done_once(tasks[0].task_id, [])
    assert other.files() == {}
