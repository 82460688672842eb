"""A secret that a caller sends reaches neither the ledger, nor Airflow, nor a log."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from moraine import log as moraine_log
from support.airflow_server import AirflowServer
from support.api_server import SYNC, Api, Hand, finishing_everything, purge
from support.ledger import everything_in
from support.waiting import wait_for

SECRET = "AKIA-planted-9f3c"


@pytest.fixture(autouse=True)
def all_logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Everything that is logged, down to the last detail, through Moraine's own set-up."""
    moraine_log.configure(level=logging.DEBUG)
    caplog.set_level(logging.DEBUG)
    logging.getLogger("hpack").setLevel(logging.INFO)
    yield
    structlog.reset_defaults()


def planted(table: str) -> dict[str, Any]:
    """A secret in every place where a catalog might leave one."""
    payload = purge(table)
    parameters = payload["operation_parameters"]
    parameters["config"] = {"s3.secret-access-key": SECRET, SECRET: "as a name"}
    parameters["storage-credentials"] = [{"prefix": "s3://", "config": {"token": SECRET}}]
    parameters["metadata"] = {
        "location": "s3://bucket/orders",
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "format-version": 2,
        "properties": {"s3.session-token": SECRET},
        "config": {"token": SECRET},
    }
    parameters["table_identity"]["token"] = SECRET
    payload["common_payload"]["authorization"] = SECRET
    payload["credentials"] = {"password": SECRET}
    return payload


def test_api_keeps_a_planted_secret_nowhere(
    api: Api,
    hand: Hand,
    airflow: AirflowServer,
    ledger_url: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    headers = {"X-Secret": SECRET, "Cookie": f"session={SECRET}", "X-Api-Key": SECRET}
    answers = [api.post("/v1/tasks", json=planted("orders"), headers=headers)]
    assert answers[0].status_code == 202
    with finishing_everything(hand):
        answers.append(api.post(SYNC, json=planted("customers"), headers=headers))
    assert answers[1].status_code == 200
    wait_for(lambda: len(airflow.runs) == 2)

    wrong = planted("wrong")
    wrong["operation_parameters"]["config"] = SECRET
    answers.append(api.post("/v1/tasks", json=wrong, headers=headers))
    wrong = planted("wrong")
    wrong["operation_parameters"]["metadata"]["format-version"] = SECRET
    answers.append(api.post("/v1/tasks", json=wrong, headers=headers))
    wrong = planted("wrong")
    wrong["operation_parameters"]["properties"] = {"dryRun": SECRET}
    answers.append(api.post("/v1/tasks", json=wrong, headers=headers))
    assert [answer.status_code for answer in answers[2:]] == [400, 400, 400]
    answers.append(api.get("/v1/tasks", headers={"Authorization": f"Bearer {SECRET}"}))
    assert answers[-1].status_code == 401
    answers.append(api.get("/v1/tasks"))
    answers.append(api.get("/metrics"))

    dump = everything_in(ledger_url)
    assert "demo.shop.orders" in dump, "the dump shows what is there"
    assert "s3://bucket/orders" in dump
    assert SECRET not in dump
    assert SECRET not in json.dumps(airflow.runs)
    for answer in answers:
        assert SECRET not in answer.text
        assert SECRET not in str(answer.headers)
    printed = capfd.readouterr()
    logs = caplog.text + printed.out + printed.err
    assert "task.admitted" in logs, "the logs were caught"
    assert SECRET not in logs
    assert api._headers["Authorization"].removeprefix("Bearer ") not in logs


def test_api_logs_an_unexpected_error_without_the_callers_body(
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def break_down(*_args: Any, **_options: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("moraine.tasks.service.TaskService.admit", break_down)
    response = api.post("/v1/tasks", json=planted("orders"))
    assert response.status_code == 500
    assert response.json() == {
        "error_code": "INTERNAL_ERROR",
        "message": "An unexpected error; the service's log has it.",
    }
    logs = ""
    give_up_at = time.monotonic() + 60
    # The server writes its trace after the answer; where to, depends on who has been imported.
    while "RuntimeError: a bug" not in logs + caplog.text and time.monotonic() < give_up_at:
        printed = capfd.readouterr()
        logs += printed.out + printed.err
        time.sleep(0.05)
    logs += caplog.text
    assert "api.unexpected" in logs
    assert "RuntimeError: a bug" in logs, "with a trace"
    assert SECRET not in logs
