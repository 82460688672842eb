"""
### Write what clients send

Runs all the time: takes the requests that wait in the ingest ledger, many for a table at once, lets
Spark coerce and write their rows, and commits these with the requests' keys. A run ends after
`ingest.writer.run-duration`, or when Spark is lost; the next one begins within ten seconds.
Stopping it loses nothing: the requests that it had claimed wait again. While ingest is off, a run
waits for it, and looks at the settings every five minutes.

A second writer is harmless, on this machine or another: `spark-submit spark_apps/ingest_batch.py`.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import PokeReturnValue, dag, task

SUBMITTED_APP = str(Path(__file__).resolve().parents[1] / "spark_apps" / "ingest_batch.py")


@dag(
    doc_md=__doc__,
    # Not @continuous: that starts no further run after one that failed before it began.
    schedule=timedelta(seconds=10),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    access_control=json.loads(os.environ.get("MORAINE_AIRFLOW__ACCESS_CONTROL", "null")),
    tags=["moraine", "ingest"],
    default_args={"owner": "moraine", "retries": 0, "execution_timeout": timedelta(hours=25)},
)
def ingest_write() -> None:
    # A sensor that is rescheduled occupies no worker while ingest is off.
    @task.sensor(mode="reschedule", poke_interval=300, timeout=timedelta(days=36500))
    def write() -> PokeReturnValue:
        """Write; the return value is how many requests were settled."""
        from moraine.ingest import dag_tasks

        return dag_tasks.write(SUBMITTED_APP)

    write()


ingest_write()
