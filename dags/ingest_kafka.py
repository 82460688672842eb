"""
### Read Kafka topics into tables

Runs all the time: Spark reads the new messages of each topic in `ingest.kafka.topics`, and one
snapshot of the table takes the rows together with the next offsets. So every message is in the
table once, whatever is killed. Messages that do not fit the table go to its table of dead letters,
with topic, partition, offset, error and bytes.

A run ends after `ingest.kafka.run-duration`; the next one begins within ten seconds. Two runs at
once are harmless. While no topic is configured, a run waits for one, and looks at the settings
every five minutes.
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
    schedule=timedelta(seconds=10),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    access_control=json.loads(os.environ.get("MORAINE_AIRFLOW__ACCESS_CONTROL", "null")),
    tags=["moraine", "ingest"],
    default_args={"owner": "moraine", "retries": 0, "execution_timeout": timedelta(hours=25)},
)
def ingest_kafka() -> None:
    # A sensor that is rescheduled occupies no worker while no topic is configured.
    @task.sensor(mode="reschedule", poke_interval=300, timeout=timedelta(days=36500))
    def read() -> PokeReturnValue:
        """Read; the return value is how many messages were committed."""
        from moraine.ingest import dag_tasks

        return dag_tasks.read_topics(SUBMITTED_APP)

    read()


ingest_kafka()
