"""
### Write what the doors take in

Runs all the time: takes what waits in the ingest ledger, many requests for a table at once, lets
Spark coerce and write it, and commits it with its keys. A run ends by itself after
`ingest.writer.run-duration`, or when Spark went away; the next one begins within ten seconds.
Stopping it loses nothing: what it had under way waits again.

A second writer is harmless, on this machine or another: `spark-submit spark_apps/ingest_batch.py`.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag, task

from moraine.settings import get_settings

SUBMITTED_APP = str(Path(__file__).resolve().parents[1] / "spark_apps" / "ingest_batch.py")


@dag(
    doc_md=__doc__,
    # Not @continuous: after a run that failed before it began, that never makes another.
    schedule=timedelta(seconds=10) if get_settings().ingest_is_on else None,
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["moraine", "ingest"],
    default_args={"owner": "moraine", "retries": 0, "execution_timeout": timedelta(hours=25)},
)
def ingest_write() -> None:
    @task
    def write() -> int:
        """Write; the return value is how many requests were settled."""
        from moraine.ingest import runs

        return runs.write(SUBMITTED_APP)

    write()


ingest_write()
