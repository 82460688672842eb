"""
### Take dropped files

Runs all the time: looks for files at `DATABASE/TABLE/FILE` below the prefixes in
`ingest.filedrop.prefixes`, and writes those that are new and complete to their tables. A run ends
after `ingest.filedrop.watch-duration`; the next begins within ten seconds. A bad file is set aside
with its error beside it. A store that does not answer fails the run, after everything else is done.
While no prefix is configured, a run waits for one, and looks at the settings every five minutes.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta

from airflow.sdk import PokeReturnValue, dag, task


@dag(
    doc_md=__doc__,
    schedule=timedelta(seconds=10),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    access_control=json.loads(os.environ.get("MORAINE_AIRFLOW__ACCESS_CONTROL", "null")),
    tags=["moraine", "ingest"],
    default_args={"owner": "moraine", "execution_timeout": timedelta(hours=24)},
)
def ingest_filedrop() -> None:
    # A sensor that is rescheduled occupies no worker while no prefix is configured.
    @task.sensor(mode="reschedule", poke_interval=300, timeout=timedelta(days=36500))
    def take() -> PokeReturnValue:
        """Take files; the return value counts those taken, done, refused and left."""
        from moraine.ingest import dag_tasks

        return dag_tasks.take_files()

    take()


ingest_filedrop()
