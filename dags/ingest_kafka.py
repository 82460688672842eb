"""
### Read Kafka topics into tables

Runs all the time if `ingest.kafka.topics` names any: Spark reads what is new in each topic, and the
table's snapshot takes the rows together with the offsets that come next. So every message is in the
table once, whatever is killed. Messages that do not fit the table are in the table of dead letters
beside it, with topic, partition, offset, error and bytes.

A run ends by itself after `ingest.kafka.run-duration`; the next one begins within ten seconds. Two
at once are harmless.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag, task

from moraine.settings import get_settings

settings = get_settings()
kafka = settings.ingest.kafka
SUBMITTED_APP = str(Path(__file__).resolve().parents[1] / "spark_apps" / "ingest_batch.py")


@dag(
    doc_md=__doc__,
    schedule=timedelta(seconds=10) if settings.ingest_is_on and kafka.enabled else None,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["moraine", "ingest"],
    default_args={"owner": "moraine", "retries": 0, "execution_timeout": timedelta(hours=25)},
)
def ingest_kafka() -> None:
    @task
    def read() -> int:
        """Read; the return value is how many messages were committed."""
        from moraine.ingest import runs

        return runs.read_topics(SUBMITTED_APP)

    read()


ingest_kafka()
