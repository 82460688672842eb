"""The whole platform, for the tests that need all of it: one stack, started once.

`PLATFORM_HOME=/some/folder pytest tests/e2e` keeps the stack there and running, so that the next
run does not wait for its start.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import UUID

import psutil
import pyarrow.parquet
import pytest

from moraine.catalog.client import LoadedTable, RestCatalog
from moraine.client.delegation import ApiError, DelegationClient
from moraine.errors import MoraineError
from moraine.failpoints import known
from moraine.local.processes import MARK, inherited_environment
from moraine.local.stack import Stack
from moraine.operations.processes import open_service
from moraine.orchestration.dag_runs import AirflowSession
from moraine.settings import Settings
from moraine.storage.files import local_path
from moraine.tasks.model import Status, Task, TaskVersion, task_folder
from moraine.tasks.service import TaskService
from support.waiting import PATIENCE, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG, NAMESPACE = "demo", "shop"
LEASE = 8
HEARTBEAT = 0.5
MAX_ATTEMPTS = 4
SYNC = "/v1/tasks/execute/synchronous"

_SHORT_SETTINGS = {
    "MORAINE_DELEGATION__RETRY__TABLE_PURGE__MAX_ATTEMPTS": str(MAX_ATTEMPTS),
    "MORAINE_DELEGATION__RETRY__TABLE_PURGE__INITIAL_BACKOFF_DURATION": "1s",
    "MORAINE_DELEGATION__RETRY__TABLE_PURGE__BACKOFF_MULTIPLIER": "1",
    "MORAINE_DELEGATION__TASK__LEASE__LOST_TIMEOUT_DURATION": f"{LEASE}s",
    "MORAINE_DELEGATION__TASK__LEASE__HEARTBEAT_INTERVAL": f"{HEARTBEAT}s",
    # Tables are small here: their content is deleted as that of a large one, by executors, and the
    # few files of later phases by the step itself.
    "MORAINE_PURGE__SMALL_TABLE_FILES": "2",
    "MORAINE_DELEGATION__SYNCHRONOUS__WAIT_LIMIT": f"{PATIENCE}s",
    # One of these holds a purge at each of its points.
    "AIRFLOW__CORE__PARALLELISM": "32",
}


@dataclass(frozen=True)
class Table:
    """A table of the demo catalog, and its folder on this machine's disk."""

    name: str
    folder: Path

    @property
    def subject(self) -> str:
        return f"{CATALOG}.{NAMESPACE}.{self.name}"

    def files(self) -> dict[str, str]:
        """Every file below the table's folder, with a checksum of its content."""
        return checksums(self.folder)


class Failpoints:
    """Arms the platform's failpoints; see moraine.failpoints. An unknown name is an error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def kill_at(self, name: str) -> None:
        self._arm(name, "kill")

    def hold_at(self, name: str) -> None:
        self._arm(name, "hold")

    def armed(self, name: str) -> bool:
        """Whether no process has reached the point since it was last armed."""
        return (self.folder / known(name)).exists()

    def hit(self, name: str) -> bool:
        return self._held(name).exists()

    def wait_until_hit(self, name: str) -> None:
        wait_for(lambda: self.hit(name), f"no process reached the failpoint {name}")

    def release(self, name: str) -> None:
        self._held(name).unlink()

    def clear(self) -> None:
        """Release and disarm all points."""
        for file in self.folder.iterdir():
            file.unlink(missing_ok=True)

    def _held(self, name: str) -> Path:
        return self.folder / f"{known(name)}.held"

    def _arm(self, name: str, what: str) -> None:
        # Written under another name first: a process may look at this very moment.
        draft = self.folder / f".{known(name)}"
        draft.write_text(what)
        draft.rename(self.folder / name)


class Platform:
    """What a test has at hand: the callers' API, the operators' tools, and the disk."""

    def __init__(self, stack: Stack, service: TaskService, failpoints: Failpoints) -> None:
        self.stack = stack
        self.service = service
        self.failpoints = failpoints
        self.settings = service.settings
        self.client = DelegationClient(self.settings)
        self.airflow = AirflowSession(self.settings.airflow)
        self.catalog = RestCatalog(self.settings.catalogs[CATALOG])
        self._names = iter(range(1, 1_000_000))
        self._spark: SparkSession | None = None

    def restart(self) -> None:
        """Take the whole stack down and up again."""
        self.close_spark()
        self.stack.down()
        self.stack.up(extra_env=_variables(self.failpoints))

    # --- Tables -----------------------------------------------------------------------------

    @property
    def spark(self) -> SparkSession:
        """A session of the tests' own, on the server that the Dags use."""
        if self._spark is None:
            from pyspark.sql import SparkSession

            self._spark = SparkSession.builder.remote(self.stack.spark.client_url).create()
        return self._spark

    def close_spark(self) -> None:
        """Also after the server was killed: it does not know the session any more."""
        if self._spark is not None:
            with contextlib.suppress(Exception):
                self._spark.stop()
            self._spark = None

    def new_table(self) -> Table:
        """A name that no table has yet."""
        return self.table(f"t{next(self._names)}_{time.time_ns() // 1_000_000}")

    def table(self, name: str) -> Table:
        return Table(name, self.warehouse / NAMESPACE / name)

    def write_table(self, table: Table | None = None, **properties: str) -> Table:
        """A small table: two snapshots and a row-level delete."""
        table = table or self.new_table()
        given = {"format-version": "2", "write.delete.mode": "merge-on-read", **properties}
        options = ", ".join(f"'{name}' = '{value}'" for name, value in given.items())
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{NAMESPACE}")
        self.spark.sql(
            f"CREATE TABLE {table.subject} USING iceberg TBLPROPERTIES ({options}) "
            "AS SELECT id, id * 2 AS double FROM range(0, 100, 1, 2)"
        )
        self.spark.sql(f"DELETE FROM {table.subject} WHERE id = 7")
        return table

    def load(self, table: Table) -> LoadedTable:
        return self.catalog.load_table([NAMESPACE], table.name)

    def inventory(self, location: str) -> set[str]:
        """The paths that a task's inventory names."""
        files = pyarrow.parquet.read_table(local_path(location), columns=["path"])
        return {local_path(path) for path in files["path"].to_pylist()}

    @property
    def warehouse(self) -> Path:
        return self.stack.catalog.warehouse

    # --- Tasks ------------------------------------------------------------------------------

    def payload(self, table: Table, **parameters: Any) -> dict[str, Any]:
        """A request to purge a table. `parameters` are laid over `operation_parameters`."""
        payload = self.client.purge_payload(CATALOG, [NAMESPACE], table.name)
        payload["operation_parameters"] |= parameters
        return payload

    def submit(self, table: Table, **parameters: Any) -> UUID:
        answer = self.client.call("POST", "/v1/tasks", json=self.payload(table, **parameters))
        return UUID(answer["delegation_task_id"])

    def execute(self, table: Table, **parameters: Any) -> dict[str, Any]:
        """The synchronous endpoint. An answer other than 200 is an ApiError."""
        payload = self.payload(table, **parameters)
        return self.client.call("POST", SYNC, json=payload, timeout=PATIENCE + 30)

    def post(self, payload: dict[str, Any]) -> dict[str, Any] | ApiError:
        """The synchronous endpoint's answer, whether it is good or bad."""
        try:
            return self.client.call("POST", SYNC, json=payload, timeout=PATIENCE + 30)
        except ApiError as error:
            return error

    def executing(self, table: Table, **parameters: Any) -> Future[dict[str, Any]]:
        """The same in the background."""
        future: Future[dict[str, Any]] = Future()

        def run() -> None:
            try:
                future.set_result(self.execute(table, **parameters))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="caller", daemon=True).start()
        return future

    def task(self, task_id: UUID | str) -> Task:
        return self.service.store.get(UUID(str(task_id)))

    def history(self, task_id: UUID | str) -> list[TaskVersion]:
        return self.service.store.history(UUID(str(task_id)))

    def task_of(self, table: Table) -> Task:
        """The newest task about a table, once there is one."""
        found = wait_for(
            lambda: self.client.tasks(table=table.subject, limit=1)["tasks"], "no task was written"
        )
        return self.task(found[0]["delegation_task_id"])

    def wait_for_state(self, task_id: UUID | str, *states: Status) -> Task:
        def look() -> Task | None:
            task = self.task(task_id)
            return task if task.status in states else None

        return wait_for(look, lambda: f"the task did not become {states}: {self.task(task_id)}")

    def wait_until_noticed(self, task_id: UUID | str) -> None:
        """Until the worker of a task knows that it was cancelled: it renews its lease no more."""

        def look() -> bool:
            seen = self.task(task_id).lease_expires_ts
            time.sleep(3 * HEARTBEAT)
            return self.task(task_id).lease_expires_ts == seen

        wait_for(look, "the worker goes on", pause=0)

    def finish(self, task_id: UUID | str, *, patience: float = PATIENCE) -> Task:
        """Wait for a task's end. The sweep's schedule is 30 s; here it goes all the time."""

        def look() -> Task | None:
            with contextlib.suppress(MoraineError):  # what is down comes back
                task = self.task(task_id)
                if task.status.terminal:
                    return task
                self.service.sweep()
            return None

        return wait_for(
            look, lambda: f"the task has no end: {self.task(task_id)}", patience, pause=0.4
        )

    def folder_of(self, task_id: UUID) -> Path:
        """Where a task keeps its inventory."""
        return Path(local_path(task_folder(self.settings.workspace, task_id)))

    def environment(self) -> dict[str, str]:
        """Of a process that uses the platform."""
        return self.stack.environment({**inherited_environment(), **_SHORT_SETTINGS})

    # --- Airflow ----------------------------------------------------------------------------

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None) -> str:
        """Start a Dag run as the UI's form does; its id."""
        response = self.airflow.request(
            "POST",
            f"/api/v2/dags/{dag_id}/dagRuns",
            json={"logical_date": None, "conf": dict(conf or {})},
        )
        assert response.status_code == 200, response.text
        return str(response.json()["dag_run_id"])

    def get(self, path: str) -> dict[str, Any]:
        response = self.airflow.request("GET", f"/api/v2/{path}")
        assert response.status_code == 200, response.text
        return dict(response.json())

    def run(self, run_id: str, dag_id: str = "table_purge") -> dict[str, Any]:
        return self.get(f"dags/{dag_id}/dagRuns/{run_id}")

    def finished_run(self, run_id: str, dag_id: str = "table_purge") -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            run = self.run(run_id, dag_id)
            return run if run["state"] in ("success", "failed") else None

        return wait_for(look, f"the run {run_id} has no end")

    def runs_since(self, moment: datetime, dag_id: str, **filters: str) -> list[dict[str, Any]]:
        """The Dag runs that were started since then, newest first."""
        wanted = {"start_date_gte": moment.isoformat(), "order_by": "-start_date", **filters}
        return list(self.get(f"dags/{dag_id}/dagRuns?{urlencode(wanted)}")["dag_runs"])

    def runs_of(self, task_id: UUID | str) -> list[dict[str, Any]]:
        """The Dag runs that were started for a task, oldest first."""
        answer = self.get(f"dags/table_purge/dagRuns?run_id_pattern={task_id}&limit=100")
        return sorted(answer["dag_runs"], key=lambda run: run["run_after"])

    def task_states(self, run_id: str, dag_id: str = "table_purge") -> dict[str, str]:
        answer = self.get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")
        return {task["task_id"]: task["state"] for task in answer["task_instances"]}

    def mark_failed(self, run_id: str, step: str) -> None:
        """As an operator does it in the UI."""
        path = f"/api/v2/dags/table_purge/dagRuns/{run_id}/taskInstances/{step}"
        response = self.airflow.request("PATCH", path, json={"new_state": "failed"})
        assert response.status_code == 200, response.text

    def log_of(self, run_id: str, step: str) -> str:
        """What a person reads in the UI as the log of a step."""
        path = f"dags/table_purge/dagRuns/{run_id}/taskInstances/{step}/logs/1?full_content=true"
        return str(self.get(path)["content"])

    def process_of(self, run_id: str, step: str) -> psutil.Process:
        """The process that runs a step; its parent is Airflow's supervisor of it."""
        path = f"dags/table_purge/dagRuns/{run_id}/taskInstances/{step}"
        process = psutil.Process(self.get(path)["pid"])
        assert process.environ()[MARK] == str(self.stack.home)
        return process


def checksums(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def running_platform(new_home: Callable[[], Path]) -> Iterator[Platform]:
    """Every part of the stack, with short settings, and no process left afterwards."""
    kept = os.environ.get("PLATFORM_HOME")
    home = Path(kept) if kept else new_home()
    stack = (
        Stack.open(home)
        if (home / "stack.json").exists()
        else Stack.ephemeral(home, spark_master="local[4]")
    )
    failpoints = Failpoints(home / "failpoints")
    failpoints.folder.mkdir(parents=True, exist_ok=True)
    failpoints.clear()
    try:
        stack.up(extra_env=_variables(failpoints))
        with open_service(_settings_of(stack)) as service:
            platform = Platform(stack, service, failpoints)
            try:
                yield platform
            finally:
                failpoints.clear()
                platform.close_spark()
    finally:
        if not kept:
            stack.down()
    assert kept or stack._processes() == []


def _variables(failpoints: Failpoints) -> dict[str, str]:
    return {**_SHORT_SETTINGS, "MORAINE_FAILPOINTS": str(failpoints.folder)}


def _settings_of(stack: Stack) -> Settings:
    """As the stack's own processes have them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**stack.environment(), **_SHORT_SETTINGS}.items():
            if name.startswith("MORAINE_"):
                patch.setenv(name, value)
        return Settings()
