"""Mutations over real connections that break before, during and after the catalog's work."""

from __future__ import annotations

import io
import logging
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import UUID

import pytest
import requests

from moraine.client.adapter import IdempotentAdapter
from moraine.client.errors import (
    IdempotencyKeyConflict,
    IdempotencyReplayFailed,
    IdempotencyWindowExpired,
    OutcomeUnknown,
    RequestStillInProgress,
)
from moraine.client.retries import HttpRetryPolicy
from support.adapted_session import COMMIT, FakeTime, adapter, commit
from support.keyed_catalog import (
    KEY,
    UNAVAILABLE,
    Execute,
    Fault,
    KeyedCatalog,
    answers,
    error,
    half_an_answer,
    in_progress,
    reset_after,
    reset_before,
    silent_after,
)
from support.relay import Answer, Forward, Request, Reset


@pytest.fixture
def catalog() -> Iterator[KeyedCatalog]:
    with KeyedCatalog() as catalog:
        yield catalog


# --- Sent again -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        reset_before,
        reset_after,
        half_an_answer,
        answers(error(500), executed=True),
        answers(error(502), executed=False),
        answers(error(503), executed=True),
        answers(error(504), executed=True),
        answers(error(429), executed=False),
        answers(Answer(503, b"<html>", ()), executed=True),
    ],
)
def test_idempotent_adapter_repeats_a_commit_with_its_key_and_executes_it_once(
    session: requests.Session, catalog: KeyedCatalog, time: FakeTime, fault: Fault
) -> None:
    catalog.break_with(fault, fault)
    response = commit(session, catalog)
    assert response.status_code == 200
    assert response.json()["metadata-location"] == "file:/t/2.json"
    assert len(catalog.executed) == 1
    assert len(catalog.keys) == 3
    assert len(set(catalog.keys)) == 1
    assert UUID(catalog.keys[0]).version == 7
    assert {request.body for request in catalog.mutations} == {catalog.executed[0].body}
    assert len(time.slept) == 2


def test_idempotent_adapter_asks_again_for_an_answer_that_does_not_come(
    session: requests.Session, catalog: KeyedCatalog
) -> None:
    never = threading.Event()
    catalog.break_with(silent_after(never))
    response = commit(session, catalog, timeout=0.3)
    never.set()
    assert response.headers["Idempotency-Replayed"] == "true"
    assert len(catalog.executed) == 1
    assert len(set(catalog.keys)) == 1


def test_idempotent_adapter_can_give_a_timeout_to_a_session_without_one(
    catalog: KeyedCatalog, time: FakeTime
) -> None:
    never = threading.Event()
    catalog.break_with(silent_after(never))
    with requests.Session() as session:
        session.mount(catalog.url, adapter(time, timeout=0.3))
        assert commit(session, catalog, timeout=None).status_code == 200
    never.set()
    assert len(catalog.executed) == 1


def test_idempotent_adapter_waits_for_one_in_progress_as_long_as_the_server_asks(
    session: requests.Session, catalog: KeyedCatalog, time: FakeTime
) -> None:
    catalog.break_with(in_progress("3"), in_progress("5"))
    assert commit(session, catalog).status_code == 200
    assert [int(seconds) for seconds in time.slept] == [3, 5]
    assert len(set(catalog.keys)) == 1


def test_idempotent_adapter_gives_every_operation_a_key_of_its_own(
    session: requests.Session, catalog: KeyedCatalog
) -> None:
    for _ in range(3):
        commit(session, catalog)
    session.delete(catalog.url + COMMIT, timeout=20)
    assert len(set(catalog.keys)) == len(catalog.executed) == 4


def test_idempotent_adapter_uses_a_callers_own_key(
    session: requests.Session, catalog: KeyedCatalog
) -> None:
    catalog.break_with(reset_after)
    commit(session, catalog, headers={KEY: "mine"})
    assert catalog.keys == ["mine", "mine"]
    assert commit(session, catalog, headers={KEY: "mine"}).headers["Idempotency-Replayed"] == "true"
    assert len(catalog.executed) == 1


def test_idempotent_adapter_rewinds_a_file_and_does_not_repeat_a_stream(
    session: requests.Session, catalog: KeyedCatalog
) -> None:
    url = catalog.url + COMMIT
    catalog.break_with(answers(error(503)))
    assert session.post(url, data=io.BytesIO(b'{"a": 1}'), timeout=20).status_code == 200
    assert [request.body for request in catalog.mutations] == [b'{"a": 1}'] * 2

    catalog.break_with(answers(error(503)))
    assert session.post(url, data=iter([b"{}"]), timeout=20).status_code == 503
    assert len(catalog.mutations) == 3
    assert catalog.keys[-1]


def test_idempotent_adapter_returns_the_terminal_answer_as_it_is(
    session: requests.Session, catalog: KeyedCatalog
) -> None:
    conflict = error(409, kind="CommitFailedException")
    catalog.break_with(answers(conflict))
    response = commit(session, catalog)
    assert (response.status_code, response.content) == (409, conflict.body)
    assert len(catalog.mutations) == 1


def test_idempotent_adapter_adds_no_key_to_other_requests(
    session: requests.Session, catalog: KeyedCatalog
) -> None:
    for path in ("/v1/oauth/tokens", f"{COMMIT}/metrics", f"{COMMIT}/plan"):
        catalog.break_with(answers(error(503)))
        assert session.post(catalog.url + path, json={}, timeout=20).status_code == 503
    assert catalog.keys == ["", "", ""]
    assert catalog.configs_asked_for == []


# --- Not sent again -------------------------------------------------------------------------


def test_idempotent_adapter_ends_attempts_with_the_window(time: FakeTime) -> None:
    with KeyedCatalog(lifetime="PT1S") as catalog, requests.Session() as session:
        session.mount("http://", adapter(time))
        catalog.break_with(*[answers(error(503))] * 50)
        with pytest.raises(IdempotencyWindowExpired) as caught:
            commit(session, catalog)
    expired = caught.value
    assert expired.response is not None
    assert expired.response.status_code == expired.status == 503
    assert expired.attempts == len(catalog.mutations) > 2
    assert catalog.keys == [expired.key] * expired.attempts
    assert sum(time.slept) <= 1
    assert catalog.executed == []


def test_idempotent_adapter_window_may_end_in_an_attempts_sleep(time: FakeTime) -> None:
    def oversleep() -> None:
        time.now += 60

    with KeyedCatalog(lifetime="PT1M") as catalog, requests.Session() as session:
        session.mount("http://", adapter(time))
        time.on_sleep = oversleep
        catalog.break_with(reset_after)
        with pytest.raises(IdempotencyWindowExpired) as caught:
            commit(session, catalog)
    assert isinstance(caught.value.error, requests.ConnectionError)
    assert caught.value.attempts == len(catalog.mutations) == 1


@pytest.mark.parametrize(
    "policy", [HttpRetryPolicy(max_attempts=3), HttpRetryPolicy(max_elapsed=2, initial_delay=1.5)]
)
def test_idempotent_adapter_attempts_and_waits_have_an_end(
    catalog: KeyedCatalog, time: FakeTime, policy: HttpRetryPolicy
) -> None:
    catalog.break_with(*[answers(error(503))] * 50)
    with requests.Session() as session:
        session.mount("http://", adapter(time, policy=policy))
        assert commit(session, catalog).status_code == 503
    assert 1 < len(catalog.mutations) <= 3


@pytest.mark.parametrize("status", [409, 503])
def test_idempotent_adapter_asks_for_one_in_progress_until_it_is_done(
    session: requests.Session, catalog: KeyedCatalog, status: int
) -> None:
    catalog.break_with(*[in_progress("1", status)] * 5)
    assert commit(session, catalog).status_code == 200
    assert len(set(catalog.keys)) == 1
    assert len(catalog.executed) == 1


@pytest.mark.parametrize("status", [409, 503])
def test_idempotent_adapter_does_not_take_one_in_progress_for_a_conflict(
    session: requests.Session, catalog: KeyedCatalog, status: int
) -> None:
    catalog.break_with(*[in_progress("50", status)] * 50)
    with pytest.raises(RequestStillInProgress) as caught:
        commit(session, catalog)
    assert caught.value.key == catalog.keys[0]
    assert isinstance(caught.value, OutcomeUnknown)


def test_idempotent_adapter_has_an_error_for_a_key_of_another_request(
    session: requests.Session, catalog: KeyedCatalog
) -> None:
    commit(session, catalog, headers={KEY: "mine"})
    with pytest.raises(IdempotencyKeyConflict) as caught:
        commit(session, catalog, {"requirements": [], "updates": []}, headers={KEY: "mine"})
    assert (caught.value.key, caught.value.status) == ("mine", 422)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert len(catalog.executed) == 1


def test_idempotent_adapter_does_not_report_a_conflict_after_a_lost_answer_as_failed(
    session: requests.Session, catalog: KeyedCatalog
) -> None:
    """The server has lost the outcome of the first attempt; it may have been carried out."""
    catalog.break_with(
        answers(UNAVAILABLE, executed=True), answers(error(422, "idempotency_key_conflict"))
    )
    assert commit(session, catalog).status_code == 503
    catalog.break_with(reset_after, answers(error(422, "idempotency_key_conflict")))
    with pytest.raises(requests.ConnectionError):
        commit(session, catalog)


def test_idempotent_adapter_does_not_take_a_408_for_a_request_that_was_not_executed(
    session: requests.Session, catalog: KeyedCatalog
) -> None:
    catalog.break_with(answers(error(408), executed=True), answers(error(403)))
    assert commit(session, catalog).status_code == 408
    catalog.break_with(answers(error(408), executed=True))
    assert commit(session, catalog).status_code == 200
    assert len(catalog.executed) == 2


def test_idempotent_adapter_does_not_ask_again_for_a_result_that_cannot_be_replayed(
    session: requests.Session, catalog: KeyedCatalog
) -> None:
    catalog.break_with(reset_after, answers(error(500, "idempotency_replay_failed")))
    with pytest.raises(IdempotencyReplayFailed) as caught:
        commit(session, catalog)
    assert catalog.keys == [caught.value.key] * 2
    assert len(catalog.executed) == 1


@pytest.mark.parametrize("status", [401, 403, 419])
def test_idempotent_adapter_remembers_an_unknown_attempt_after_one_that_is_turned_away(
    session: requests.Session, catalog: KeyedCatalog, status: int
) -> None:
    catalog.break_with(answers(error(503), executed=True), answers(error(status)))
    assert commit(session, catalog).status_code == 503
    catalog.break_with(answers(error(status)))
    assert commit(session, catalog).status_code == status


def test_idempotent_adapter_remembers_an_unknown_attempt_after_the_server_goes_away(
    session: requests.Session, catalog: KeyedCatalog, time: FakeTime
) -> None:
    catalog.break_with(answers(error(500), executed=True))
    time.on_sleep = catalog.stop
    assert commit(session, catalog).status_code == 500


# --- Discovery ------------------------------------------------------------------------------


def test_idempotent_adapter_fetches_config_once_with_the_sessions_own_headers(
    session: requests.Session, catalog: KeyedCatalog
) -> None:
    session.headers.update({"Authorization": "Bearer hunter2", "Polaris-Realm": "r"})
    commit(session, catalog)
    commit(session, catalog)
    (asked,) = catalog.configs_asked_for
    assert asked.method == "GET"
    assert asked.header("Authorization") == "Bearer hunter2"
    assert asked.header("Polaris-Realm") == "r"
    assert asked.header(KEY) == asked.header("Content-Type") == ""
    assert asked.body == b""


def test_idempotent_adapter_names_the_warehouse_and_accepts_a_version_in_the_uri(
    time: FakeTime,
) -> None:
    with KeyedCatalog() as catalog, requests.Session() as session:
        uri = f"{catalog.url}/v1/iceberg/"
        session.mount(catalog.url, adapter(time, uri=uri, warehouse="dev & test"))
        catalog.break_with(reset_after)
        url = f"{catalog.url}/v1/iceberg/v1/prefix/namespaces"
        assert session.post(url, json={}, timeout=20).status_code == 200
        (asked,) = catalog.configs_asked_for
        assert (asked.path, asked.query) == ("/v1/iceberg/v1/config", {"warehouse": "dev & test"})
        assert len(set(catalog.keys)) == 1


def test_idempotent_adapter_shares_one_config_between_threads(
    session: requests.Session, catalog: KeyedCatalog
) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: commit(session, catalog).status_code, range(16)))
    assert set(found) == {200}
    assert len(catalog.configs_asked_for) == 1
    assert len(set(catalog.keys)) == 16


def test_idempotent_adapter_fetches_config_again_when_it_is_old_or_in_doubt(
    session: requests.Session, catalog: KeyedCatalog, time: FakeTime
) -> None:
    commit(session, catalog)
    catalog.break_with(answers(error(404, kind="NoSuchTableException")))
    commit(session, catalog)
    commit(session, catalog)
    assert len(catalog.configs_asked_for) == 1
    catalog.break_with(answers(error(404)))
    commit(session, catalog)
    commit(session, catalog)
    assert len(catalog.configs_asked_for) == 2
    time.now += 3601
    commit(session, catalog)
    assert len(catalog.configs_asked_for) == 3


# --- Reads, logs, pickles -------------------------------------------------------------------


class Unready(KeyedCatalog):
    """Answers a few reads otherwise than it should."""

    def __init__(self) -> None:
        super().__init__(lifetime=None)
        self.statuses: list[int] = []

    def read(self, request: Request, forward: Forward) -> Answer:
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 0:
            raise Reset
        return error(status) if status != 200 else super().read(request, forward)


def test_idempotent_adapter_repeats_reads_without_keys(session: requests.Session) -> None:
    with Unready() as catalog:
        catalog.statuses = [0, 429, 502, 503, 504]
        assert session.get(catalog.url + COMMIT, timeout=20).json()["metadata"]
        assert [request.header(KEY) for request in catalog.seen] == [""] * 6
        catalog.statuses = [500]
        assert session.get(catalog.url + COMMIT, timeout=20).status_code == 500
        assert len(catalog.seen) == 7


def test_idempotent_adapter_logs_the_key_and_neither_token_nor_payload(
    session: requests.Session, catalog: KeyedCatalog, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(execute: Execute) -> Answer:
        return error(503)

    catalog.break_with(refuse)
    with caplog.at_level(logging.DEBUG, logger="moraine"):
        commit(session, catalog, {"secret": "hunter3"}, headers={"Authorization": "Bearer hunter2"})
    assert f"key={catalog.keys[0]} attempt=1 got=503" in caplog.text
    assert "hunter" not in caplog.text


def test_idempotent_adapter_session_can_be_pickled(catalog: KeyedCatalog) -> None:
    with closing(requests.Session()) as session:
        session.mount("http://", IdempotentAdapter(warehouse="w", policy=HttpRetryPolicy(2)))
        copy = pickle.loads(pickle.dumps(session))
    catalog.break_with(answers(error(503)))
    with closing(copy):
        assert commit(copy, catalog).status_code == 200
    assert catalog.configs_asked_for[0].query == {"warehouse": "w"}
