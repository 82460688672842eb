"""The embedded stack as a whole."""

from __future__ import annotations

import json
import urllib.request
from datetime import UTC, datetime
from functools import partial

import psutil
import pytest

from moraine.local.processes import PART
from moraine.local.stack import Stack
from support.platform import Platform
from support.waiting import wait_for

WAITING = "up_for_reschedule"
SCHEDULED = {
    "idempotency_reconcile",
    "ingest_filedrop",
    "ingest_kafka",
    "ingest_write",
    "ledger_cleanup",
    "task_sweep",
}


@pytest.fixture
def whole(platform: Platform) -> Stack:
    return platform.stack


def test_stack_runs_every_part(whole: Stack) -> None:
    assert {part.state for part in whole.status()} == {"running"}


def test_stack_listens_on_no_other_interface(whole: Stack) -> None:
    listening = {
        (process.environ().get(PART), connection.laddr.ip)
        for process in whole._processes()
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    parts = {part for part, _ in listening}
    assert {"catalog", "spark", "api-server", "scheduler"} <= parts
    assert {address for _, address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_stack_login_is_accepted(whole: Stack) -> None:
    environment = whole.environment()
    request = urllib.request.Request(
        f"{environment['MORAINE_AIRFLOW__URL']}/auth/token",
        data=json.dumps(
            {
                "username": environment["MORAINE_AIRFLOW__USERNAME"],
                "password": environment["MORAINE_AIRFLOW__PASSWORD"],
            }
        ).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert json.load(answer)["access_token"]


def test_stack_passes_extra_variables_to_airflow(platform: Platform) -> None:
    environ = psutil.Process(platform.stack.pid("scheduler")).environ()
    assert environ["MORAINE_FAILPOINTS"] == str(platform.failpoints.folder)


def test_stack_tables_are_plain_files(platform: Platform) -> None:
    table = platform.write_table()
    assert platform.spark.table(table.subject).count() == 99
    found = [path for path in table.folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in found} == {".parquet", ".avro", ".json"}
    assert not [path for path in found if path.name.startswith(".")]


@pytest.mark.timeout(900, func_only=True)
def test_stack_start_and_stop_fail_no_scheduled_run(platform: Platform) -> None:
    started = _start_of_scheduler(platform)
    platform.trigger("ledger_cleanup")  # which is hourly
    for dag_id in SCHEDULED:
        wait_for(partial(_has_worked, platform, dag_id, started), f"{dag_id} did not run")
    platform.restart()
    again = _start_of_scheduler(platform)
    for dag_id in ("ingest_filedrop", "ingest_write", "task_sweep"):  # others wait for minutes
        wait_for(partial(_has_worked, platform, dag_id, again), f"{dag_id} did not run again")

    for dag_id in SCHEDULED:
        assert platform.runs_since(started, dag_id, state="failed") == []
    for dag_id in ("ingest_filedrop", "ingest_write"):
        running = platform.runs_since(started, dag_id, state="running")
        assert len(running) == 1, "the run before ended with the stack"


def _start_of_scheduler(platform: Platform) -> datetime:
    process = psutil.Process(platform.stack.pid("scheduler"))
    return datetime.fromtimestamp(process.create_time(), UTC)


def _has_worked(platform: Platform, dag_id: str, since: datetime) -> bool:
    """Whether a run has ended, or its task is at work or waits for what the settings lack."""
    for run in platform.runs_since(since, dag_id, limit="1"):
        states = set(platform.task_states(run["dag_run_id"], dag_id).values())
        return run["state"] in ("success", "failed") or bool(states & {"running", WAITING})
    return False


def test_stack_restarts_a_killed_scheduler_without_its_old_workers(whole: Stack) -> None:
    old = [p for p in whole._processes() if p.environ().get(PART) == "scheduler"]
    assert len(old) > 1
    since = datetime.now(UTC)
    whole.kill("scheduler")
    whole.wait("scheduler", since)
    assert [process for process in old if process.is_running()] == []


def test_stack_logs_no_secret(whole: Stack) -> None:
    secrets = {v for k, v in vars(whole.vault).items() if k != "spark_session"}
    for log in whole.home.rglob("*.log*"):
        text = log.read_text(errors="replace")
        assert not [secret for secret in secrets if secret in text], log
