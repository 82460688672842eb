"""When a request is sent again, and when not."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest
import requests
from requests.exceptions import ChunkedEncodingError, ProxyError, SSLError
from urllib3.connection import HTTPConnection
from urllib3.exceptions import MaxRetryError, NewConnectionError

from moraine.client.retries import (
    ONCE,
    HttpRetryPolicy,
    Judgement,
    Outcome,
    StopReason,
    judge_mutation,
    judge_read,
    never_left,
    parse_retry_after,
)

POLICY = HttpRetryPolicy(max_attempts=5, max_elapsed=60, initial_delay=1, max_delay=4)
NOW = 1_790_000_000.0


def answered(status: int, subtype: str = "") -> Outcome:
    response = requests.Response()
    response.status_code = status
    return Outcome(response, subtype=subtype)


def refused_connection() -> requests.ConnectionError:
    reason = NewConnectionError(HTTPConnection("h"), "refused")
    return requests.ConnectionError(MaxRetryError(None, "/", reason))  # type: ignore[arg-type]


def decide(
    attempts: int = 1, elapsed: float = 0, chance: float = 1, **more: Any
) -> float | StopReason:
    return POLICY.decide(attempts=attempts, elapsed=elapsed, chance=chance, **more)


def test_client_retry_delays_double_up_to_the_maximum() -> None:
    assert [decide(attempts) for attempts in (1, 2, 3, 4)] == [1, 2, 4, 4]
    patient = HttpRetryPolicy(max_attempts=10**6)
    assert patient.decide(attempts=10**5, elapsed=0, chance=1) == 10


def test_client_retry_delays_have_full_jitter() -> None:
    assert [decide(3, chance=chance) for chance in (0, 0.25, 1)] == [0, 1, 4]


def test_client_retry_waits_as_long_as_the_server_asks() -> None:
    assert decide(chance=0, retry_after=7) == 7
    assert decide(chance=1, retry_after=7) == 8


@pytest.mark.parametrize(
    ("state", "stop"),
    [
        ({"attempts": 5}, StopReason.EXHAUSTED),
        ({"elapsed": 59.5}, StopReason.EXHAUSTED),
        ({"retry_after": 3600}, StopReason.EXHAUSTED),
        ({"elapsed": 31, "window": 30}, StopReason.EXPIRED),
        ({"elapsed": 29.5, "window": 30}, StopReason.EXPIRED),
        ({"retry_after": 40, "window": 30}, StopReason.EXPIRED),
        ({"attempts": 5, "elapsed": 31, "window": 30}, StopReason.EXPIRED),
        ({"retry_after": 3600, "window": 1800}, StopReason.EXHAUSTED),
    ],
)
def test_client_retries_have_an_end(state: dict[str, Any], stop: StopReason) -> None:
    assert decide(**state) is stop


def test_client_retries_may_make_an_attempt_at_the_very_end_of_the_window() -> None:
    assert decide(elapsed=29, window=30) == 1


def test_client_retries_of_one_attempt_send_once() -> None:
    assert ONCE.decide(attempts=1, elapsed=0, chance=0) is StopReason.EXHAUSTED


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("7", 7),
        (" 0 ", 0),
        (formatdate(NOW + 90, usegmt=True), 90),
        (formatdate(NOW - 90, usegmt=True), 0),
        ("-5", 0),
        ("1.5", 0),
        ("soon", 0),
        ("²", 0),
    ],
)
def test_client_retries_read_retry_after_as_seconds_or_a_date(
    value: str | None, seconds: float
) -> None:
    assert parse_retry_after(value, NOW) == seconds


@pytest.mark.parametrize(
    ("outcome", "judgement"),
    [
        (answered(200), Judgement.RESULT),
        (answered(204), Judgement.RESULT),
        (answered(400), Judgement.RESULT),
        (answered(404), Judgement.RESULT),
        (answered(409), Judgement.RESULT),
        (answered(422), Judgement.RESULT),
        (answered(500, "idempotency_replay_failed"), Judgement.RESULT),
        (answered(501), Judgement.RESULT),
        (answered(409, "request_in_progress"), Judgement.UNKNOWN),
        (answered(503, "request_in_progress"), Judgement.UNKNOWN),
        (answered(408), Judgement.UNKNOWN),
        (answered(500), Judgement.UNKNOWN),
        (answered(502), Judgement.UNKNOWN),
        (answered(503), Judgement.UNKNOWN),
        (answered(504), Judgement.UNKNOWN),
        (answered(429), Judgement.NOT_YET),
        (answered(401), Judgement.REFUSED),
        (answered(403), Judgement.REFUSED),
        (answered(419), Judgement.REFUSED),
        (answered(422, "idempotency_key_conflict"), Judgement.REFUSED),
        (Outcome(error=requests.ReadTimeout()), Judgement.UNKNOWN),
        (Outcome(error=requests.ConnectionError("reset")), Judgement.UNKNOWN),
        (Outcome(error=ChunkedEncodingError()), Judgement.UNKNOWN),
        (Outcome(error=requests.ConnectTimeout()), Judgement.NOT_YET),
        (Outcome(error=refused_connection()), Judgement.NOT_YET),
    ],
    ids=str,
)
def test_client_retries_classify_the_outcome_of_a_mutation(
    outcome: Outcome, judgement: Judgement
) -> None:
    assert judge_mutation(outcome) is judgement


@pytest.mark.parametrize(
    ("outcome", "again"),
    [
        (answered(200), False),
        (answered(404), False),
        (answered(500), False),
        (answered(429), True),
        (answered(502), True),
        (answered(503), True),
        (answered(504), True),
        (Outcome(error=requests.ConnectionError()), True),
        (Outcome(error=SSLError()), False),
        (Outcome(error=requests.ReadTimeout()), False),
    ],
    ids=str,
)
def test_client_retries_repeat_only_some_failed_reads(outcome: Outcome, again: bool) -> None:
    assert (judge_read(outcome) is Judgement.NOT_YET) is again


def test_client_retries_know_a_request_unsent_only_without_a_connection() -> None:
    assert never_left(refused_connection())
    assert never_left(requests.ConnectTimeout())
    assert never_left(ProxyError())
    assert not never_left(requests.ConnectionError("reset"))
    assert not never_left(requests.ConnectionError())
    assert not never_left(requests.ReadTimeout())
    assert not never_left(None)
