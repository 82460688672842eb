"""When a request to a catalog is retried: rules only. No I/O, no clock, no randomness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum

import requests
from requests.exceptions import ChunkedEncodingError, ContentDecodingError, ProxyError, SSLError
from urllib3.exceptions import NewConnectionError

IN_PROGRESS = "request_in_progress"
REPLAY_FAILED = "idempotency_replay_failed"
KEY_CONFLICT = "idempotency_key_conflict"

# Decided before the operation is executed: it says nothing about earlier attempts.
_REFUSALS = {401, 403, 407, 419}
_TIMED_OUT = 408
_TOO_MANY = 429
_UNREADY = {429, 502, 503, 504}
_NOT_IMPLEMENTED = 501


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one attempt: an answer, or an error instead of one."""

    response: requests.Response | None = None
    error: requests.RequestException | None = None
    subtype: str = ""
    """`subtype` of the error in the answer to a mutation, if keys define it."""

    def __str__(self) -> str:
        if self.response is not None:
            return " ".join(filter(None, [str(self.response.status_code), self.subtype]))
        return type(self.error).__name__


class Judgement(Enum):
    RESULT = "the result of the operation, success or failure"
    UNKNOWN = "it may have been carried out"
    NOT_YET = "this attempt was not carried out, the next one may be"
    REFUSED = "this attempt was not carried out, nor would the next one be"


Judge = Callable[[Outcome], Judgement]
AGAIN = (Judgement.UNKNOWN, Judgement.NOT_YET)


def judge_mutation(outcome: Outcome) -> Judgement:
    if outcome.response is None:
        return Judgement.NOT_YET if never_left(outcome.error) else Judgement.UNKNOWN
    status = outcome.response.status_code
    if outcome.subtype == IN_PROGRESS:
        return Judgement.UNKNOWN
    if outcome.subtype == REPLAY_FAILED or status == _NOT_IMPLEMENTED:
        return Judgement.RESULT
    if status == _TOO_MANY:
        return Judgement.NOT_YET
    if status in _REFUSALS or outcome.subtype == KEY_CONFLICT:
        return Judgement.REFUSED
    return Judgement.UNKNOWN if status >= 500 or status == _TIMED_OUT else Judgement.RESULT


def judge_read(outcome: Outcome) -> Judgement:
    if outcome.response is not None:
        unready = outcome.response.status_code in _UNREADY
        return Judgement.NOT_YET if unready else Judgement.RESULT
    broken = isinstance(outcome.error, requests.ConnectionError)
    # A certificate that is wrong stays wrong.
    return (
        Judgement.NOT_YET
        if broken and not isinstance(outcome.error, SSLError)
        else Judgement.RESULT
    )


def is_loss(error: requests.RequestException) -> bool:
    """Whether the answer was lost. Other errors mean that the request itself is invalid."""
    lost = (
        requests.ConnectionError,
        requests.Timeout,
        ChunkedEncodingError,
        ContentDecodingError,
    )
    return isinstance(error, lost)


def never_left(error: Exception | None) -> bool:
    """Whether no connection was made, so that the request cannot have been sent."""
    if isinstance(error, requests.ConnectTimeout | ProxyError):
        return True
    cause = error.args[0] if isinstance(error, requests.ConnectionError) and error.args else None
    return isinstance(getattr(cause, "reason", None), NewConnectionError)


def parse_retry_after(value: str | None, now: float) -> float:
    """Seconds after `now` (Unix time): the value is a number or an HTTP date; 0 if neither."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


class StopReason(Enum):
    EXHAUSTED = "the policy allows no more attempts, or no more time"
    EXPIRED = "no further attempt fits into the lifetime of the key"


@dataclass(frozen=True, slots=True)
class HttpRetryPolicy:
    """Exponential backoff with full jitter. Durations are in seconds."""

    max_attempts: int = 10
    max_elapsed: float = 120.0
    """From the first attempt; the last one may start exactly at the end."""
    initial_delay: float = 0.1
    max_delay: float = 10.0

    def decide(
        self,
        *,
        attempts: int,
        elapsed: float,
        chance: float,
        retry_after: float = 0.0,
        window: float = math.inf,
    ) -> float | StopReason:
        """How long to wait before the next attempt, or why there is none.

        `chance` is between 0 and 1. `window` is the lifetime of the key, counted from the first
        attempt.
        """
        if elapsed > window:
            return StopReason.EXPIRED
        if attempts >= self.max_attempts:
            return StopReason.EXHAUSTED
        # Jitter on top of Retry-After: the server sends the same value to every waiting client.
        delay = retry_after + chance * self._ceiling(attempts)
        if elapsed + delay > min(window, self.max_elapsed):
            return StopReason.EXPIRED if window <= self.max_elapsed else StopReason.EXHAUSTED
        return delay

    def _ceiling(self, attempts: int) -> float:
        doublings = min(attempts - 1, 60)
        return min(self.max_delay, self.initial_delay * 2.0**doublings)


ONCE = HttpRetryPolicy(max_attempts=1)
