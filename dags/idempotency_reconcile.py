"""
### Settle abandoned keys

Every 5 minutes: requests with an `Idempotency-Key` whose outcome nobody knows, and that nobody has
come back for. If the catalog shows the change, the key is finalized, so that a late repetition gets
its answer; if not, the key is released. Tombstones of tables whose purge was never written down are
lifted. Two runs at once are harmless.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag, task


@dag(
    doc_md=__doc__,
    schedule=timedelta(minutes=5),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    tags=["moraine", "care"],
    default_args={"owner": "moraine", "execution_timeout": timedelta(minutes=4)},
)
def idempotency_reconcile() -> None:
    @task
    def reconcile() -> dict[str, int]:
        """Settle; the return value is how many keys were finalized, released and left."""
        from moraine.runtime import reconcile_keys

        return reconcile_keys()

    reconcile()


idempotency_reconcile()
