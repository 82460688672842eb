"""A drop that is killed between any two of its steps ends well."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg
import pytest
import requests

from moraine.errors import TableNotFound
from moraine.tasks.model import Status
from support.dropping import gateway_of, own_gateway
from support.platform import Platform, Table
from support.waiting import wait_for

SHORT_LEASE = {"MORAINE_IDEMPOTENCY__LEASE": "2s"}


def check_gone(platform: Platform, table: Table) -> None:
    assert table.files() == {}
    with pytest.raises(TableNotFound):
        platform.load(table)
    assert gateway_of(platform).load(table).status_code == 404


@pytest.mark.parametrize("point", ["purge.drop.before", "purge.drop.after"])
def test_drop_whose_worker_is_killed_between_purge_and_drop(platform: Platform, point: str) -> None:
    table = platform.write_table()
    gateway = gateway_of(platform)
    platform.failpoints.kill_at(point)
    dropping = gateway.dropping(table)
    platform.failpoints.wait_until_hit(point)

    task = platform.finish(platform.task_of(table).task_id)

    assert task.status is Status.SUCCESS
    assert task.attempt_count == 2
    assert dropping.result().status_code == 204, "the caller waits over both attempts"
    check_gone(platform, table)
    assert gateway.create(table.name).status_code == 200


@pytest.mark.parametrize("point", ["gateway.drop.hidden", "gateway.drop.admitted"])
def test_drop_whose_gateway_is_killed_between_its_steps(
    platform: Platform, tmp_path: Path, point: str
) -> None:
    table = platform.write_table()
    with own_gateway(platform, tmp_path, SHORT_LEASE) as (gateway, _):
        platform.failpoints.kill_at(point)
        with pytest.raises(requests.ConnectionError):
            gateway.drop(table, key=f"killed-{table.name}")
    with own_gateway(platform, tmp_path, SHORT_LEASE) as (gateway, _):
        assert gateway.load(table).status_code == 404, "it was hidden before anything else"
        # The reservation of the killed process expires; then a retry with the same key goes on.
        dropped = wait_for(
            lambda: _final(gateway.drop(table, key=f"killed-{table.name}")),
            "the drop has no end",
        )
        assert dropped.status_code == 204
    check_gone(platform, table)
    assert len(platform.client.tasks(table=table.subject)["tasks"]) == 1


def _final(response: requests.Response) -> requests.Response | None:
    return None if response.status_code == 409 else response


def test_drop_whose_gateway_is_killed_while_it_waits(platform: Platform, tmp_path: Path) -> None:
    table = platform.write_table()
    platform.failpoints.hold_at("purge.delete.content.before")
    with own_gateway(platform, tmp_path) as (gateway, pid):
        waiting = gateway.dropping(table)
        platform.failpoints.wait_until_hit("purge.delete.content.before")
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(requests.ConnectionError):
            waiting.result()
    platform.failpoints.release("purge.delete.content.before")
    assert gateway_of(platform).drop(table).status_code in (204, 404)
    assert platform.finish(platform.task_of(table).task_id).status is Status.SUCCESS
    check_gone(platform, table)


def test_drop_tombstone_without_a_task_is_lifted(platform: Platform, tmp_path: Path) -> None:
    table = platform.write_table()
    files = table.files()
    with own_gateway(platform, tmp_path) as (gateway, _):
        platform.failpoints.kill_at("gateway.drop.hidden")
        with pytest.raises(requests.ConnectionError):
            gateway.drop(table)
    with psycopg.connect(platform.stack.postgres.ledger_url, autocommit=True) as ledger:
        ledger.execute(
            "UPDATE tombstones SET created_at = now() - interval '1 hour' WHERE table_name = %s",
            [table.name],
        )
    run_id = platform.trigger("idempotency_reconcile")
    assert platform.finished_run(run_id, "idempotency_reconcile")["state"] == "success"
    wait_for(
        lambda: gateway_of(platform).load(table).status_code == 200, "the table is still hidden"
    )
    assert table.files() == files
