"""
### Start what is due

Every 30 seconds: tasks that were submitted but never started, retries whose time has come, and
tasks whose worker was lost. Each gets a Dag run of its own. Two sweeps at once are harmless: the
second finds the runs of the first.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta

from airflow.sdk import dag, task


@dag(
    doc_md=__doc__,
    schedule=timedelta(seconds=30),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    access_control=json.loads(os.environ.get("MORAINE_AIRFLOW__ACCESS_CONTROL", "null")),
    tags=["moraine", "care"],
    default_args={"owner": "moraine", "execution_timeout": timedelta(minutes=5)},
)
def task_sweep() -> None:
    @task
    def sweep() -> list[str]:
        """Start runs; the return value lists the tasks that were started."""
        from moraine.operations.processes import dag_service

        with dag_service() as service:
            return [str(started.task_id) for started in service.sweep()]

    sweep()


task_sweep()
