"""
### Purge a table

Deletes every file of an Iceberg table, once, leaves first and the current metadata file last,
and shows that none is left. The table's entry in the catalog is not touched: whoever asked for the
purge drops it afterwards. With the property `dropTable`, the last step does.

| step | what it does |
| --- | --- |
| `admit` | writes the task in the ledger, when the run was started by hand |
| `acquire` | leases the task, loads the table from the catalog, checks and pins it |
| `plan` | Spark lists every reachable file and writes the inventory |
| `delete` | Spark deletes by phase; what an earlier attempt finished is not done again |
| `verify` | Spark looks for every file; one that is left fails the attempt; then the root goes |
| `settle` | drops the table if asked to; writes the outcome: success, a retry, or failure |

**By hand**: fill in the form. `dry_run` is on: the run ends with the inventory and deletes
nothing. **Over REST** (`POST /delegation-service/api/v1/tasks`): the run names a `task_id`.

A red step is an attempt that failed. `settle` says what follows from it; the run's note has it
too. A run that finds its task leased by another or finished skips to the end.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import Param, dag, get_current_context, task

SUBMITTED_APP = str(Path(__file__).resolve().parents[1] / "spark_apps" / "purge_table.py")


@dag(
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["moraine", "delegation"],
    default_args={"owner": "moraine", "retries": 0, "execution_timeout": timedelta(hours=24)},
    is_paused_upon_creation=False,
    max_active_runs=16,
    params={
        "catalog": Param("", type="string", title="Catalog", description="As the settings name it"),
        "namespace": Param(
            "", type="string", title="Namespace", description="Levels separated by dots"
        ),
        "table": Param("", type="string", title="Table"),
        "dry_run": Param(
            True,
            type="boolean",
            title="Dry run",
            description="List the files and delete nothing. Switch off to purge for real.",
        ),
        "properties": Param(
            {}, type=["object", "null"], title="Properties", description='{"skipTrash": "true"}'
        ),
        "task_id": Param(
            None,
            type=["string", "null"],
            title="Task id",
            description="Only for runs started over REST; leave it empty.",
        ),
    },
)
def table_purge() -> None:
    @task
    def admit() -> str:
        """Find or write the task of this run."""
        from moraine.operations.purge import runs

        return runs.admit(get_current_context()["params"])

    @task
    def acquire(task_id: str) -> None:
        from moraine.operations.purge import runs

        runs.acquire(task_id, _run_id())

    @task
    def plan(task_id: str) -> None:
        from moraine.operations.purge import runs

        runs.run_step("plan", task_id, _run_id(), SUBMITTED_APP)

    @task
    def delete(task_id: str) -> None:
        from moraine.operations.purge import runs

        runs.run_step("delete", task_id, _run_id(), SUBMITTED_APP)

    @task
    def verify(task_id: str) -> None:
        from moraine.operations.purge import runs

        runs.run_step("verify", task_id, _run_id(), SUBMITTED_APP)

    @task(trigger_rule="all_done")
    def settle(task_id: str) -> str:
        from moraine.operations.purge import runs

        return runs.settle(task_id, _run_id())

    admitted = admit()
    (
        acquire(admitted)
        >> plan(admitted)
        >> delete(admitted)
        >> verify(admitted)
        >> settle(admitted)
    )


def _run_id() -> str:
    return str(get_current_context()["run_id"])


table_purge()
