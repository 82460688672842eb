"""Where the time of a small purge goes, from the HTTP request to the answer, on the warm stack.

Prints JSON: for each stretch of the way how long it took in each run. The stretches add up to the
whole. `wait_STEP` is Airflow's: from the end of the step before to the first line of this one.
`settle` ends with the ledger's last word on the task, `answer` with the response.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

from moraine.client.delegation import DelegationClient
from moraine.local.stack import Stack
from moraine.operations.processes import open_service
from moraine.operations.purge import OPERATION
from moraine.orchestration.dag_runs import AirflowSession
from moraine.settings import get_settings
from moraine.spark.session import connect
from moraine.tasks.store import TaskStore
from tables import write_many_files

FILES = 100
WARM_UPS, RUNS = 5, 9
STEPS = ("admit", "acquire", "plan", "delete", "verify", "settle")


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="moraine-bench-") as home,
        Stack.ephemeral(Path(home)) as stack,
        contextlib.redirect_stdout(sys.stderr),
    ):
        stack.up()
        os.environ.update(stack.environment())
        get_settings.cache_clear()
        figures = measure(stack)
    json.dump(figures, sys.stdout)


def measure(stack: Stack) -> dict[str, list[float]]:
    settings = get_settings()
    client, airflow = DelegationClient(settings), AirflowSession(settings.airflow)
    figures: dict[str, list[float]] = defaultdict(list)
    with open_service(settings) as service:
        for number, table in zip(range(WARM_UPS + RUNS), _tables(stack), strict=False):
            began = time.time()
            answer = client.purge("demo", [table], "events", wait=True)
            moments = [("", began), *_moments(airflow, service.store, answer, time.time())]
            assert answer["execution_result"]["files_deleted"] > FILES, answer
            if number < WARM_UPS:
                continue
            for (_, start), (name, end) in pairwise(moments):
                figures[name].append(end - start)
            figures["purge"].append(moments[-1][1] - began)
    return figures


def _tables(stack: Stack) -> Iterator[str]:
    """Fresh ones, each alone in its namespace."""
    number = 0
    while True:
        spark = connect(stack.spark.client_url)
        name = f"small_{number}"
        write_many_files(spark, f"demo.{name}.events", FILES)
        spark.stop()
        yield name
        number += 1


def _moments(
    airflow: AirflowSession, store: TaskStore, answer: dict[str, Any], answered: float
) -> Iterator[tuple[str, float]]:
    """When each stretch ended."""
    task_id = answer["delegation_task_id"]
    history = store.history(UUID(task_id))
    path = f"/api/v2/dags/{OPERATION.dag_id}/dagRuns/{task_id}.v1"
    run = airflow.request("GET", path).json()
    found = airflow.request("GET", f"{path}/taskInstances").json()["task_instances"]
    instances = {one["task_id"]: one for one in found}
    yield "admitted", history[0].last_status_change_ts.timestamp()
    yield "triggered", _seconds(run["queued_at"])
    for step in STEPS:
        instance = instances[step]
        yield f"wait_{step}", _seconds(instance["start_date"])
        if step != STEPS[-1]:
            yield step, _seconds(instance["end_date"])
    yield STEPS[-1], history[-1].last_status_change_ts.timestamp()
    yield "answer", answered


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


if __name__ == "__main__":
    main()
