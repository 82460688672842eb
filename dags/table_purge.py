"""
### Purge a table

Deletes every file of an Iceberg table, once, leaves first and the current metadata file last,
and shows that none is left. The table's entry in the catalog is not touched: the caller drops it
afterwards. With the property `dropTable`, the last step does.

| step | what it does |
| --- | --- |
| `admit` | finds the task that the run names, or writes a new one from the form |
| `acquire` | leases the task, loads the table from the catalog, checks and pins it |
| `plan` | Spark lists every reachable file and writes the inventory |
| `delete` | Spark deletes by phase; what an earlier attempt finished is not done again |
| `verify` | Spark looks for every file; one that is left fails the attempt; then the root goes |
| `settle` | drops the table if asked to; writes the outcome: success, a retry, or failure |

**Manually**: fill in the form, or trigger it with a configuration like this one. `dry_run` is on
by default: the run ends with the inventory and deletes nothing.

```json
{"catalog": "demo", "namespace": "shop", "table": "orders", "dry_run": true}
```

**Over REST** (`POST /delegation-service/api/v1/tasks`): the run names a `task_id`, and the other
fields only show what the task is about.

A red step is an attempt that failed. `settle` says what follows from it, and so does the run's
note. A run whose task is leased by another run, or finished, skips to the end.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from types import ModuleType

from airflow.sdk import Param, dag, get_current_context, task

SUBMITTED_APP = str(Path(__file__).resolve().parents[1] / "spark_apps" / "purge_table.py")


@dag(
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    tags=["moraine", "delegation"],
    default_args={"owner": "moraine", "retries": 0, "execution_timeout": timedelta(hours=24)},
    is_paused_upon_creation=False,
    access_control=json.loads(os.environ.get("MORAINE_AIRFLOW__ACCESS_CONTROL", "null")),
    max_active_runs=16,
    params={
        # Without a default and not nullable: Airflow refuses the form until they are filled in.
        "catalog": Param(
            type="string", minLength=1, title="Catalog", description="Its name in the settings"
        ),
        "namespace": Param(
            type="string", minLength=1, title="Namespace", description="Levels separated by dots"
        ),
        "table": Param(type="string", minLength=1, title="Table"),
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
            description="Only for runs that are started over REST; leave it empty.",
        ),
    },
)
def table_purge() -> None:
    @task
    def admit() -> str:
        """Find or write the task of this run."""
        context = get_current_context()
        return _dag_tasks().admit(context["params"], context["dag_run"].triggering_user_name)

    @task
    def acquire(task_id: str) -> None:
        _dag_tasks().acquire(task_id, _run_id())

    @task
    def plan(task_id: str) -> None:
        _dag_tasks().run_step("plan", task_id, _run_id(), SUBMITTED_APP)

    @task
    def delete(task_id: str) -> None:
        _dag_tasks().run_step("delete", task_id, _run_id(), SUBMITTED_APP)

    @task
    def verify(task_id: str) -> None:
        _dag_tasks().run_step("verify", task_id, _run_id(), SUBMITTED_APP)

    @task(trigger_rule="all_done")
    def settle(task_id: str) -> str:
        return _dag_tasks().settle(task_id, _run_id())

    admitted = admit()
    (
        acquire(admitted)
        >> plan(admitted)
        >> delete(admitted)
        >> verify(admitted)
        >> settle(admitted)
    )


def _dag_tasks() -> ModuleType:
    """Imported by the tasks only: parsing this file must stay fast."""
    from moraine.operations.purge import dag_tasks

    return dag_tasks


def _run_id() -> str:
    return str(get_current_context()["run_id"])


table_purge()
