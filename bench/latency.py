"""How long a purge of 1,000 files takes from request to answer, and what that is made of.

Side by side on one warm stack: the synchronous purge, a bare Dag with as many empty tasks, and a
cold spark-submit of the same job.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from moraine.client.delegation import DelegationClient
from moraine.local.commands import ProgressDisplay
from moraine.local.stack import PROJECT, Stack
from moraine.operations.processes import open_service, submitted_worker
from moraine.operations.purge import OPERATION
from moraine.operations.purge import service as purge_steps
from moraine.operations.purge.model import PurgeParameters
from moraine.orchestration.dag_runs import AirflowSession
from moraine.settings import get_settings
from moraine.spark.session import connect
from moraine.tasks.service import Submission
from report import Report
from tables import write_many_files

FILES = 1000
WARM_UPS, RUNS, COLD_RUNS = 5, 7, 3
_REMOTE = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"}
console = Console()


def main() -> None:
    folder = tempfile.TemporaryDirectory(prefix="moraine-bench-")
    with folder as home, Stack.ephemeral(Path(home)) as stack:
        with ProgressDisplay(console) as progress:
            stack.up(on_event=progress, extra_env=_with_bench_dags())
        os.environ.update(stack.environment())
        get_settings.cache_clear()
        measure(stack)


def measure(stack: Stack) -> None:
    tables = _tables(stack)
    client = DelegationClient(get_settings())
    airflow = AirflowSession(get_settings().airflow)
    for _ in range(WARM_UPS):
        _purge(client, next(tables))
        _empty_dag(airflow)
    purges, dags = [], []
    steps_of: dict[str, list[float]] = defaultdict(list)
    for number in range(RUNS):
        task_id, seconds = _purge(client, next(tables))
        purges.append(seconds)
        for step, duration in _steps(airflow, task_id, seconds).items():
            steps_of[step].append(duration)
        dags.append(_empty_dag(airflow))
        console.print(f"run {number + 1}: purge {purges[-1]:.2f} s, empty Dag {dags[-1]:.2f} s")
    cold = [_cold_submit(client, next(tables)) for _ in range(COLD_RUNS)]
    report = Report("latency", "Synchronous purge of 1,000 files on a warm stack")
    report.figure("sync_purge_s", purges)
    report.figure("empty_dag_s", dags)
    report.figure("cold_submit_s", cold)
    for step, durations in steps_of.items():
        report.figure(f"step_{step}_s", durations)
    report.ratio("sync_purge_vs_empty_dag", median(purges) / median(dags), aim="2 or less")
    report.ratio("sync_purge_vs_cold_submit", median(purges) / median(cold), aim="0.3 or less")
    report.finish()


def _with_bench_dags() -> dict[str, str]:
    bundles = [
        {
            "name": name,
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(path)},
        }
        for name, path in (("dags-folder", PROJECT / "dags"), ("bench", PROJECT / "bench/dags"))
    ]
    return {"AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles)}


def _tables(stack: Stack) -> Iterator[str]:
    """Fresh tables, each written when it is asked for."""
    number = 0
    while True:
        spark = connect(stack.spark.client_url)
        name = f"files_{number}"
        write_many_files(spark, f"demo.bench.{name}", FILES)
        spark.stop()
        yield name
        number += 1


def _purge(client: DelegationClient, table: str) -> tuple[str, float]:
    started = time.monotonic()
    answer = client.purge("demo", ["bench"], table, wait=True)
    seconds = time.monotonic() - started
    assert answer["execution_result"]["files_deleted"] > FILES, answer
    return answer["delegation_task_id"], seconds


def _empty_dag(airflow: AirflowSession) -> float:
    """From the trigger over REST to the end that Airflow itself records."""
    started = time.time()
    path = "/api/v2/dags/empty_chain/dagRuns"
    run = airflow.request("POST", path, json={"logical_date": None}).json()
    while run["state"] in ("queued", "running"):
        time.sleep(0.05)
        run = airflow.request("GET", f"{path}/{run['dag_run_id']}").json()
    assert run["state"] == "success", run
    return datetime.fromisoformat(run["end_date"]).timestamp() - started


def _steps(airflow: AirflowSession, task_id: str, total: float) -> dict[str, float]:
    """The time inside each step that had ended by then; the rest is Airflow's and settle's."""
    path = f"/api/v2/dags/{OPERATION.dag_id}/dagRuns/{task_id}.v1/taskInstances"
    instances: list[dict[str, Any]] = airflow.request("GET", path).json()["task_instances"]
    inside = {one["task_id"]: one["duration"] for one in instances if one["duration"]}
    return {**inside, "rest": total - sum(inside.values())}


def _cold_submit(client: DelegationClient, table: str) -> float:
    """The same steps by a spark-submit of its own, from its start to its end."""
    payload = client.purge_payload("demo", ["bench"], table)["operation_parameters"]
    settings = get_settings()
    submission = Submission(
        OPERATION, PurgeParameters.model_validate(payload), settings.realm, "bench"
    )
    with open_service(settings) as service, submitted_worker("bench") as worker:
        task = service.admit(submission)
        purge_steps.acquire(worker, task.task_id)
        started = time.monotonic()
        subprocess.run(
            [
                Path(os.environ["SPARK_HOME"]) / "bin/spark-submit",
                *("--master", "local[2]"),
                PROJECT / "spark_apps/purge_table.py",
                *(str(task.task_id), "bench", *purge_steps.SPARK_STEPS),
            ],
            check=True,
            capture_output=True,
            # Connecting has told this process, by variables, that its Spark is a remote one.
            env={k: v for k, v in os.environ.items() if k not in _REMOTE},
        )
        seconds = time.monotonic() - started
        ended, _ = purge_steps.settle(worker, task.task_id)
    assert ended.result is not None, ended
    assert ended.result["files_deleted"] > FILES, ended
    return seconds


if __name__ == "__main__":
    main()
