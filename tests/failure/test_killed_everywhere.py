"""kill -9 of every part while purges stand at every point where they could leave something half
done: one purge at each, all of them at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.process import BaseProcess
from uuid import UUID

import pytest

from moraine.operations.purge import OPERATION
from moraine.operations.purge.model import PurgeParameters
from moraine.tasks.model import Status
from moraine.tasks.service import Submission
from support.drivers import Drivers, without_scheduled_sweeps
from support.platform import Platform, checksums
from support.purges import Purge, ends_of_attempts
from support.waiting import wait_for

# In the order in which a purge reaches them.
POINTS = [
    "purge.acquire.claimed",
    "purge.acquire.pinned",
    "purge.plan.before",
    "purge.plan.written",
    "purge.plan.recorded",
    "purge.delete.content.before",
    "purge.delete.content.marked",
    "purge.delete.batch.before",
    "purge.delete.batch.after",
    "purge.delete.manifests.before",
    "purge.delete.old_metadata.after",
    "purge.verify.before",
    "purge.root.before",
    "purge.root.deleted",
    "purge.verify.after",
    "purge.settle.before",
]
IN_EXECUTORS = {"purge.delete.batch.before", "purge.delete.batch.after"}


class Crowd:
    """As many purges as there are points, and a neighbour that must not be touched."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.drivers = Drivers.of(platform)
        neighbour = platform.write_table()
        with ThreadPoolExecutor(2) as pool:
            tables = list(pool.map(lambda _: platform.write_table(), POINTS))
        others = checksums(neighbour.folder)
        self.waiting = [Purge(platform, table, table.files(), others) for table in tables]
        self.at: dict[str, UUID] = {}
        self.purges: dict[UUID, Purge] = {}

    def bring_to_all_points(self, what: str, *, by_airflow: bool = False) -> list[BaseProcess]:
        """Let a purge reach each point, where it is held or killed."""
        processes = []
        for point in POINTS:
            getattr(self.platform.failpoints, f"{what}_at")(point)
            purge = self.waiting.pop()
            if by_airflow:
                task_id = purge.submit()
            else:
                task_id = self._admit(purge)
                processes.append(self.drivers.start(task_id))
            self.at[point], self.purges[task_id] = task_id, purge
            self.platform.failpoints.wait_until_hit(point)
        return processes

    def finish(self, allowed: set[str]) -> dict[str, list[str]]:
        """Every purge ends well. How the attempts before the last one ended, by point."""
        self.drivers.finish(self.purges)
        ends = {}
        for point, task_id in self.at.items():
            history = self.platform.history(task_id)
            assert self.platform.task(task_id).status is Status.SUCCESS, (point, history)
            ends[point] = ends_of_attempts(history)[:-1]
            assert set(ends[point]) <= allowed, (point, history)
            self.purges[task_id].check_done_once(task_id, ends[point])
        return ends

    def _admit(self, purge: Purge) -> UUID:
        asked = self.platform.payload(purge.table)["operation_parameters"]
        submission = Submission(OPERATION, PurgeParameters.model_validate(asked), "demo", "test")
        return self.platform.service.admit(submission).task_id


@pytest.fixture
def crowd(platform: Platform) -> Iterator[Crowd]:
    with without_scheduled_sweeps(platform):
        yield Crowd(platform)
        platform.failpoints.clear()


def test_purge_whose_driver_or_executor_is_killed_at_the_point(crowd: Crowd) -> None:
    for process in crowd.bring_to_all_points("kill"):
        process.join(timeout=60)
    ends = crowd.finish({"LEASE_LOST", "SPARK_UNAVAILABLE"})
    for point, codes in ends.items():
        # A driver outlives its executors, and says so.
        assert codes == ["SPARK_UNAVAILABLE" if point in IN_EXECUTORS else "LEASE_LOST"]


def test_purge_whose_airflow_task_and_supervisor_are_killed(
    crowd: Crowd, platform: Platform
) -> None:
    """As if the machine were lost: Airflow would find out in a minute, the ledger sooner."""
    crowd.bring_to_all_points("hold", by_airflow=True)
    runs = {point: platform.task(task).lease_owner or "" for point, task in crowd.at.items()}
    steps = {}
    for point, run in runs.items():
        states = platform.task_states(run)
        steps[point] = next(step for step, state in states.items() if state == "running")
        process = platform.process_of(run, steps[point])
        process.parent().kill()
        process.kill()
    platform.failpoints.clear()
    ends = crowd.finish({"LEASE_LOST"})
    assert list(ends.values()) == [["LEASE_LOST"]] * len(POINTS)

    # Report one to Airflow. Its run must not change the task any more.
    told = platform.task(crowd.at["purge.verify.before"])
    run = runs.pop("purge.verify.before")
    platform.mark_failed(run, steps["purge.verify.before"])
    platform.finished_run(run)
    assert platform.task_states(run)["settle"] == "skipped"
    assert platform.task(told.task_id) == told
    for run in runs.values():
        # Airflow would find the others in a minute, during another test.
        path = f"/api/v2/dags/table_purge/dagRuns/{run}"
        ended = platform.airflow.request("PATCH", path, json={"state": "failed"})
        assert ended.status_code == 200, ended.text


def test_purge_whose_spark_server_is_killed(crowd: Crowd, platform: Platform) -> None:
    processes = crowd.bring_to_all_points("hold")
    platform.close_spark()
    platform.stack.kill("spark")
    platform.failpoints.clear()
    platform.stack.wait("spark")
    ends = crowd.finish({"SPARK_UNAVAILABLE"})
    assert ends["purge.delete.batch.before"], "its executor was killed"
    assert not ends["purge.settle.before"], "Spark had done its part"
    for process in processes:
        process.join(timeout=60)


def test_purge_whose_postgresql_is_killed(crowd: Crowd, platform: Platform) -> None:
    processes = crowd.bring_to_all_points("hold")
    platform.stack.kill("postgres")
    platform.failpoints.clear()
    platform.stack.wait("postgres")
    # Workers and executors wait for the ledger to come back; a lease may expire meanwhile.
    for process in processes:
        process.join(timeout=60)
    crowd.finish({"LEASE_LOST", "SPARK_UNAVAILABLE"})
    # The next test begins with a platform that answers.
    for part in ("api-server", "scheduler"):
        platform.stack.wait(part)
    wait_for(lambda: platform.service.sweep() == [], "something is still due", pause=0.5)
