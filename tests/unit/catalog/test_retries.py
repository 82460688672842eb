"""When a request is sent again, and when not."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest
import requests
from requests.exceptions import ChunkedEncodingError, ProxyError, SSLError
from urllib3.connection import HTTPConnection
from urllib3.exceptions import MaxRetryError, NewConnectionError

from moraine.catalog.retries import (
    ONCE,
    Outcome,
    RetryPolicy,
    Stop,
    Verdict,
    judge_mutation,
    judge_read,
    never_left,
    parse_retry_after,
)

POLICY = RetryPolicy(most_attempts=5, patience=60, first_delay=1, longest_delay=4)
NOW = 1_790_000_000.0


def answered(status: int, subtype: str = "") -> Outcome:
    response = requests.Response()
    response.status_code = status
    return Outcome(response, subtype=subtype)


def refused_connection() -> requests.ConnectionError:
    reason = NewConnectionError(HTTPConnection("h"), "refused")
    return requests.ConnectionError(MaxRetryError(None, "/", reason))  # type: ignore[arg-type]


def decide(attempts: int = 1, elapsed: float = 0, chance: float = 1, **more: Any) -> float | Stop:
    return POLICY.decide(attempts=attempts, elapsed=elapsed, chance=chance, **more)


def test_delays_double_up_to_the_longest() -> None:
    assert [decide(attempts) for attempts in (1, 2, 3, 4)] == [1, 2, 4, 4]
    patient = RetryPolicy(most_attempts=10**6)
    assert patient.decide(attempts=10**5, elapsed=0, chance=1) == 10


def test_jitter_is_full() -> None:
    assert [decide(3, chance=chance) for chance in (0, 0.25, 1)] == [0, 1, 4]


def test_the_server_is_not_asked_before_it_wants_to_be() -> None:
    assert decide(chance=0, retry_after=7) == 7
    assert decide(chance=1, retry_after=7) == 8


@pytest.mark.parametrize(
    ("state", "stop"),
    [
        ({"attempts": 5}, Stop.ENOUGH),
        ({"elapsed": 59.5}, Stop.ENOUGH),
        ({"retry_after": 3600}, Stop.ENOUGH),
        ({"elapsed": 31, "window": 30}, Stop.EXPIRED),
        ({"elapsed": 29.5, "window": 30}, Stop.EXPIRED),
        ({"retry_after": 40, "window": 30}, Stop.EXPIRED),
        ({"attempts": 5, "elapsed": 31, "window": 30}, Stop.EXPIRED),
        ({"retry_after": 3600, "window": 1800}, Stop.ENOUGH),
    ],
)
def test_there_is_an_end(state: dict[str, Any], stop: Stop) -> None:
    assert decide(**state) is stop


def test_an_attempt_may_come_at_the_very_end_of_the_window() -> None:
    assert decide(elapsed=29, window=30) == 1


def test_once_is_once() -> None:
    assert ONCE.decide(attempts=1, elapsed=0, chance=0) is Stop.ENOUGH


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
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float) -> None:
    assert parse_retry_after(value, NOW) == seconds


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (answered(200), Verdict.RESULT),
        (answered(204), Verdict.RESULT),
        (answered(400), Verdict.RESULT),
        (answered(404), Verdict.RESULT),
        (answered(409), Verdict.RESULT),
        (answered(422, "idempotency_key_conflict"), Verdict.RESULT),
        (answered(500, "idempotency_replay_failed"), Verdict.RESULT),
        (answered(501), Verdict.RESULT),
        (answered(409, "request_in_progress"), Verdict.UNKNOWN),
        (answered(500), Verdict.UNKNOWN),
        (answered(502), Verdict.UNKNOWN),
        (answered(503), Verdict.UNKNOWN),
        (answered(504), Verdict.UNKNOWN),
        (answered(429), Verdict.NOT_YET),
        (answered(401), Verdict.REFUSED),
        (answered(403), Verdict.REFUSED),
        (answered(419), Verdict.REFUSED),
        (Outcome(error=requests.ReadTimeout()), Verdict.UNKNOWN),
        (Outcome(error=requests.ConnectionError("reset")), Verdict.UNKNOWN),
        (Outcome(error=ChunkedEncodingError()), Verdict.UNKNOWN),
        (Outcome(error=requests.ConnectTimeout()), Verdict.NOT_YET),
        (Outcome(error=refused_connection()), Verdict.NOT_YET),
    ],
    ids=str,
)
def test_what_an_outcome_says_of_a_mutation(outcome: Outcome, verdict: Verdict) -> None:
    assert judge_mutation(outcome) is verdict


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
def test_which_reads_are_sent_again(outcome: Outcome, again: bool) -> None:
    assert (judge_read(outcome) is Verdict.NOT_YET) is again


def test_only_a_request_without_a_connection_was_certainly_not_sent() -> None:
    assert never_left(refused_connection())
    assert never_left(requests.ConnectTimeout())
    assert never_left(ProxyError())
    assert not never_left(requests.ConnectionError("reset"))
    assert not never_left(requests.ConnectionError())
    assert not never_left(requests.ReadTimeout())
    assert not never_left(None)
