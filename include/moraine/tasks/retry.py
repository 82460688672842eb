"""When to retry: a pure function of policy, attempt, error and time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from moraine.errors import FinalError
from moraine.settings import RetrySettings


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff: `initial_backoff * multiplier ** (attempt - 1)`, at most `max_backoff`.

    With 10 s, a multiplier of 2 and a maximum of 60 s the waits are 10, 20, 40, 60, 60, … seconds.
    """

    max_attempts: int
    initial_backoff: timedelta
    multiplier: float
    max_backoff: timedelta
    jitter: float = 0.0
    """The maximum share of a backoff that is added at random, so that retries are spread out."""

    def backoff(self, attempt: int) -> timedelta:
        """The wait after the given attempt failed, without jitter."""
        try:
            factor = float(self.multiplier ** (attempt - 1))
        except OverflowError:
            return self.max_backoff
        if factor * self.initial_backoff.total_seconds() >= self.max_backoff.total_seconds():
            return self.max_backoff
        return self.initial_backoff * factor


@dataclass(frozen=True, slots=True)
class RetryAt:
    at: datetime


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


def decide(
    policy: RetryPolicy, attempt: int, error: Exception, now: datetime, *, chance: float = 0.0
) -> RetryAt | GiveUp:
    """What follows a failed attempt. `chance` is a random number from 0 to 1."""
    if isinstance(error, FinalError):
        return GiveUp("the error is final")
    if attempt >= policy.max_attempts:
        return GiveUp(f"all {policy.max_attempts} attempts are used up")
    return RetryAt(now + policy.backoff(attempt) * (1 + policy.jitter * chance))


def policy_for(task_type: str, retry: Mapping[str, RetrySettings]) -> RetryPolicy:
    """The policy of a task type: its own settings laid over the default ones."""
    own = retry.get(task_type, RetrySettings()).model_dump(exclude_none=True)
    merged = retry["default"].model_dump() | own
    return RetryPolicy(
        max_attempts=merged["max_attempts"],
        initial_backoff=merged["initial_backoff_duration"],
        multiplier=merged["backoff_multiplier"],
        max_backoff=merged["max_backoff_duration"],
        jitter=merged["jitter"],
    )
