"""The Dags: what parsing them imports, what they say about themselves, and the two that care for
the ledger at work."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from moraine.local.stack import PROJECT
from moraine.operations.purge import OPERATION
from moraine.operations.purge.model import PurgeParameters
from moraine.tasks.model import Status, Task
from moraine.tasks.service import Submission
from support.platform import Platform

DAGS = {
    "idempotency_reconcile",
    "ingest_filedrop",
    "ingest_kafka",
    "ingest_write",
    "ledger_cleanup",
    "table_purge",
    "task_sweep",
}
# They take long to import, and only a running task uses them.
_HEAVY = {"fastapi", "numpy", "pandas", "pyarrow", "pyspark", "requests"}
# Imported by every process of Airflow, through the stack's airflow_local_settings.py.
_BY_AIRFLOW = {"moraine", "moraine.local", "moraine.local.scheduler"}
_IMPORTED = """
import json, runpy, sys
for path in sys.argv[1:]:
    runpy.run_path(path)
print(json.dumps(list(sys.modules)))
"""

_ACCESS = """
import json, runpy, sys
import airflow.sdk
def dag(*, access_control, **_others):
    print(json.dumps(access_control))
    return lambda function: lambda: None
airflow.sdk.dag = dag
for path in sys.argv[1:]:
    runpy.run_path(path)
"""


def test_dags_parse_without_an_error(platform: Platform) -> None:
    assert platform.get("importErrors")["import_errors"] == []
    assert {dag["dag_id"] for dag in platform.get("dags")["dags"]} == DAGS


def test_dag_parsing_imports_no_code_of_moraine(platform: Platform) -> None:
    own = {name for name in imported_by_parsing(platform) if name.split(".")[0] == "moraine"}
    assert own <= _BY_AIRFLOW


def test_dag_parsing_imports_nothing_heavy(platform: Platform) -> None:
    imported = imported_by_parsing(platform)
    assert "airflow" in imported
    assert imported & _HEAVY == set()


@pytest.mark.parametrize("given", [None, {"purgers": {"DAG Runs": ["can_read"]}}])
def test_dags_have_the_access_control_of_the_settings(platform: Platform, given: Any) -> None:
    variable = {"MORAINE_AIRFLOW__ACCESS_CONTROL": json.dumps(given)} if given else {}
    printed = output_of_parsing(_ACCESS, {**platform.environment(), **variable})
    assert [json.loads(line) for line in printed[-len(DAGS) :]] == [given] * len(DAGS)


def imported_by_parsing(platform: Platform) -> set[str]:
    return set(json.loads(output_of_parsing(_IMPORTED, platform.environment())[-1]))


def output_of_parsing(script: str, environment: dict[str, str]) -> list[str]:
    files = sorted(str(path) for path in (PROJECT / "dags").glob("*.py"))
    assert len(files) == len(DAGS)
    done = subprocess.run(
        [sys.executable, "-c", script, *files],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("dag_id", sorted(DAGS))
def test_dag_has_an_owner_and_a_description(platform: Platform, dag_id: str) -> None:
    dag = platform.get(f"dags/{dag_id}/details")
    assert dag["owners"] == ["moraine"]
    assert "moraine" in {tag["name"] for tag in dag["tags"]}
    assert dag["doc_md"].startswith("### ")
    assert dag["is_paused"] is False


def admitted(platform: Platform) -> Task:
    """A task that is in the ledger and was never started."""
    table = platform.write_table()
    parameters = platform.payload(table)["operation_parameters"]
    asked = PurgeParameters.model_validate(parameters)
    return platform.service.admit(Submission(OPERATION, asked, platform.settings.realm, "test"))


def test_sweep_dag_starts_tasks_that_were_never_started(platform: Platform) -> None:
    task = admitted(platform)
    run_id = platform.trigger("task_sweep")
    assert platform.finished_run(run_id, "task_sweep")["state"] == "success"
    ended = platform.wait_for_state(task.task_id, Status.SUCCESS, Status.FAILURE)
    assert (ended.status, ended.attempt_count) == (Status.SUCCESS, 1)
    assert len(platform.runs_of(task.task_id)) == 1


def test_cleanup_dag_removes_old_tasks_with_their_folder(platform: Platform) -> None:
    old, young = _ended(platform), _ended(platform)
    folders = [platform.folder_of(task.task_id) for task in (old, young)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "inventory").write_text("kept as long as the task")
    age = platform.settings.delegation.task.retention + timedelta(minutes=1)
    with psycopg.connect(platform.stack.postgres.ledger_url) as ledger:
        ledger.execute(
            "UPDATE tasks SET last_status_change_ts = now() - %s WHERE task_id = %s",
            [age, old.task_id],
        )

    run_id = platform.trigger("ledger_cleanup")

    assert platform.finished_run(run_id, "ledger_cleanup")["state"] == "success"
    store = platform.service.store
    assert store.get_many([old.task_id, young.task_id]) == [store.get(young.task_id)]
    assert store.history(old.task_id) == []
    assert [folder.exists() for folder in folders] == [False, True]


def _ended(platform: Platform) -> Task:
    """A task that was cancelled before it began."""
    parameters = platform.payload(platform.new_table())["operation_parameters"]
    asked = PurgeParameters.model_validate(parameters)
    task = platform.service.admit(Submission(OPERATION, asked, platform.settings.realm, "test"))
    return platform.service.cancel(task.task_id)
