"""Drivers of purges without Airflow: one process per attempt, from the lease to the settlement.

They do what the Dag's tasks do, with the same code, and start in a moment: a server that has
imported everything forks them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from uuid import UUID

import pytest

from moraine.errors import MoraineError
from moraine.operations.processes import submitted_worker
from moraine.operations.purge import service as purge_steps
from moraine.settings import CatalogSettings, Settings
from moraine.spark.session import SessionFactory, connect
from moraine.tasks.store import TaskStore
from moraine.tasks.worker import Worker
from support.platform import Platform
from support.waiting import wait_for

_PRELOADED = ["support.drivers", "pyspark.sql.connect.session", "pandas"]
_AT_ONCE = 3


class Drivers:
    """`environment` has the settings of the drivers' processes."""

    def __init__(self, environment: Mapping[str, str], spark_url: str, store: TaskStore) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)
        with pytest.MonkeyPatch.context() as patch:
            # The server does not inherit this process's path, and ignores modules it cannot find.
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
            forkserver.ensure_running()
        self._arguments = (dict(environment), spark_url)
        self._store = store
        self._number = 0

    @classmethod
    def of(cls, platform: Platform) -> Drivers:
        environment = {
            **platform.environment(),
            "MORAINE_FAILPOINTS": str(platform.failpoints.folder),
        }
        return cls(environment, platform.stack.spark.session_url, platform.service.store)

    def start(self, task_id: UUID) -> BaseProcess:
        self._number += 1
        arguments = (*self._arguments, task_id, f"driver-{self._number}")
        process = self._context.Process(target=_attempt_alone, args=arguments, daemon=True)
        process.start()
        return process

    def finish(self, task_ids: Iterable[UUID]) -> None:
        """Attempt after attempt until every task has its end, a few at a time."""
        waiting = list(task_ids)
        running: dict[UUID, BaseProcess] = {}

        def look() -> bool:
            for task_id, process in list(running.items()):
                if not process.is_alive():
                    del running[task_id]
            for task_id in [one for one in waiting if one not in running]:
                if self._store.get(task_id).status.terminal:
                    waiting.remove(task_id)
                elif len(running) < _AT_ONCE and self._is_due(task_id):
                    running[task_id] = self.start(task_id)
            return not waiting

        wait_for(look, lambda: f"no end: {[self._store.get(one) for one in waiting]}", 150)

    def _is_due(self, task_id: UUID) -> bool:
        return task_id in {task.task_id for task in self._store.due(100)}


def settings_for(folder: Path, catalogs: dict[str, CatalogSettings]) -> Settings:
    """The settings of a purge that is retried at once."""
    return Settings.model_validate(
        {
            "workspace": folder.as_uri(),
            "catalogs": {name: catalog.revealed() for name, catalog in catalogs.items()},
            "delegation": {
                "retry": {
                    "TABLE_PURGE": {
                        "initial_backoff_duration": "0s",
                        "max_backoff_duration": "0s",
                    }
                },
                "task": {"lease": {"lost_timeout_duration": "20s", "heartbeat_interval": "0.5s"}},
            },
        }
    )


@contextlib.contextmanager
def without_scheduled_sweeps(platform: Platform) -> Iterator[None]:
    """Only the test itself starts attempts."""
    pause = partial(platform.airflow.request, "PATCH", "/api/v2/dags/task_sweep")
    pause(json={"is_paused": True})
    try:
        yield
    finally:
        pause(json={"is_paused": False})


def attempt(worker: Worker, task_id: UUID, spark: SessionFactory) -> None:
    """What the tasks of the Dag do, one after another. The ledger has the outcome."""
    with contextlib.suppress(MoraineError):
        if purge_steps.acquire(worker, task_id) is None:
            return
        for step in purge_steps.SPARK_STEPS.values():
            step(worker, task_id, spark)
    purge_steps.settle(worker, task_id)


def _attempt_alone(
    environment: Mapping[str, str], spark_url: str, task_id: UUID, owner: str
) -> None:
    os.environ.update(environment)
    with submitted_worker(owner) as worker:
        attempt(worker, task_id, lambda: connect(spark_url))
    # A Connect client that lost its server would wait for it at the end.
    os._exit(0)
