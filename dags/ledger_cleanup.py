"""
### Clean the ledger

Hourly: removes finished tasks older than `delegation.task.retention`, in batches, with their
history and their folder in the workspace. A live task is never touched. What is removed stays in
the totals that the metrics show. Also removes idempotency keys whose lifetime and grace are over,
those of ingest among them.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task


@dag(
    doc_md=__doc__,
    schedule="@hourly",
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
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
        """Remove; the return value is how many tasks went."""
        from moraine.runtime import dag_service

        with dag_service() as service:
            return service.cleanup()

    @task
    def forget_keys() -> int:
        """Remove expired keys; the return value is how many went."""
        from moraine.runtime import forget_expired_keys

        return forget_expired_keys()

    @task
    def forget_ingested_keys() -> int:
        """Remove ingest keys that are over; the return value is how many went."""
        from moraine import runtime

        return runtime.forget_ingested_keys()

    cleanup()
    forget_keys()
    forget_ingested_keys()


ledger_cleanup()
