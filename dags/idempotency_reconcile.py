"""
### Settle abandoned keys

Every 5 minutes: requests with an `Idempotency-Key` whose outcome is unknown and whose client has
not come back. If the catalog shows the change, the key is finalized, so that a late retry gets its
answer; if not, the key is released. Tombstones of tables without a purge task are lifted. Two runs
at once are harmless.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta

from airflow.sdk import dag, task


@dag(
    doc_md=__doc__,
    schedule=timedelta(minutes=5),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=False,
    access_control=json.loads(os.environ.get("MORAINE_AIRFLOW__ACCESS_CONTROL", "null")),
    tags=["moraine", "care"],
    default_args={"owner": "moraine", "execution_timeout": timedelta(minutes=4)},
)
def idempotency_reconcile() -> None:
    @task
    def reconcile() -> dict[str, int]:
        """Settle; the return value is how many keys were finalized, released and left."""
        from moraine.gateway.reconcile import reconcile_keys

        return reconcile_keys()

    reconcile()


idempotency_reconcile()
