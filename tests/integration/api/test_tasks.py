"""Looking at tasks, steering them, and watching them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from moraine.errors import StorageUnavailable, TableNotFound
from moraine.tasks.model import Claim, NewTask, Status
from support.airflow_server import AirflowServer
from support.api_server import Api, Hand, now
from support.waiting import wait_for


def ids(page: dict[str, Any]) -> list[str]:
    return [task["delegation_task_id"] for task in page["tasks"]]


def listed(api: Api, **filters: Any) -> list[str]:
    response = api.get("/v1/tasks", params=filters)
    assert response.status_code == 200, response.text
    return ids(response.json())


# --- Looking --------------------------------------------------------------------------------


def test_api_task_record_has_progress_and_the_whole_history(api: Api, hand: Hand) -> None:
    task_id = api.submit("orders")
    hand.fail(hand.running(task_id, "first"), StorageUnavailable("The bucket is away."))
    hand.store.advance(
        claim_of(hand, task_id), Status.RETRY_SCHEDULED, "brought forward", next_run=now()
    )
    claim = hand.running(task_id, "second")
    hand.progress(claim, step="delete", files_done=3, files_total=9)

    record = api.task(task_id)
    assert record["status"] == record["ledger_status"] == "RUNNING"
    assert record["attempt_count"] == 2
    assert record["lease_owner"] == "second"
    assert record["progress"] == {"step": "delete", "files_done": 3, "files_total": 9}
    assert [row["version"] for row in record["history"]] == list(range(1, 8))
    assert [row["status"] for row in record["history"]] == [
        "QUEUED",
        "ACQUIRING_RESOURCES",
        "RUNNING",
        "RETRY_SCHEDULED",
        "RETRY_SCHEDULED",
        "ACQUIRING_RESOURCES",
        "RUNNING",
    ]
    assert record["history"][3]["error_code"] == "STORAGE_UNAVAILABLE"
    assert record["history"][3]["result_summary"] == "The bucket is away."

    hand.succeed(claim)
    record = api.task(task_id)
    assert (record["status"], record["ledger_status"]) == ("COMPLETED_SUCCESS", "SUCCESS")
    assert record["execution_result"] == {"files_deleted": 42, "bytes_deleted": 123456}
    assert len(record["history"]) == record["version"] == 8


def claim_of(hand: Hand, task_id: str) -> Claim:
    task = hand.store.get(UUID(task_id))
    return Claim(task.task_id, task.version, task.lease_owner or "")


def test_api_tasks_are_found_by_the_parent_that_their_row_names(api: Api, ledger_url: str) -> None:
    """Moraine makes no sub-tasks; the column and the filter are the specification's."""
    parent, child = api.submit("orders"), api.submit("part")
    with psycopg.connect(ledger_url) as ledger:
        ledger.execute("UPDATE tasks SET parent_id = %s WHERE task_id = %s", [parent, child])
    assert api.task(child)["parent_id"] == parent
    assert listed(api, parent_id=parent) == [child]


@pytest.mark.parametrize("action", ["", "/cancel", "/retry", "/events"])
def test_api_task_that_does_not_exist(api: Api, action: str) -> None:
    method = "POST" if action in ("/cancel", "/retry") else "GET"
    response = api.request(method, f"/v1/tasks/{uuid4()}{action}")
    assert response.status_code == 404
    assert response.json()["error_code"] == "TASK_NOT_FOUND"
    for bad in ("nonsense", "%00", "1", "..%2f..", "\U0001f600"):
        response = api.request(method, f"/v1/tasks/{bad}{action}")
        assert response.status_code in (400, 404), bad
        assert set(response.json()) <= {"error_code", "message"}


def test_api_task_list_is_newest_first(api: Api) -> None:
    submitted = [api.submit(f"t{number}") for number in range(5)]
    assert listed(api) == submitted[::-1]
    assert listed(api, limit=2) == submitted[:-3:-1]


def test_api_task_list_has_every_filter(api: Api, hand: Hand) -> None:
    done, failed, waiting = (api.submit(name) for name in ("a", "b", "c"))
    other_realm = uuid4()
    hand.store.add(NewTask(other_realm, "elsewhere", "OTHER", {}, "demo.shop.a"))
    hand.succeed(hand.running(done))
    hand.fail(hand.running(failed), TableNotFound())

    for name in ("COMPLETED_SUCCESS", "SUCCESS"):
        assert listed(api, status=name) == [done]
    for name in ("FAILED_TERMINAL", "FAILURE"):
        assert listed(api, status=name) == [failed]
    for name in ("QUEUED", "SUBMITTED"):
        assert listed(api, status=name) == [waiting]
    assert listed(api, status="RUNNING") == []
    assert listed(api, table="demo.shop.a") == [done]
    assert listed(api, table="demo.shop.a", realm="demo") == [done]
    assert listed(api, realm="elsewhere") == [], "a realm sees its own tasks only"
    assert api.get(f"/v1/tasks/{other_realm}").status_code == 404
    for name in ("TABLE_PURGE", "PURGE_TABLE"):
        assert set(listed(api, type=name)) == {done, failed, waiting}

    middle = api.task(failed)["received_timestamp"]
    assert set(listed(api, received_from=middle, realm="demo")) == {failed, waiting}
    assert listed(api, received_until=middle) == [done]
    assert listed(api, received_from="9999-12-31T23:59:59.999999-23:59") == []
    assert listed(api, received_until="0001-01-01T00:00:00+23:59") == []


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("status=DONE", "status"),
        ("type=COMPACTION", "TABLE_PURGE"),
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=9" + "9" * 5000, "limit"),
        ("cursor=x", "cursor"),
        ("parent_id=x", "parent_id"),
        ("received_from=yesterday", "received_from"),
        ("received_from=2025-01-01T00:00:00", "received_from"),
        ("received_until=1e999", "received_until"),
        ("table=%00", "table"),
        ("realm=a%00b", "realm"),
        ("status=%00", "status"),
        ("type=%00", "TABLE_PURGE"),
    ],
)
def test_api_task_list_names_a_bad_filter(api: Api, query: str, named: str) -> None:
    response = api.get(f"/v1/tasks?{query}")
    assert response.status_code == 400, response.text
    assert named in response.json()["message"]


def test_api_task_list_finds_nothing_by_odd_text_in_a_filter(api: Api) -> None:
    for odd in ("%ED%A0%80", "%FF", "%E2%80%A8", "'%3B--", "x" * 20_000):
        response = api.get(f"/v1/tasks?table={odd}&realm={odd}")
        assert (response.status_code, response.json()["tasks"]) == (200, []), odd


def test_api_task_list_pages_have_no_gap_and_no_duplicate_while_tasks_arrive(api: Api) -> None:
    before = [api.submit(f"t{number}") for number in range(11)]
    seen: list[str] = []
    cursor = None
    for number in range(20):
        page = api.get("/v1/tasks", params={"limit": 3, "cursor": cursor}).json()
        seen += ids(page)
        api.submit(f"late{number}")
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == before[::-1]


def test_api_task_list_has_no_next_page_after_a_full_last_page(api: Api) -> None:
    for number in range(4):
        api.submit(f"t{number}")
    page = api.get("/v1/tasks", params={"limit": 4}).json()
    assert (len(page["tasks"]), page["next_cursor"]) == (4, None)


# --- Steering -------------------------------------------------------------------------------


def test_api_cancel_ends_a_waiting_task_at_once(api: Api) -> None:
    task_id = api.submit("orders")
    response = api.post(f"/v1/tasks/{task_id}/cancel")
    assert response.status_code == 202
    assert response.json()["status"] == "FAILED_TERMINAL"
    assert response.json()["error_code"] == "CANCELLED"
    again = api.post(f"/v1/tasks/{task_id}/cancel")
    assert again.status_code == 409
    assert again.json()["error_code"] == "TASK_CONFLICT"
    assert "FAILED_TERMINAL" in again.json()["message"]


def test_api_cancel_asks_the_worker_of_a_running_task(api: Api, hand: Hand) -> None:
    task_id = api.submit("orders")
    claim = hand.running(task_id)
    response = api.post(f"/v1/tasks/{task_id}/cancel")
    assert response.status_code == 202
    assert response.json()["status"] == "RUNNING"
    assert response.json()["cancel_requested_ts"] is not None
    assert hand.store.heartbeat(claim) is True


def test_api_retry_starts_a_failed_task_again(api: Api, hand: Hand, airflow: AirflowServer) -> None:
    task_id = api.submit("orders")
    hand.fail(hand.running(task_id), TableNotFound())
    response = api.post(f"/v1/tasks/{task_id}/retry")
    assert response.status_code == 202
    assert response.json()["status"] == "QUEUED"
    wait_for(lambda: f"{task_id}.v5" in airflow.runs)
    refused = api.post(f"/v1/tasks/{task_id}/retry")
    assert refused.status_code == 409
    assert "QUEUED" in refused.json()["message"]


def test_api_retry_brings_a_scheduled_retry_forward(api: Api, hand: Hand) -> None:
    task_id = api.submit("orders")
    hand.retry_at(hand.running(task_id), now() + timedelta(hours=1))
    response = api.post(f"/v1/tasks/{task_id}/retry")
    assert response.status_code == 202
    assert response.json()["status"] == "RETRY_SCHEDULED"
    assert hand.store.claim_one(UUID(task_id), "next") is not None


@pytest.mark.parametrize("end", ["running", "succeeded"])
def test_api_retry_refuses_a_task_that_needs_none(api: Api, hand: Hand, end: str) -> None:
    task_id = api.submit("orders")
    claim = hand.running(task_id)
    if end == "succeeded":
        hand.succeed(claim)
    response = api.post(f"/v1/tasks/{task_id}/retry")
    assert response.status_code == 409
    assert response.json()["error_code"] == "TASK_CONFLICT"


def test_api_race_of_cancels_retries_and_workers_is_never_a_server_error(
    api: Api, hand: Hand
) -> None:
    with ThreadPoolExecutor(12) as pool:
        for number in range(5):
            task_id = api.submit(f"t{number}")
            calls = [
                pool.submit(api.post, f"/v1/tasks/{task_id}/{action}")
                for action in ("cancel", "retry") * 5
            ]
            claims = [
                pool.submit(hand.store.claim_one, UUID(task_id), f"w{worker}")
                for worker in range(4)
            ]
            statuses = {call.result().status_code for call in calls}
            assert statuses <= {202, 409}
            for claim in claims:
                claim.result()


# --- Watching -------------------------------------------------------------------------------


def test_api_task_events_tell_every_state_and_the_progress_until_the_end(
    api: Api, hand: Hand
) -> None:
    task_id = api.submit("orders")
    with ThreadPoolExecutor(4) as pool:
        watchers = [pool.submit(list, api.events(task_id)) for _ in range(3)]
        claim = hand.running(task_id)
        for done in (1, 2, 3):
            hand.progress(claim, step="delete", files_done=done)
        first = iter(api.events(task_id))
        assert [next(first)[0] for _ in range(4)] == ["state"] * 3 + ["progress"]
        hand.succeed(claim)
        told = [watcher.result(timeout=10) for watcher in watchers]
        assert [name for name, _, _ in first][-1] == "state"
    for events in told:
        states = [(data["version"], data["status"]) for name, data, _ in events if name == "state"]
        assert states == [
            (1, "QUEUED"),
            (2, "ACQUIRING_RESOURCES"),
            (3, "RUNNING"),
            (4, "COMPLETED_SUCCESS"),
        ]
        assert [event_id for name, _, event_id in events if name == "state"] == list("1234")
        progress = [data["files_done"] for name, data, _ in events if name == "progress"]
        assert progress == sorted(set(progress))
        assert progress[-1] == 3, "the last word is told, even if some before it are passed over"


def test_api_task_events_go_on_after_the_last_one_on_reconnect(api: Api, hand: Hand) -> None:
    task_id = api.submit("orders")
    claim = hand.running(task_id)
    stream = api.events(task_id)
    events = iter(stream)
    last = [next(events)[2] for _ in range(2)][-1]
    assert last is not None
    stream.close()
    hand.succeed(claim)
    again = [data["version"] for _, data, _ in api.events(task_id, int(last))]
    assert again == [3, 4]
    assert list(api.events(task_id, 4)) == []
    response = api.get(f"/v1/tasks/{task_id}/events", headers={"Last-Event-ID": "x"})
    assert response.status_code == 400


def test_api_task_events_are_not_broken_by_line_separators(api: Api, hand: Hand) -> None:
    task_id = api.submit("orders")
    text = "one\u2028two\u0085three\nfour\r\nfive\x0bsix"
    hand.fail(hand.running(task_id, "own\u2028er"), TableNotFound(text))
    events = list(api.events(task_id))
    assert events[-1][1]["result_summary"] == text


def test_api_task_feed_survives_a_foreign_notification(
    api: Api, hand: Hand, ledger_url: str
) -> None:
    task_id = api.submit("orders")
    with psycopg.connect(ledger_url, autocommit=True) as connection:
        connection.execute("select pg_notify('moraine_tasks', 'not a task')")
    with ThreadPoolExecutor(1) as pool:
        watcher = pool.submit(list, api.events(task_id))
        hand.succeed(hand.running(task_id))
        assert watcher.result(timeout=10)[-1][1]["status"] == "COMPLETED_SUCCESS"


def test_api_refuses_unknown_paths_and_methods(api: Api) -> None:
    for path in ("/v1/nothing", "/docs", "/redoc", "/v1/tasks/", "/health/live/"):
        response = api.get(path)
        assert (response.status_code, response.json()["error_code"]) == (404, "NOT_FOUND"), path
    response = api.request("DELETE", "/v1/tasks")
    assert (response.status_code, response.json()["error_code"]) == (405, "METHOD_NOT_ALLOWED")
    outside = Api(api.origin, "").request("GET", "/../../elsewhere")
    assert (outside.status_code, outside.json()["error_code"]) == (404, "NOT_FOUND")
