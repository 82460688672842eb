"""
### Clean the ledger

Hourly: removes finished tasks older than `delegation.task.retention`, in batches, with their
history and their folder in the workspace. A live task is never touched. What is removed stays in
the totals that the metrics show. Also removes expired idempotency keys, those of ingest included,
after their grace period.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta

from airflow.sdk import dag, task


@dag(
    doc_md=__doc__,
    schedule="@hourly",
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    access_control=json.loads(os.environ.get("MORAINE_AIRFLOW__ACCESS_CONTROL", "null")),
    tags=["moraine", "care"],
    default_args={
        "owner": "moraine",
        "retries": 2,
        "retry_delay": timedelta(minutes=1),
        "execution_timeout": timedelta(minutes=30),
    },
)
def ledger_cleanup() -> None:
    @task
    def cleanup() -> int:
        """Remove tasks; the return value is how many."""
        from moraine.operations.processes import dag_service

        with dag_service() as service:
            return service.cleanup()

    @task
    def forget_keys() -> int:
        """Remove expired keys; the return value is how many."""
        from moraine.idempotency.cleanup import forget_expired_keys

        return forget_expired_keys()

    @task
    def forget_ingested_keys() -> int:
        """Remove expired ingest keys; the return value is how many."""
        from moraine.ingest.processes import forget_ingested_keys as forget

        return forget()

    cleanup()
    forget_keys()
    forget_ingested_keys()


ledger_cleanup()
