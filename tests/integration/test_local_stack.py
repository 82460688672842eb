"""The embedded stack with its real processes, each test on ports and in a folder of its own."""

from __future__ import annotations

import atexit
import json
import os
import socket
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import psycopg
import pytest

from moraine.local.errors import StackError
from moraine.local.processes import PART
from moraine.local.stack import Stack


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack.ephemeral(tmp_path / "home") as stack:
        yield stack
    assert stack._processes() == []


class TestPostgres:
    def test_comes_up_with_both_databases_and_keeps_its_data(self, stack: Stack) -> None:
        stack.up({"postgres"})
        with psycopg.connect(stack.postgres.ledger_url) as connection:
            connection.execute("create table kept (n int)")
            connection.execute("insert into kept values (1)")
        with psycopg.connect(stack.postgres.airflow_url) as connection:
            assert connection.execute("select current_user").fetchone() == ("airflow",)
        stack.down()
        stack.up({"postgres"})
        with psycopg.connect(stack.postgres.ledger_url) as connection:
            assert connection.execute("select n from kept").fetchone() == (1,)

    def test_wants_a_password(self, stack: Stack) -> None:
        stack.up({"postgres"})
        wrong = stack.postgres.ledger_url.replace(stack.vault.ledger, "guessed")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)

    def test_does_not_run_as_root(self, stack: Stack) -> None:
        stack.up({"postgres"})
        assert psutil.Process(stack.pid("postgres")).uids().effective != 0

    def test_is_started_again_after_kill_9(self, stack: Stack) -> None:
        stack.up({"postgres"})
        killed = stack.kill("postgres")
        stack.wait("postgres")
        with psycopg.connect(stack.postgres.ledger_url) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        assert stack.pid("postgres") != killed

    def test_can_be_stopped_and_started_alone(self, stack: Stack) -> None:
        stack.up({"postgres"})
        stack.stop("postgres")
        assert stack.status()[0].state == "stopped"
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(stack.postgres.ledger_url)
        stack.start("postgres")
        assert stack.status()[0].state in ("starting", "running")
        stack.restart("postgres")
        psycopg.connect(stack.postgres.ledger_url).close()


def test_up_twice_changes_nothing(stack: Stack) -> None:
    stack.up({"postgres"})
    pid = stack.pid("postgres")
    Stack.open(stack.home).up({"postgres"})
    assert stack.pid("postgres") == pid


def test_down_finds_what_a_killed_supervisor_left(stack: Stack) -> None:
    stack.up({"postgres"})
    orphan = psutil.Process(stack.pid("postgres"))
    supervisor = psutil.Process(stack.supervisor.pid)
    supervisor.kill()
    psutil.wait_procs([supervisor], timeout=5)
    assert orphan.is_running()
    assert stack.status()[0].state == "lost"
    Stack.open(stack.home).down()
    assert not orphan.is_running()
    assert stack._processes() == []


def test_up_after_a_killed_supervisor_starts_afresh(stack: Stack) -> None:
    stack.up({"postgres"})
    os.kill(stack.supervisor.pid or 0, 9)
    time.sleep(0.2)
    # The orphan holds the port; it is ours, so it is ended rather than complained about.
    stack.up({"postgres"})
    assert stack.status()[0].state in ("starting", "running")


def test_a_port_in_use_is_one_sentence_and_nothing_is_left(stack: Stack) -> None:
    with (
        socket.create_server(("127.0.0.1", stack.settings.ports.postgres)),
        pytest.raises(StackError, match=r"in use: stop what listens there, or choose another port"),
    ):
        stack.up({"postgres"})
    assert stack._processes() == []


def test_a_part_that_cannot_start_says_so_with_the_end_of_its_log(tmp_path: Path) -> None:
    stack = Stack.ephemeral(tmp_path / "home", spark_memory="1m")
    with pytest.raises(StackError, match=r"spark ended at its start: see the end of") as caught:
        stack.up({"spark"})
    assert "heap" in (caught.value.details or "")
    assert stack._processes() == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack.ephemeral(tmp_path_factory.mktemp("whole")) as stack:
        stack.up(extra_env={"AIRFLOW__CORE__INSTANCE_NAME": "given by a test"})
        yield stack
    assert stack._processes() == []


class TestTheWhole:
    def test_every_part_runs(self, whole: Stack) -> None:
        assert {part.state for part in whole.status()} == {"running"}

    def test_nothing_listens_on_another_interface(self, whole: Stack) -> None:
        listening = {
            (process.environ().get(PART), connection.laddr.ip)
            for process in whole._processes()
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        }
        parts = {part for part, _ in listening}
        assert {"catalog", "spark", "api-server", "scheduler"} <= parts
        assert {address for _, address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}

    def test_the_login_it_prints_is_accepted(self, whole: Stack) -> None:
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

    def test_extra_variables_reach_airflow(self, whole: Stack) -> None:
        environ = psutil.Process(whole.pid("scheduler")).environ()
        assert environ["AIRFLOW__CORE__INSTANCE_NAME"] == "given by a test"

    def test_tables_are_plain_files(self, whole: Stack) -> None:
        from pyspark.sql.connect.session import SparkSession

        spark = SparkSession.builder.remote(whole.spark.url).create()
        # At exit it would try for ten minutes to reach a server that is no more.
        atexit.unregister(spark.client._cleanup_ml_cache)
        spark.sql("create namespace demo.plain")
        spark.sql("create table demo.plain.t (id bigint)")
        spark.sql("insert into demo.plain.t select id from range(10)")
        assert spark.table("demo.plain.t").count() == 10
        spark.stop()
        files = {p.suffix for p in whole.catalog.warehouse.rglob("*") if p.is_file()}
        assert files == {".parquet", ".avro", ".json"}
        assert not list(whole.catalog.warehouse.rglob(".*"))

    def test_a_killed_scheduler_comes_back_without_its_old_workers(self, whole: Stack) -> None:
        old = [p for p in whole._processes() if p.environ().get(PART) == "scheduler"]
        assert len(old) > 1
        since = datetime.now(UTC)
        whole.kill("scheduler")
        whole.wait("scheduler", since)
        assert [process for process in old if process.is_running()] == []

    def test_no_secret_is_in_a_log(self, whole: Stack) -> None:
        secrets = {v for k, v in vars(whole.vault).items() if k != "spark_session"}
        for log in whole.home.rglob("*.log*"):
            text = log.read_text(errors="replace")
            assert not [secret for secret in secrets if secret in text], log
