"""DROP TABLE … PURGE through the gateway: a delegated purge, then a drop of the metadata."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from moraine.errors import TableNotFound
from moraine.storage.files import local_path
from moraine.tasks.model import Status
from support.dropping import GatewayClient, gateway_of, own_gateway
from support.engines import live_with_pyiceberg, live_with_spark
from support.platform import CATALOG, NAMESPACE, Platform, Table
from support.waiting import wait_for

FIRE_AND_FORGET = {"MORAINE_GATEWAY__PURGE__MODE": "fire-and-forget"}


@pytest.fixture
def gateway(platform: Platform) -> GatewayClient:
    return gateway_of(platform)


def error_of(response: requests.Response) -> dict[str, Any]:
    return dict(response.json()["error"])


def check_gone(platform: Platform, table: Table) -> None:
    """Files and metadata, and the tombstone with them."""
    assert table.files() == {}
    with pytest.raises(TableNotFound):
        platform.load(table)
    assert tombstones(platform, table) == []


def tombstones(platform: Platform, table: Table) -> list[dict[str, Any]]:
    found = platform.client.call("GET", "/v1/tombstones")["tombstones"]
    return [tombstone for tombstone in found if tombstone["table_name"] == table.name]


# --- Clients as they are ----------------------------------------------------------------------


def test_drop_by_pyiceberg_ends_the_life_of_a_table(
    platform: Platform, gateway: GatewayClient
) -> None:
    beside = platform.write_table()
    others = beside.files()
    catalog = load_catalog("gateway", type="rest", uri=gateway.url)
    folder = Path(local_path(live_with_pyiceberg(catalog, "pyiceberg")))
    assert any(folder.rglob("*.parquet"))

    catalog.purge_table("pyiceberg.bills")

    assert [file for file in folder.rglob("*") if file.is_file()] == []
    with pytest.raises(NoSuchTableError):
        catalog.load_table("pyiceberg.bills")
    (task,) = platform.client.tasks(table=f"{CATALOG}.pyiceberg.bills")["tasks"]
    assert task["status"] == "COMPLETED_SUCCESS"
    assert task["result_summary"].endswith("The catalog has dropped the table.")
    result = platform.task(task["delegation_task_id"]).result
    assert result is not None
    assert result["table_dropped"] is True
    catalog.drop_namespace("pyiceberg")
    assert beside.files() == others
    assert platform.load(beside).uuid


def test_drop_by_spark_ends_the_life_of_a_table(platform: Platform, gateway: GatewayClient) -> None:
    spark = platform.spark
    for name, value in {
        "type": "rest",
        "uri": gateway.url,
        "cache-enabled": "false",
        "rest-catalog-purge": "true",
    }.items():
        spark.conf.set(f"spark.sql.catalog.gateway.{name}", value)
    spark.conf.set("spark.sql.catalog.gateway", "org.apache.iceberg.spark.SparkCatalog")
    folder = Path(local_path(live_with_spark(spark, "gateway", "sparkling")))
    assert any(folder.rglob("*.parquet"))

    spark.sql("DROP TABLE gateway.sparkling.bills PURGE")

    assert [file for file in folder.rglob("*") if file.is_file()] == []
    assert not spark.catalog.tableExists("gateway.sparkling.bills")
    spark.sql("CREATE TABLE gateway.sparkling.bills (id BIGINT) USING iceberg")  # it is free again
    spark.sql("DROP TABLE gateway.sparkling.bills")
    spark.sql("DROP NAMESPACE gateway.sparkling")


def test_drop_without_purge_keeps_the_files(platform: Platform, gateway: GatewayClient) -> None:
    table = platform.write_table()
    files = table.files()
    assert gateway.drop(table, purge=False).status_code == 204
    assert gateway.load(table).status_code == 404
    assert table.files() == files
    assert platform.client.tasks(table=table.subject)["tasks"] == []


# --- While it runs ----------------------------------------------------------------------------


def test_drop_hides_the_table_while_it_runs(platform: Platform, gateway: GatewayClient) -> None:
    table, other = platform.write_table(), platform.write_table()
    platform.failpoints.hold_at("purge.delete.content.before")
    dropping = gateway.dropping(table, key="drop-while-it-runs")
    platform.failpoints.wait_until_hit("purge.delete.content.before")

    loaded = gateway.load(table)
    assert (loaded.status_code, error_of(loaded)["type"]) == (404, "NoSuchTableException")
    assert not gateway.exists(table)
    assert table.name not in gateway.names()
    assert other.name in gateway.names()
    assert gateway.commit(table, owner="me").status_code == 404
    created = gateway.create(table.name)
    assert (created.status_code, error_of(created)["type"]) == (409, "AlreadyExistsException")
    assert gateway.rename(other.name, table.name).status_code == 409
    assert gateway.rename(table.name, "elsewhere").status_code == 404
    assert gateway.drop(table, purge=False).status_code == 404
    assert platform.load(table).uuid, "Moraine's own principal can load it, for credentials"
    assert [one["catalog_name"] for one in tombstones(platform, table)] == [CATALOG]

    again = gateway.dropping(table)
    same_key = gateway.dropping(table, key="drop-while-it-runs")
    assert not dropping.done()

    platform.failpoints.release("purge.delete.content.before")
    assert dropping.result().status_code == 204
    assert again.result().status_code == 204, "a repeated request gets the same outcome"
    told = same_key.result()
    assert told.status_code == 204 or error_of(told)["subtype"] == "request_in_progress"
    replayed = gateway.drop(table, key="drop-while-it-runs")
    assert replayed.status_code == 204
    assert replayed.headers["Idempotency-Replayed"] == "true"
    check_gone(platform, table)
    assert len(platform.client.tasks(table=table.subject)["tasks"]) == 1


# --- When it fails ----------------------------------------------------------------------------


def test_drop_leaves_a_table_that_must_not_be_purged_as_it_is(
    platform: Platform, gateway: GatewayClient
) -> None:
    table = platform.write_table(**{"gc.enabled": "false"})
    files = table.files()
    refused = gateway.drop(table)
    assert refused.status_code == 409
    assert "gc.enabled=false" in error_of(refused)["message"]
    assert gateway.load(table).status_code == 200
    assert table.files() == files
    assert tombstones(platform, table) == []


def test_drop_that_fails_before_the_first_delete_leaves_the_table_there(
    platform: Platform, gateway: GatewayClient
) -> None:
    table = platform.write_table()
    files = table.files()
    platform.failpoints.hold_at("purge.delete.content.before")
    dropping = gateway.dropping(table)
    platform.failpoints.wait_until_hit("purge.delete.content.before")
    task_id = str(platform.task_of(table).task_id)
    platform.client.call("POST", f"/v1/tasks/{task_id}/cancel")
    platform.wait_until_noticed(task_id)
    platform.failpoints.release("purge.delete.content.before")

    failed = dropping.result()

    assert failed.status_code == 409
    assert task_id in error_of(failed)["message"]
    assert table.files() == files
    assert gateway.load(table).status_code == 200
    assert tombstones(platform, table) == []


def test_drop_that_fails_midway_keeps_the_metadata_and_can_be_finished(
    platform: Platform, gateway: GatewayClient
) -> None:
    table = platform.write_table()
    platform.failpoints.hold_at("purge.verify.before")
    dropping = gateway.dropping(table)
    platform.failpoints.wait_until_hit("purge.verify.before")
    task_id = str(platform.task_of(table).task_id)
    platform.client.call("POST", f"/v1/tasks/{task_id}/cancel")
    platform.wait_until_noticed(task_id)
    platform.failpoints.release("purge.verify.before")

    failed = dropping.result()

    assert failed.status_code == 409
    assert task_id in error_of(failed)["message"]
    assert platform.load(table).metadata_location, "the metadata is still there"
    assert gateway.load(table).status_code == 404, "but clients must not read from it any more"
    response = platform.airflow.request(
        "POST", f"/delegation-service/api/v1/tombstones/{task_id}/lift"
    )
    assert response.status_code == 409
    assert "cannot be brought back" in response.json()["message"]

    again = gateway.drop(table)
    assert again.status_code == 409, "an operator has cancelled it"
    assert f"moraine tasks retry {task_id}" in error_of(again)["message"]
    platform.client.call("POST", f"/v1/tasks/{task_id}/retry")
    assert gateway.drop(table).status_code == 204, "asked again, it is waited for"
    check_gone(platform, table)
    assert str(platform.task_of(table).task_id) == task_id


# --- Fire and forget --------------------------------------------------------------------------


def test_drop_can_be_fire_and_forget(platform: Platform, tmp_path: Path) -> None:
    table = platform.write_table()
    platform.failpoints.hold_at("purge.plan.before")
    with own_gateway(platform, tmp_path, FIRE_AND_FORGET) as (gateway, _):
        assert gateway.drop(table, key="forget").status_code == 204
        platform.failpoints.wait_until_hit("purge.plan.before")
        assert gateway.load(table).status_code == 404
        # Every gateway of the platform hides it.
        wait_for(lambda: gateway_of(platform).load(table).status_code == 404, "it is shown")
        assert len(table.files()) > 0
        platform.failpoints.release("purge.plan.before")
        task = platform.finish(platform.task_of(table).task_id)
        assert task.status is Status.SUCCESS
        check_gone(platform, table)
        wait_for(lambda: gateway.create(table.name).status_code == 200, "the name is not free")


def test_drop_that_deleted_nothing_can_be_called_off(platform: Platform, tmp_path: Path) -> None:
    table = platform.write_table()
    files = table.files()
    platform.failpoints.hold_at("purge.plan.before")
    with own_gateway(platform, tmp_path, FIRE_AND_FORGET) as (gateway, _):
        assert gateway.drop(table).status_code == 204
        platform.failpoints.wait_until_hit("purge.plan.before")
        (tombstone,) = tombstones(platform, table)
        task_id = tombstone["delegation_task_id"]
        lift = f"/delegation-service/api/v1/tombstones/{task_id}/lift"
        assert platform.airflow.request("POST", lift).status_code == 409, "it is under way"
        platform.client.call("POST", f"/v1/tasks/{task_id}/cancel")
        platform.wait_until_noticed(task_id)
        platform.failpoints.release("purge.plan.before")
        platform.wait_for_state(task_id, Status.FAILURE)
        assert gateway.load(table).status_code == 404

        assert platform.airflow.request("POST", lift).status_code == 200

        wait_for(lambda: gateway.load(table).status_code == 200, "it is still hidden")
        assert table.files() == files
        assert platform.spark.table(table.subject).count() == 99
        assert platform.airflow.request("POST", lift).status_code == 404
        # A purge that is restarted must not delete the table that is back.
        platform.client.call("POST", f"/v1/tasks/{task_id}/retry")
        ended = platform.finish(task_id)
        assert (ended.status, ended.error_code) == (Status.FAILURE, "DROP_CALLED_OFF")
        assert table.files() == files


def test_drops_are_listed_and_undone_by_the_command_line(
    platform: Platform, tmp_path: Path
) -> None:
    table = platform.write_table()

    def moraine(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).parent / "moraine"), *arguments],
            env=platform.environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    platform.failpoints.hold_at("purge.plan.before")
    with own_gateway(platform, tmp_path, FIRE_AND_FORGET) as (gateway, _):
        assert gateway.drop(table).status_code == 204
        platform.failpoints.wait_until_hit("purge.plan.before")
        listed = moraine("tables", "dropped", "--json")
        assert table.name in listed.stdout, listed.stderr
        task_id = str(platform.task_of(table).task_id)
        refused = moraine("tables", "undrop", CATALOG, f"{NAMESPACE}.{table.name}")
        assert refused.returncode == 1
        assert f"moraine tasks cancel {task_id}" in refused.stderr
        assert moraine("tasks", "cancel", task_id).returncode == 0
        platform.wait_until_noticed(task_id)
        platform.failpoints.release("purge.plan.before")
        platform.wait_for_state(task_id, Status.FAILURE)
        undropped = moraine("tables", "undrop", CATALOG, f"{NAMESPACE}.{table.name}")
        assert undropped.returncode == 0, undropped.stderr
        assert f"{table.subject} is restored." in undropped.stdout
        unknown = moraine("tables", "undrop", CATALOG, f"{NAMESPACE}.{table.name}")
        assert unknown.returncode == 1
        assert "No table" in unknown.stderr
    assert gateway_of(platform).load(table).status_code == 200


# --- A table that is purged already -----------------------------------------------------------


def test_drop_of_a_table_that_was_purged_before_drops_its_entry(
    platform: Platform, gateway: GatewayClient
) -> None:
    table = platform.write_table()
    assert platform.post(platform.payload(table))["status"] == "COMPLETED_SUCCESS"
    assert gateway.drop(table).status_code == 204
    check_gone(platform, table)


def test_drop_whose_answer_was_lost_is_answered_again(
    platform: Platform, gateway: GatewayClient
) -> None:
    table = platform.write_table()
    assert gateway.drop(table).status_code == 204
    assert gateway.drop(table).status_code == 204
    assert len(platform.client.tasks(table=table.subject)["tasks"]) == 1


def test_drop_of_what_never_existed_is_refused_without_a_trace(
    platform: Platform, gateway: GatewayClient
) -> None:
    response = gateway.drop(platform.new_table())
    assert response.status_code == 404
    assert "stack" not in error_of(response)
    assert "org.apache" not in response.text


def test_drop_waits_for_a_purge_that_was_requested_elsewhere(
    platform: Platform, gateway: GatewayClient
) -> None:
    table = platform.write_table()
    platform.failpoints.hold_at("purge.plan.recorded")
    purging = platform.executing(table)
    platform.failpoints.wait_until_hit("purge.plan.recorded")
    dropping = gateway.dropping(table)
    wait_for(lambda: not dropping.done() and tombstones(platform, table) == [], "no answer")
    platform.failpoints.release("purge.plan.recorded")
    assert purging.result(timeout=120)["status"] == "COMPLETED_SUCCESS"
    assert dropping.result(timeout=120).status_code == 204
    check_gone(platform, table)
