"""The embedded stack as a whole."""

from __future__ import annotations

import json
import urllib.request
from datetime import UTC, datetime

import psutil
import pytest

from moraine.local.processes import PART
from moraine.local.stack import Stack
from support.platform import Platform


@pytest.fixture
def whole(platform: Platform) -> Stack:
    return platform.stack


def test_every_part_runs(whole: Stack) -> None:
    assert {part.state for part in whole.status()} == {"running"}


def test_nothing_listens_on_another_interface(whole: Stack) -> None:
    listening = {
        (process.environ().get(PART), connection.laddr.ip)
        for process in whole._processes()
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    parts = {part for part, _ in listening}
    assert {"catalog", "spark", "api-server", "scheduler"} <= parts
    assert {address for _, address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_the_login_it_prints_is_accepted(whole: Stack) -> None:
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


def test_extra_variables_reach_airflow(platform: Platform) -> None:
    environ = psutil.Process(platform.stack.pid("scheduler")).environ()
    assert environ["MORAINE_FAILPOINTS"] == str(platform.failpoints.folder)


def test_tables_are_plain_files(platform: Platform) -> None:
    table = platform.write_table()
    assert platform.spark.table(table.subject).count() == 99
    found = [path for path in table.folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in found} == {".parquet", ".avro", ".json"}
    assert not [path for path in found if path.name.startswith(".")]


def test_a_killed_scheduler_comes_back_without_its_old_workers(whole: Stack) -> None:
    old = [p for p in whole._processes() if p.environ().get(PART) == "scheduler"]
    assert len(old) > 1
    since = datetime.now(UTC)
    whole.kill("scheduler")
    whole.wait("scheduler", since)
    assert [process for process in old if process.is_running()] == []


def test_no_secret_is_in_a_log(whole: Stack) -> None:
    secrets = {v for k, v in vars(whole.vault).items() if k != "spark_session"}
    for log in whole.home.rglob("*.log*"):
        text = log.read_text(errors="replace")
        assert not [secret for secret in secrets if secret in text], log
