"""Idempotency-Key on the delegation API: however often it is asked for, it happens once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import requests

from moraine.errors import StorageRefused
from moraine.tasks.model import Status, TaskFilter
from moraine.tasks.store import TaskStore
from support.airflow_server import AirflowServer
from support.api_server import SYNC, Api, Hand, finishing_everything, purge, running_api
from support.issuer import Issuer
from support.platform import Failpoints
from support.waiting import wait_for

Lose = Callable[[Callable[[], Any]], None]
TASKS = "/v1/tasks"
REPLAYED = "Idempotency-Replayed"


@pytest.fixture
def key() -> str:
    return f"key-{uuid4()}"


def post(api: Api, path: str, key: str | None, body: Any = None, **options: Any) -> Any:
    headers = {"Idempotency-Key": key, **options.pop("headers", {})}
    if body is not None:
        options["json"] = body
    return api.post(path, headers=headers, **options)


def with_config(table: str, secret: str) -> dict[str, Any]:
    body = purge(table)
    body["operation_parameters"]["config"] = {"s3.secret-access-key": secret}
    return body


def all_tasks(store: TaskStore) -> list[Any]:
    return store.find(TaskFilter(), limit=100)


def check_replay(first: requests.Response, again: requests.Response) -> None:
    assert again.status_code == first.status_code
    assert again.json() == first.json()
    assert again.headers[REPLAYED] == "true"
    assert REPLAYED not in first.headers
    assert again.headers.get("location") == first.headers.get("location")


# --- Submitting -------------------------------------------------------------------------------


def test_api_key_makes_one_task_however_often_it_is_submitted(
    api: Api, store: TaskStore, airflow: AirflowServer, key: str
) -> None:
    first = post(api, TASKS, key, purge("orders"))
    again = post(api, TASKS, key, purge("orders"))
    assert first.status_code == 202
    check_replay(first, again)
    [task] = all_tasks(store)
    assert str(task.task_id) == first.json()["delegation_task_id"]
    wait_for(lambda: airflow.runs)
    assert len(airflow.runs) == 1


def test_api_key_makes_one_task_even_if_it_has_ended_since(
    api: Api, store: TaskStore, hand: Hand, key: str
) -> None:
    """Without a key the second request would be a new task."""
    first = post(api, TASKS, key, purge("orders"))
    [task] = all_tasks(store)
    hand.finish(task)
    check_replay(first, post(api, TASKS, key, purge("orders")))
    assert len(all_tasks(store)) == 1
    assert post(api, TASKS, None, purge("orders")).status_code == 202
    assert len(all_tasks(store)) == 2


def test_api_key_with_the_same_body_in_another_spelling(
    api: Api, store: TaskStore, key: str
) -> None:
    first = post(api, TASKS, key, purge("orders"))
    spelled = {name: purge("orders")[name] for name in reversed(purge("orders"))}
    check_replay(first, post(api, TASKS, key, spelled))


def test_api_key_with_another_payload(api: Api, store: TaskStore, key: str) -> None:
    assert post(api, TASKS, key, purge("orders")).status_code == 202
    other = post(api, TASKS, key, purge("customers"))
    assert other.status_code == 422
    assert other.json()["error_code"] == "IDEMPOTENCY_KEY_CONFLICT"
    assert len(all_tasks(store)) == 1


def test_api_key_with_fresh_credentials_is_the_same_request(
    api: Api, store: TaskStore, key: str
) -> None:
    first = post(api, TASKS, key, with_config("orders", "one"))
    check_replay(first, post(api, TASKS, key, with_config("orders", "two")))
    check_replay(first, post(api, TASKS, key, purge("orders")))
    assert len(all_tasks(store)) == 1


def test_api_key_of_a_refused_request_is_final(api: Api, store: TaskStore, key: str) -> None:
    body = purge("orders")
    body["common_payload"]["operation_type"] = "NO_SUCH_THING"
    first = post(api, TASKS, key, body)
    assert 400 <= first.status_code < 500
    check_replay(first, post(api, TASKS, key, body))
    assert all_tasks(store) == []


def test_api_key_sent_many_times_at_once(
    api: Api, store: TaskStore, key: str, pool: ThreadPoolExecutor
) -> None:
    responses = list(pool.map(lambda _: post(api, TASKS, key, purge("orders")), range(16)))
    assert {response.status_code for response in responses} == {202}
    assert len({response.text for response in responses}) == 1
    assert sum(REPLAYED not in response.headers for response in responses) == 1
    assert len(all_tasks(store)) == 1


@pytest.mark.parametrize("path", [TASKS, SYNC])
def test_api_key_that_is_malformed(api: Api, store: TaskStore, path: str) -> None:
    for bad in ("", "-a", "a b", "x" * 256):
        response = post(api, path, bad, purge("orders"))
        assert response.status_code == 400
        assert response.json()["error_code"] == "INVALID_IDEMPOTENCY_KEY"
    assert all_tasks(store) == []


def test_api_key_reveals_nothing_to_a_caller_without_access(
    api: Api, store: TaskStore, issuer: Issuer, key: str
) -> None:
    first = post(api, TASKS, key, purge("orders"))
    assert first.status_code == 202
    for headers in ({"Authorization": None}, {"Authorization": "Bearer made.up.token"}):
        for given in (key, "-malformed", "new-key"):
            response = post(api, TASKS, given, purge("orders"), headers=headers)
            assert response.status_code == 401
            assert REPLAYED not in response.headers
            assert first.json()["delegation_task_id"] not in response.text
    assert len(all_tasks(store)) == 1
    check_replay(first, post(api, TASKS, key, purge("orders")))


def test_api_key_of_a_read_is_ignored(api: Api, key: str) -> None:
    for _ in range(2):
        response = api.get(TASKS, headers={"Idempotency-Key": key})
        assert response.status_code == 200
        assert REPLAYED not in response.headers


def test_api_key_is_ignored_if_keys_are_off(
    make_settings: Any, issuer: Issuer, store: TaskStore, hand: Hand, key: str
) -> None:
    settings = make_settings().model_copy(
        update={"idempotency": make_settings().idempotency.model_copy(update={"enabled": False})}
    )
    with running_api(settings) as origin:
        api = Api(origin, issuer.token())
        assert post(api, TASKS, key, purge("orders")).status_code == 202
        hand.finish(all_tasks(store)[0])
        assert REPLAYED not in post(api, TASKS, key, purge("orders")).headers
    assert len(all_tasks(store)) == 2


# --- Executing --------------------------------------------------------------------------------


def test_api_key_of_a_synchronous_request_sent_twice(
    api: Api, store: TaskStore, hand: Hand, key: str
) -> None:
    with finishing_everything(hand):
        first = post(api, SYNC, key, purge("orders"))
        assert first.status_code == 200, first.text
        check_replay(first, post(api, SYNC, key, purge("orders")))
    assert len(all_tasks(store)) == 1


def test_api_key_of_a_request_that_still_runs(
    api: Api, hand: Hand, store: TaskStore, key: str, pool: ThreadPoolExecutor
) -> None:
    first = pool.submit(post, api, SYNC, key, purge("orders"))
    task = hand.await_task("orders")
    duplicate = pool.submit(post, api, SYNC, key, purge("orders"))
    hand.finish(task)
    assert first.result().status_code == duplicate.result().status_code == 200
    assert first.result().json() == duplicate.result().json()
    assert len(all_tasks(store)) == 1


def test_api_key_of_work_that_failed(
    api: Api, hand: Hand, store: TaskStore, key: str, pool: ThreadPoolExecutor
) -> None:
    first = pool.submit(post, api, SYNC, key, purge("orders"))
    hand.finish(hand.await_task("orders"), StorageRefused("no"))
    failed = first.result()
    assert failed.status_code >= 400
    again = post(api, SYNC, key, purge("orders"))
    assert again.status_code == failed.status_code
    assert again.json()["delegation_task_id"] == failed.json()["delegation_task_id"]
    assert len(all_tasks(store)) == 1


# --- Steering ---------------------------------------------------------------------------------


def test_api_key_of_a_cancellation(api: Api, store: TaskStore, key: str) -> None:
    task_id = api.submit("orders")
    first = post(api, f"{TASKS}/{task_id}/cancel", key)
    assert first.status_code == 202, first.text
    versions = len(store.history(UUID(task_id)))
    check_replay(first, post(api, f"{TASKS}/{task_id}/cancel", key))
    assert len(store.history(UUID(task_id))) == versions
    # Without a key it is another request, about a task that has ended.
    assert REPLAYED not in api.post(f"{TASKS}/{task_id}/cancel").headers


def test_api_key_of_a_retry(api: Api, store: TaskStore, hand: Hand, key: str) -> None:
    task_id = api.submit("orders")
    hand.finish(store.get(UUID(task_id)), StorageRefused("no"))
    assert store.get(UUID(task_id)).status is Status.FAILURE
    first = post(api, f"{TASKS}/{task_id}/retry", key)
    assert first.status_code == 202, first.text
    hand.finish(store.get(UUID(task_id)), StorageRefused("no"))
    versions = len(store.history(UUID(task_id)))
    check_replay(first, post(api, f"{TASKS}/{task_id}/retry", key))
    assert len(store.history(UUID(task_id))) == versions  # it was not started again
    assert post(api, f"{TASKS}/{task_id}/retry", f"{key}-2").status_code == 202
    assert len(store.history(UUID(task_id))) > versions


def test_api_key_for_a_task_that_does_not_exist(api: Api, key: str) -> None:
    path = f"{TASKS}/{uuid4()}/cancel"
    first = post(api, path, key)
    assert first.status_code == 404
    check_replay(first, post(api, path, key))


def test_api_key_belongs_to_a_path(api: Api, store: TaskStore, key: str) -> None:
    one, other = api.submit("orders"), api.submit("customers")
    for task_id in (one, other):
        response = post(api, f"{TASKS}/{task_id}/cancel", key)
        assert response.status_code == 202
        assert REPLAYED not in response.headers


# --- Lost on the way --------------------------------------------------------------------------


@pytest.fixture
def lose(ledger_url: str, failpoints: Failpoints) -> Lose:
    """Executes a request without writing its outcome, and lets its lease expire, as if the process
    had died."""

    def lose(send: Callable[[], Any]) -> None:
        failpoints.hold_at("idempotency.executed")
        with ThreadPoolExecutor(1) as pool, psycopg.connect(ledger_url, autocommit=True) as ledger:
            first = pool.submit(send)
            failpoints.wait_until_hit("idempotency.executed")
            ledger.execute(
                "UPDATE idempotency_records SET owner = NULL, lease_expires_at = now()"
                " WHERE http_status IS NULL"
            )
            failpoints.release("idempotency.executed")
            first.result()

    return lose


def test_api_key_finds_the_same_task_after_a_crash_before_its_record(
    api: Api, store: TaskStore, lose: Lose, key: str
) -> None:
    lose(lambda: post(api, TASKS, key, purge("orders")))
    [task] = all_tasks(store)
    again = post(api, TASKS, key, purge("orders"))
    assert (again.status_code, again.headers[REPLAYED]) == (202, "true")
    assert again.json()["delegation_task_id"] == str(task.task_id)
    check = post(api, TASKS, key, purge("orders"))
    assert check.json() == again.json()
    assert len(all_tasks(store)) == 1


def test_api_key_finds_a_task_that_has_ended_after_a_crash_before_its_record(
    api: Api, store: TaskStore, hand: Hand, lose: Lose, key: str
) -> None:
    lose(lambda: post(api, TASKS, key, purge("orders")))
    [task] = all_tasks(store)
    hand.finish(task)
    again = post(api, TASKS, key, purge("orders"))
    assert again.status_code == 202
    assert again.json()["delegation_task_id"] == str(task.task_id)
    assert len(all_tasks(store)) == 1


def test_api_key_of_a_cancellation_whose_record_was_lost(
    api: Api, store: TaskStore, lose: Lose, key: str
) -> None:
    task_id = api.submit("orders")
    path = f"{TASKS}/{task_id}/cancel"
    lose(lambda: post(api, path, key))
    versions = len(store.history(UUID(task_id)))
    again = post(api, path, key)
    assert (again.status_code, again.headers[REPLAYED]) == (202, "true")
    assert len(store.history(UUID(task_id))) == versions


def test_api_key_of_a_retry_whose_record_was_lost(
    api: Api, store: TaskStore, hand: Hand, lose: Lose, key: str
) -> None:
    task_id = api.submit("orders")
    hand.finish(store.get(UUID(task_id)), StorageRefused("no"))
    path = f"{TASKS}/{task_id}/retry"
    lose(lambda: post(api, path, key))
    # It ran again and failed again; the client retries its request.
    hand.finish(store.get(UUID(task_id)), StorageRefused("no"))
    versions = len(store.history(UUID(task_id)))
    again = post(api, path, key)
    assert (again.status_code, again.headers[REPLAYED]) == (202, "true")
    assert len(store.history(UUID(task_id))) == versions
