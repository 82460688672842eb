"""What operators rely on: health, metrics, and a ledger or an Airflow that is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from moraine.errors import TableNotFound
from moraine.http.errors import ErrorResponse
from moraine.ledger.pools import open_pool
from moraine.operations import OPERATIONS
from moraine.tasks.model import Claim
from moraine.tasks.store import TaskStore
from support.airflow_server import AirflowServer
from support.api_server import SYNC, Api, Hand, purge
from support.tcp_proxy import TcpProxy, proxied
from support.waiting import wait_for

StartApi = Callable[..., Api]
FIGURES = [figure.name for figure in OPERATIONS.figures]


@pytest.fixture
def way(ledger_url: str) -> Iterator[TcpProxy]:
    """The way to the ledger, which a test can cut."""
    with proxied(ledger_url) as proxy:
        yield proxy


@pytest.fixture
def cut_off(start_api: StartApi, way: TcpProxy) -> Api:
    """An API that reaches its ledger over that way."""
    api = start_api(ledger={"url": way.url})
    wait_for(lambda: api.get("/health/ready").status_code == 200)
    return api


def readiness(api: Api) -> tuple[int, dict[str, str]]:
    response = api.get("/health/ready", headers={"Authorization": None})
    body = response.json()
    assert body["status"] == ("ready" if response.status_code == 200 else "not ready")
    return response.status_code, body["dependencies"]


def test_api_is_live_and_ready(api: Api) -> None:
    assert api.get("/health/live", headers={"Authorization": None}).json() == {"status": "alive"}
    wait_for(lambda: readiness(api)[0] == 200)
    assert readiness(api) == (200, {"ledger": "ok", "airflow": "ok", "notifications": "ok"})


@pytest.mark.parametrize("trouble", ["gone", "broken", "html", "slow"])
def test_api_ready_names_an_airflow_that_is_down(
    api: Api, airflow: AirflowServer, trouble: str
) -> None:
    wait_for(lambda: readiness(api)[0] == 200)
    if trouble == "gone":
        airflow.stop()
    airflow.broken, airflow.html = trouble == "broken", trouble == "html"
    airflow.delay = 10 if trouble == "slow" else 0
    status, found = readiness(api)
    assert status == 503
    assert found["ledger"] == "ok"
    assert found["airflow"] == "ORCHESTRATOR_UNAVAILABLE"
    assert api.get("/health/live").status_code == 200


def test_api_ready_names_a_ledger_that_is_down_and_finds_it_again(
    cut_off: Api, way: TcpProxy
) -> None:
    way.cut()
    wait_for(lambda: readiness(cut_off)[1]["notifications"] == "LEDGER_UNAVAILABLE")
    status, found = readiness(cut_off)
    assert status == 503
    assert found["ledger"] in ("LEDGER_UNAVAILABLE", "NO_ANSWER")
    assert found["airflow"] == "ok"
    assert cut_off.get("/health/live").status_code == 200
    way.restore()
    wait_for(lambda: readiness(cut_off)[0] == 200, "it is not ready again")


def test_api_probe_does_not_hang_with_a_ledger_that_hangs(cut_off: Api, way: TcpProxy) -> None:
    way.hang()
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: readiness(cut_off), range(30)))
    assert {(status, found["ledger"]) for status, found in answers} == {(503, "NO_ANSWER")}
    way.restore()
    wait_for(lambda: readiness(cut_off)[0] == 200, "it is not ready again")


def test_api_answers_503_on_every_route_without_the_ledger(cut_off: Api, way: TcpProxy) -> None:
    task = f"/v1/tasks/{UUID(int=1)}"
    calls: list[tuple[str, str, Any]] = [
        ("POST", SYNC, purge()),
        ("POST", "/v1/tasks", purge()),
        ("GET", "/v1/tasks", None),
        ("GET", task, None),
        ("GET", f"{task}/events", None),
        ("POST", f"{task}/cancel", None),
        ("POST", f"{task}/retry", None),
        ("GET", "/metrics", None),
        ("GET", "/v1/tombstones", None),
        ("POST", f"/v1/tombstones/{UUID(int=1)}/lift", None),
    ]
    way.cut()
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda call: cut_off.request(call[0], call[1], json=call[2]), calls)
        for call, answer in zip(calls, answers, strict=True):
            assert answer.status_code == 503, (call, answer.text)
            body = ErrorResponse.model_validate_json(answer.content)
            assert body.error_code == "LEDGER_UNAVAILABLE"
            assert "Traceback" not in answer.text
            assert "postgresql://" not in answer.text


def test_api_request_waits_through_a_ledger_that_comes_back(
    cut_off: Api, way: TcpProxy, hand: Hand
) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(cut_off.post, SYNC, json=purge("orders"))
        claim = hand.running(hand.await_task("orders").task_id)
        way.cut()
        hand.succeed(claim)
        time.sleep(0.3)
        way.restore()
        assert answer.result(timeout=30).status_code == 200


def test_api_event_stream_ends_with_the_ledger_and_can_be_resumed(
    cut_off: Api, way: TcpProxy, hand: Hand
) -> None:
    task_id = cut_off.submit("orders")
    with ThreadPoolExecutor(1) as pool:
        watcher = pool.submit(list, cut_off.events(task_id))
        way.cut()
        claim = hand.running(task_id)
        way.restore()
        hand.succeed(claim)
        events = watcher.result(timeout=30)
    last = int(events[-1][2] or 0)
    wait_for(lambda: readiness(cut_off)[0] == 200, "it is not ready again")
    rest = list(cut_off.events(task_id, last))
    assert [data["version"] for _, data, _ in events + rest] == [1, 2, 3, 4]


def metrics_of(response: requests.Response) -> dict[str, dict[tuple[str, ...], float]]:
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_api_metrics(api: Api, hand: Hand, ledger_url: str) -> None:
    empty = metrics_of(api.get("/metrics"))
    assert empty["moraine_queue_age_seconds"] == {(): 0.0}

    done, failed, running, lost = (api.submit(name) for name in "abcd")
    api.submit("e")
    hand.succeed(hand.running(done), files=7, size=700)
    hand.fail(hand.running(failed), TableNotFound())
    hand.running(running)
    with open_pool(ledger_url) as pool:
        store = TaskStore(pool, lease=timedelta(0))
        assert store.claim_one(UUID(lost), "first")
        taken = store.claim_one(UUID(lost), "second")
        assert taken is not None
    api.post(f"/v1/tasks/{running}/cancel")

    response = api.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = metrics_of(response)
    purge_type = "TABLE_PURGE"
    assert found["moraine_tasks"] == {
        ("RUNNING", purge_type): 1,
        ("ACQUIRING_RESOURCES", purge_type): 1,
        ("SUBMITTED", purge_type): 1,
    }
    assert found["moraine_tasks_finished_total"] == {
        ("SUCCESS", purge_type): 1,
        ("FAILURE", purge_type): 1,
    }
    assert found["moraine_task_duration_seconds_count"][("SUCCESS", purge_type)] == 1
    assert 0 < found["moraine_task_duration_seconds_sum"][("SUCCESS", purge_type)] < 60
    assert found["moraine_task_attempts_total"] == {(purge_type,): 5}
    assert found["moraine_lease_losses_total"] == {(purge_type,): 1}
    assert found["moraine_files_deleted_total"] == {(purge_type,): 7}
    assert found["moraine_bytes_deleted_total"] == {(purge_type,): 700}
    assert 0 < found["moraine_queue_age_seconds"][()] < 60


def test_api_metrics_are_cached_for_a_while(
    start_api: StartApi, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    totals = TaskStore.totals

    def counted(store: TaskStore) -> Any:
        asked.append(1)
        return totals(store)

    monkeypatch.setattr(TaskStore, "totals", counted)
    api = start_api(metrics_cache="1h")
    for _ in range(5):
        assert api.get("/metrics").status_code == 200
    assert len(asked) == 1


def test_api_metrics_counters_do_not_shrink_with_retention(api: Api, hand: Hand) -> None:
    task = api.submit("orders")
    claim = hand.running(task)
    hand.succeed(Claim(claim.task_id, claim.version, claim.owner), files=3)
    before = metrics_of(api.get("/metrics"))
    assert hand.store.remove_finished(timedelta(0), 100, FIGURES) == [UUID(task)]
    after = metrics_of(api.get("/metrics"))
    for name in ("moraine_files_deleted_total", "moraine_tasks_finished_total"):
        assert after[name] == before[name]
