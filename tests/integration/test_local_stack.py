"""The embedded stack with its real processes, each test on ports and in a folder of its own."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from moraine.local.part import StackError
from moraine.local.stack import Stack


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack.ephemeral(tmp_path / "home") as stack:
        yield stack
    assert stack._processes() == []


class TestPostgres:
    def test_stack_postgres_starts_with_both_databases_and_keeps_its_data(
        self, stack: Stack
    ) -> None:
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

    def test_stack_postgres_requires_a_password(self, stack: Stack) -> None:
        stack.up({"postgres"})
        wrong = stack.postgres.ledger_url.replace(stack.vault.ledger, "guessed")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)

    def test_stack_postgres_does_not_run_as_root(self, stack: Stack) -> None:
        stack.up({"postgres"})
        assert psutil.Process(stack.pid("postgres")).uids().effective != 0

    def test_stack_postgres_is_restarted_after_kill_9(self, stack: Stack) -> None:
        stack.up({"postgres"})
        killed = stack.kill("postgres")
        stack.wait("postgres")
        with psycopg.connect(stack.postgres.ledger_url) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
        assert stack.pid("postgres") != killed

    def test_stack_postgres_can_be_stopped_and_started_alone(self, stack: Stack) -> None:
        stack.up({"postgres"})
        stack.stop("postgres")
        assert stack.status()[0].state == "stopped"
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(stack.postgres.ledger_url)
        stack.start("postgres")
        assert stack.status()[0].state in ("starting", "running")
        stack.restart("postgres")
        psycopg.connect(stack.postgres.ledger_url).close()


def test_stack_up_twice_changes_nothing(stack: Stack) -> None:
    stack.up({"postgres"})
    pid = stack.pid("postgres")
    Stack.open(stack.home).up({"postgres"})
    assert stack.pid("postgres") == pid


def test_stack_down_finds_what_a_killed_supervisor_left(stack: Stack) -> None:
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


def test_stack_up_after_a_killed_supervisor_starts_every_part_again(stack: Stack) -> None:
    stack.up({"postgres"})
    os.kill(stack.supervisor.pid or 0, 9)
    time.sleep(0.2)
    # The orphan holds the port; it is ours, so it is ended rather than complained about.
    stack.up({"postgres"})
    assert stack.status()[0].state in ("starting", "running")


def test_stack_reports_a_port_in_use_in_one_sentence_and_leaves_nothing(stack: Stack) -> None:
    with (
        socket.create_server(("127.0.0.1", stack.settings.ports.postgres)),
        pytest.raises(StackError, match=r"in use: stop what listens there, or choose another port"),
    ):
        stack.up({"postgres"})
    assert stack._processes() == []


def test_stack_shows_the_end_of_the_log_of_a_part_that_cannot_start(tmp_path: Path) -> None:
    stack = Stack.ephemeral(tmp_path / "home", spark_memory="1m")
    with pytest.raises(StackError, match=r"spark ended at its start: see the end of") as caught:
        stack.up({"spark"})
    assert "heap" in (caught.value.details or "")
    assert stack._processes() == []
