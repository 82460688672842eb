"""When a request to a catalog is sent again: rules only. No I/O, no clock, no dice."""

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

# Decided before the operation is: such an answer says nothing of what earlier attempts did.
_REFUSALS = {401, 403, 407, 419}
_NOT_YET = {408, 429}
_UNREADY = {429, 502, 503, 504}
_NOT_IMPLEMENTED = 501


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attempt: an answer, or an error instead of one."""

    response: requests.Response | None = None
    error: requests.RequestException | None = None
    subtype: str = ""
    """The machine-readable one, of an error answer to a mutation."""

    def __str__(self) -> str:
        if self.response is not None:
            return " ".join(filter(None, [str(self.response.status_code), self.subtype]))
        return type(self.error).__name__


class Verdict(Enum):
    RESULT = "what came of the operation, for good or bad"
    UNKNOWN = "it may have been carried out"
    NOT_YET = "this attempt was not carried out, another may be"
    REFUSED = "this attempt was not carried out, nor would another"


Judge = Callable[[Outcome], Verdict]
AGAIN = (Verdict.UNKNOWN, Verdict.NOT_YET)


def judge_mutation(outcome: Outcome) -> Verdict:
    if outcome.response is None:
        return Verdict.NOT_YET if never_left(outcome.error) else Verdict.UNKNOWN
    status = outcome.response.status_code
    if outcome.subtype == IN_PROGRESS:
        return Verdict.UNKNOWN
    if outcome.subtype == REPLAY_FAILED or status == _NOT_IMPLEMENTED:
        return Verdict.RESULT
    if status in _NOT_YET:
        return Verdict.NOT_YET
    if status in _REFUSALS:
        return Verdict.REFUSED
    return Verdict.UNKNOWN if status >= 500 else Verdict.RESULT


def judge_read(outcome: Outcome) -> Verdict:
    if outcome.response is not None:
        unready = outcome.response.status_code in _UNREADY
        return Verdict.NOT_YET if unready else Verdict.RESULT
    broken = isinstance(outcome.error, requests.ConnectionError)
    # A certificate that is wrong stays wrong.
    return Verdict.NOT_YET if broken and not isinstance(outcome.error, SSLError) else Verdict.RESULT


def is_loss(error: requests.RequestException) -> bool:
    """Whether a request's answer was lost, rather than the request being none."""
    lost = (
        requests.ConnectionError,
        requests.Timeout,
        ChunkedEncodingError,
        ContentDecodingError,
    )
    return isinstance(error, lost)


def never_left(error: Exception | None) -> bool:
    """Whether there was no connection on which the request could have been sent."""
    if isinstance(error, requests.ConnectTimeout | ProxyError):
        return True
    cause = error.args[0] if isinstance(error, requests.ConnectionError) and error.args else None
    return isinstance(getattr(cause, "reason", None), NewConnectionError)


def parse_retry_after(value: str | None, now: float) -> float:
    """Seconds from `now` (Unix time), from a number of them or an HTTP date; 0 if neither."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0


class Stop(Enum):
    ENOUGH = "as many attempts, or as much time, as the client has patience for"
    EXPIRED = "no other attempt fits into the time for which the server remembers the key"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter. Durations are in seconds."""

    most_attempts: int = 10
    patience: float = 120.0
    """From the first attempt; the last one may begin at its very end."""
    first_delay: float = 0.1
    longest_delay: float = 10.0

    def decide(
        self,
        *,
        attempts: int,
        elapsed: float,
        chance: float,
        retry_after: float = 0.0,
        window: float = math.inf,
    ) -> float | Stop:
        """How long to wait for the next attempt, or why there is none.

        `chance` is between 0 and 1; `window` is how long after the first attempt the server still
        recognises another.
        """
        if elapsed > window:
            return Stop.EXPIRED
        if attempts >= self.most_attempts:
            return Stop.ENOUGH
        # Added to what the server asks for: it says the same to everybody who waits.
        delay = retry_after + chance * self._ceiling(attempts)
        if elapsed + delay > min(window, self.patience):
            return Stop.EXPIRED if window <= self.patience else Stop.ENOUGH
        return delay

    def _ceiling(self, attempts: int) -> float:
        doublings = min(attempts - 1, 60)
        return min(self.longest_delay, self.first_delay * 2.0**doublings)


ONCE = RetryPolicy(most_attempts=1)
