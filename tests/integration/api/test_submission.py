"""Handing work in: the synchronous route, the asynchronous one, and what becomes of the task."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
import requests

from moraine.errors import (
    Cancelled,
    CatalogRefused,
    FinalError,
    MoraineError,
    StorageRefused,
    StorageUnavailable,
    TableNotFound,
)
from moraine.http import DELEGATION_PATH
from moraine.operations.purge.errors import PurgeForbidden
from moraine.operations.purge.model import form_of
from moraine.settings import Settings
from moraine.tasks.model import Status, TaskFilter
from moraine.tasks.store import TaskStore
from support.airflow_server import AirflowServer
from support.api_server import SYNC, Api, Hand, now, purge
from support.waiting import wait_for

StartApi = Callable[..., Api]
MakeSettings = Callable[..., Settings]


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def _raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as raised:
        return raised


def in_background(pool: ThreadPoolExecutor, api: Api, table: str) -> Future[requests.Response]:
    return pool.submit(api.post, SYNC, json=purge(table))


def test_api_synchronous_success_has_the_contracts_body(
    api: Api, hand: Hand, airflow: AirflowServer, pool: ThreadPoolExecutor
) -> None:
    answer = in_background(pool, api, "orders")
    task = hand.await_task("orders")
    wait_for(lambda: airflow.runs)
    hand.finish(task)

    response = answer.result()
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "delegation_task_id": str(task.task_id),
        "status": "COMPLETED_SUCCESS",
        "message": "42 files deleted.",
        "execution_result": {"files_deleted": 42, "bytes_deleted": 123456},
    }
    [run] = airflow.runs.values()
    assert run["dag_id"] == "table_purge"
    assert run["conf"] == {**form_of(task), "task_id": str(task.task_id)}
    assert set(run["conf"]) == {"catalog", "namespace", "table", "dry_run", "task_id"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TableNotFound(), 409),
        (PurgeForbidden("gc.enabled is false."), 409),
        (Cancelled(), 409),
        (CatalogRefused(), 502),
        (StorageRefused(details="bucket closed"), 502),
        (FinalError("It cannot be done."), 500),
    ],
)
def test_api_synchronous_failure_tells_the_code_and_the_task(
    api: Api, hand: Hand, pool: ThreadPoolExecutor, error: MoraineError, status: int
) -> None:
    answer = in_background(pool, api, "orders")
    task = hand.await_task("orders")
    hand.finish(task, error)

    response = answer.result()
    assert response.status_code == status
    assert response.json() == {
        "delegation_task_id": str(task.task_id),
        "status": "FAILED_TERMINAL",
        "error_code": error.code,
        "message": str(error),
        "details": error.details or str(error),
    }


def test_api_reports_a_bug_in_the_work_as_a_500_without_trace_or_message(
    api: Api, store: TaskStore, make_settings: MakeSettings, pool: ThreadPoolExecutor
) -> None:
    hand = Hand(store, make_settings(delegation={"retry": {"TABLE_PURGE": {"max_attempts": 1}}}))
    answer = in_background(pool, api, "orders")
    hand.finish(hand.await_task("orders"), _raised(RuntimeError("secret=hunter2")))

    response = answer.result()
    assert response.status_code == 500
    assert response.json()["error_code"] == "INTERNAL_ERROR"
    assert "hunter2" not in response.text
    assert "Traceback" not in response.text


def test_api_holds_the_request_open_over_a_retry(
    api: Api, hand: Hand, pool: ThreadPoolExecutor
) -> None:
    answer = in_background(pool, api, "orders")
    task = hand.await_task("orders")
    claim = hand.running(task.task_id)
    hand.retry_at(claim, now())
    with pytest.raises(TimeoutError):
        answer.result(timeout=0.5)
    hand.succeed(hand.running(task.task_id))

    assert answer.result().status_code == 200
    assert [row.status for row in hand.store.history(task.task_id)] == [
        Status.SUBMITTED,
        Status.ACQUIRING_RESOURCES,
        Status.RUNNING,
        Status.RETRY_SCHEDULED,
        Status.ACQUIRING_RESOURCES,
        Status.RUNNING,
        Status.SUCCESS,
    ]


def test_api_wait_that_takes_too_long_ends_while_the_task_goes_on(
    start_api: StartApi, hand: Hand, pool: ThreadPoolExecutor
) -> None:
    api = start_api(delegation={"synchronous": {"wait_limit": "0.5s"}})
    answer = in_background(pool, api, "orders")
    task = hand.await_task("orders")
    claim = hand.running(task.task_id)

    response = answer.result()
    assert response.status_code == 500
    body = response.json()
    assert body["error_code"] == "SYNC_WAIT_EXCEEDED"
    assert body["delegation_task_id"] == str(task.task_id)
    assert "status" not in body, "the task has not failed"

    hand.succeed(claim)
    assert api.task(str(task.task_id))["status"] == "COMPLETED_SUCCESS"


def test_api_caller_that_hangs_up_does_not_stop_the_task(api: Api, hand: Hand) -> None:
    with pytest.raises(requests.Timeout):
        api.post(SYNC, json=purge("orders"), timeout=0.5)
    task = hand.await_task("orders")
    assert task.cancel_requested_ts is None
    hand.finish(task)
    assert api.task(str(task.task_id))["status"] == "COMPLETED_SUCCESS"


def test_api_caller_that_hangs_up_within_the_body_leaves_nothing(api: Api, hand: Hand) -> None:
    parts = urlsplit(api.origin)
    with socket.create_connection((str(parts.hostname), int(parts.port or 0))) as caller:
        head = f"POST {DELEGATION_PATH}/v1/tasks HTTP/1.1\r\nHost: x\r\n"
        auth = f"Authorization: {api._headers['Authorization']}\r\n"
        rest = 'Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{"common_'
        caller.sendall((head + auth + rest).encode())
    assert api.get("/health/live").status_code == 200
    assert hand.store.find(TaskFilter(), limit=10) == []


def test_api_holds_many_waiting_requests_at_once(
    api: Api, hand: Hand, pool: ThreadPoolExecutor
) -> None:
    tables = [f"t{number}" for number in range(16)]
    answers = {table: in_background(pool, api, table) for table in tables}
    for table in tables:
        task = hand.await_task(table)
        hand.finish(task, TableNotFound() if table == "t7" else None)
    statuses = {table: answer.result().status_code for table, answer in answers.items()}
    assert statuses == {table: 409 if table == "t7" else 200 for table in tables}


def test_api_asynchronous_submission(api: Api, hand: Hand, airflow: AirflowServer) -> None:
    response = api.post("/v1/tasks", json=purge("orders"))
    assert response.status_code == 202
    body = response.json()
    task_id = body["delegation_task_id"]
    assert body == {
        "delegation_task_id": task_id,
        "status": "QUEUED",
        "status_query_url": f"/delegation-service/api/v1/tasks/{task_id}",
    }
    assert response.headers["location"] == body["status_query_url"]
    record = requests.get(
        api.origin + response.headers["location"], headers=api._headers, timeout=10
    )
    assert record.json()["delegation_task_id"] == task_id
    wait_for(lambda: airflow.runs)
    assert list(airflow.runs) == [f"{task_id}.v1"]


@pytest.mark.parametrize("trouble", ["slow", "broken", "html", "gone"])
def test_api_asynchronous_answer_does_not_depend_on_airflow(
    api: Api, hand: Hand, airflow: AirflowServer, trouble: str
) -> None:
    if trouble == "slow":
        airflow.delay = 3600
    elif trouble == "broken":
        airflow.broken = True
    elif trouble == "html":
        airflow.html = True
    else:
        airflow.stop()
    response = api.post("/v1/tasks", json=purge("orders"))
    assert response.status_code == 202
    task = hand.store.get(UUID(response.json()["delegation_task_id"]))
    assert task.status is Status.SUBMITTED, "the next sweep starts it"


def test_api_synchronous_request_survives_an_airflow_that_is_down(
    api: Api, hand: Hand, airflow: AirflowServer, pool: ThreadPoolExecutor
) -> None:
    airflow.stop()
    answer = in_background(pool, api, "orders")
    hand.finish(hand.await_task("orders"))
    assert answer.result().status_code == 200


@pytest.mark.parametrize("path", ["/v1/tasks", SYNC])
@pytest.mark.parametrize(
    "other",
    [
        {"properties": {"dropTable": "true"}},
        {"metadata_location": "file:///w/t/metadata/2.json"},
        {"metadata": {"table-uuid": "u-2"}},
    ],
    ids=["it drops the table", "another version", "another table"],
)
def test_api_names_the_first_purge_to_another_of_the_same_table(
    api: Api, path: str, other: dict[str, Any]
) -> None:
    first = api.submit("orders")
    body = purge("orders")
    body["operation_parameters"] |= other
    response = api.post(path, json=body)
    assert response.status_code == 409
    assert response.json()["error_code"] == "TASK_ALREADY_IN_PROGRESS"
    assert response.json()["delegation_task_id"] == first
    assert api.submit("customers") != first
    assert api.submit("orders", dryRun="true") != first


def test_api_joins_the_same_purge_of_a_table_to_the_first(
    api: Api, hand: Hand, airflow: AirflowServer, pool: ThreadPoolExecutor
) -> None:
    first = api.submit("orders")
    assert api.submit("orders") == first
    waiting = in_background(pool, api, "orders")
    # Each of the three asks for the run. A purge that is requested after the end is a new one.
    wait_for(lambda: len(airflow.starts) == 3)
    hand.finish(hand.await_task("orders"))
    answer = waiting.result()
    assert answer.status_code == 200
    assert answer.json()["delegation_task_id"] == first


def test_api_makes_one_task_of_many_purges_of_one_table_at_once(
    api: Api, pool: ThreadPoolExecutor
) -> None:
    together = threading.Barrier(8)

    def submit() -> requests.Response:
        together.wait()
        return api.post("/v1/tasks", json=purge("orders"))

    answers = [future.result() for future in [pool.submit(submit) for _ in range(8)]]
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["delegation_task_id"] for answer in answers}) == 1


def test_api_accepts_another_purge_when_the_first_has_ended(api: Api, hand: Hand) -> None:
    first = api.submit("orders")
    hand.fail(hand.running(first), TableNotFound())
    second = api.submit("orders")
    response = api.post(f"/v1/tasks/{first}/retry")
    assert response.status_code == 409
    assert response.json()["delegation_task_id"] == second


@pytest.mark.parametrize(
    "name", ["TABLE_PURGE", "SYNCHRONOUS_TABLE_PURGE", "PURGE_TABLE", "DATA_FILE_PURGE"]
)
def test_api_stores_every_name_of_the_operation_as_one(api: Api, hand: Hand, name: str) -> None:
    payload = purge("orders")
    payload["common_payload"]["operation_type"] = name
    response = api.post("/v1/tasks", json=payload)
    assert response.status_code == 202
    task = hand.store.get(UUID(response.json()["delegation_task_id"]))
    assert task.task_type == "TABLE_PURGE"
    assert task.task_payload["operation_type"] == "TABLE_PURGE"


def test_api_accepts_the_example_of_the_specification(start_api: StartApi, hand: Hand) -> None:
    api = start_api()
    payload = {
        "common_payload": {
            "operation_type": "TABLE_PURGE",
            "request_timestamp_utc": "2025-06-11T16:21:00Z",
            "realm_identifier": "demo",
            "polaris_correlation_id": "drop-t1-request-uuid-1234",
        },
        "operation_parameters": {
            "table_identity": {
                "table_entity_id": "polaris-entity-id-for-T1",
                "catalog_name": "prod_catalog",
                "namespace_levels": ["NS1", "NESTED1"],
                "table_name": "T1",
            },
            "properties": {"skipTrash": "true", "deleteMarkerFiles": "false"},
        },
    }
    response = api.post("/v1/tasks", json=payload)
    assert response.status_code == 202
    record = api.task(response.json()["delegation_task_id"])
    assert record["subject"] == "prod_catalog.NS1.NESTED1.T1"
    assert record["polaris_correlation_id"] == "drop-t1-request-uuid-1234"
    assert record["task_payload"] == {
        "operation_type": "TABLE_PURGE",
        "request_timestamp_utc": "2025-06-11T16:21:00+00:00",
        "operation_parameters": {
            **payload["operation_parameters"],
            "properties": {
                "dryRun": False,
                "skipTrash": True,
                "deleteMarkerFiles": False,
                "dropTable": False,
            },
        },
    }


def test_api_does_not_report_transient_failures_that_are_retried(api: Api, hand: Hand) -> None:
    task_id = api.submit("orders")
    hand.fail(hand.running(task_id), StorageUnavailable())
    record = api.task(task_id)
    assert record["status"] == "RETRY_SCHEDULED"
    assert record["error_code"] == "STORAGE_UNAVAILABLE"
    assert record["next_scheduled_run_ts"] is not None
