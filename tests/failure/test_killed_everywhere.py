"""kill -9 of every part while purges stand at every point where they could leave something half
done: one purge at each, all of them at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

import psutil
import pytest

from moraine.tasks.model import Status
from support.platform import Platform, checksums, wait_for
from support.purges import Purge, check_consecutive, ends_of_attempts

# In the order in which a purge comes by, with the step of the Dag it is in.
POINTS = {
    "purge.acquire.claimed": "acquire",
    "purge.acquire.pinned": "acquire",
    "purge.plan.before": "plan",
    "purge.plan.written": "plan",
    "purge.plan.recorded": "plan",
    "purge.delete.content.before": "delete",
    "purge.delete.batch.before": "delete",
    "purge.delete.batch.after": "delete",
    "purge.delete.old_metadata.after": "delete",
    "purge.verify.before": "verify",
    "purge.root.before": "verify",
    "purge.root.deleted": "verify",
    "purge.verify.after": "verify",
    "purge.settle.before": "settle",
}


@dataclass(frozen=True)
class Crowd:
    """As many purges as there are points, and a neighbour that must not be touched."""

    platform: Platform
    purges: dict[UUID, Purge]

    @classmethod
    def submit(cls, platform: Platform) -> Crowd:
        neighbour = platform.write_table()
        with ThreadPoolExecutor(4) as pool:
            tables = list(pool.map(lambda _: platform.write_table(), POINTS))
        others = checksums(neighbour.folder)
        purges = [Purge(platform, table, table.files(), others) for table in tables]
        return cls(platform, {purge.submit(): purge for purge in purges})

    def wait_until_all_stand(self) -> None:
        for point in POINTS:
            self.platform.failpoints.wait_until_hit(point)

    def finish(self, allowed: set[str]) -> dict[UUID, list[str]]:
        """Every purge ends well. How the attempts before the last one ended, by task."""
        ends = {}
        for task_id, purge in self.purges.items():
            task = self.platform.finish(task_id, patience=180)
            assert task.status is Status.SUCCESS, (task, self.platform.history(task_id))
            ends[task_id] = ends_of_attempts(self.platform.history(task_id))[:-1]
            assert set(ends[task_id]) <= allowed, self.platform.history(task_id)
            purge.check_done_once(task_id, ends[task_id])
            check_consecutive(self.platform.history(task_id))
        return ends


@pytest.fixture
def held(platform: Platform) -> Iterator[Crowd]:
    """A purge that stands still at each point."""
    for point in POINTS:
        platform.failpoints.hold_at(point)
    crowd = Crowd.submit(platform)
    crowd.wait_until_all_stand()
    yield crowd
    platform.failpoints.clear()


def test_the_process_that_comes_to_a_point(platform: Platform) -> None:
    """The worker of the step or, within a delete, the executor."""
    for point in POINTS:
        platform.failpoints.kill_at(point)
    crowd = Crowd.submit(platform)
    ends = crowd.finish({"WORKER_LOST", "LEASE_LOST", "SPARK_UNAVAILABLE"})
    assert all(platform.failpoints.hit(point) for point in POINTS)
    # Killed when all was verified there is nothing left to do; everywhere else another attempt.
    assert sorted(map(len, ends.values())) == [0] + [1] * (len(POINTS) - 1)


def test_a_whole_machine(held: Crowd, platform: Platform) -> None:
    """Every worker and Airflow's supervisor of it: the leases run out, and the sweep sees it."""
    runs = {task_id: platform.task(task_id).lease_owner or "" for task_id in held.purges}
    steps = {}
    for run in runs.values():
        states = platform.task_states(run)
        steps[run] = next(step for step, state in states.items() if state == "running")
    assert sorted(steps.values()) == sorted(POINTS.values())
    for run, step in steps.items():
        process = platform.process_of(run, step)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.parent().kill()
            process.kill()
    platform.failpoints.clear()
    ends = held.finish({"LEASE_LOST"})
    assert set(map(tuple, ends.values())) == {("LEASE_LOST",)}
    for run, step in steps.items():
        # Airflow would find out in a minute; tell it.
        platform.mark_failed(run, step)


def test_the_spark_server(held: Crowd, platform: Platform) -> None:
    platform.close_spark()
    platform.stack.kill("spark")
    killed = time.monotonic()
    platform.failpoints.clear()
    platform.stack.wait("spark")
    ends = held.finish({"SPARK_UNAVAILABLE"})
    assert time.monotonic() - killed < 180
    assert any(ends.values())


def test_postgresql(held: Crowd, platform: Platform) -> None:
    platform.stack.kill("postgres")
    platform.failpoints.clear()
    platform.stack.wait("postgres")
    # The workers wait for the ledger to come back. Whether Airflow lets them live depends on
    # whether its scheduler survived: if not, its workers end with it, and the leases run out.
    held.finish({"LEASE_LOST", "WORKER_LOST"})
    for part in ("api-server", "scheduler"):
        platform.stack.wait(part)
    # The next test begins with a platform that answers.
    wait_for(lambda: platform.service.sweep() == [], "something is still due", pause=0.5)
