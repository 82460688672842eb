"""The same purge where the Spark connection is a master URL: by spark-submit."""

from __future__ import annotations

import json
import subprocess
import sys

from moraine.local.stack import PROJECT
from moraine.tasks.model import Status
from support.platform import CATALOG, NAMESPACE, Platform

# What the Dag's tasks call, in their order, in a process that has the stack's environment.
_RUN = """
import json, sys
from moraine.operations.purge import dag_tasks

form, run_id, application = json.loads(sys.argv[1]), *sys.argv[2:]
task_id = dag_tasks.admit(form, "test")
dag_tasks.acquire(task_id, run_id)
for step in ("plan", "delete", "verify"):
    dag_tasks.run_step(step, task_id, run_id, application)
print(dag_tasks.settle(task_id, run_id))
"""


def test_purge_by_spark_submit(platform: Platform) -> None:
    table = platform.write_table()
    files = table.files()
    form = {"catalog": CATALOG, "namespace": NAMESPACE, "table": table.name, "dry_run": False}
    master = json.dumps({"conn_type": "spark", "host": "local[2]"})
    application = str(PROJECT / "spark_apps" / "purge_table.py")
    command = [sys.executable, "-c", _RUN, json.dumps(form), "by-hand", application]

    done = subprocess.run(
        command,
        env={**platform.environment(), "AIRFLOW_CONN_MORAINE_SPARK": master},
        cwd=platform.stack.home,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    task = platform.task_of(table)
    assert (task.status, task.lease_owner) == (Status.SUCCESS, "by-hand")
    assert (task.result or {})["files_deleted"] == len(files)
    assert table.files() == {}
    # One app does all three steps: Spark is started once.
    assert output.count("purge.step.already_done") == 2
    assert platform.stack.vault.ledger not in output
