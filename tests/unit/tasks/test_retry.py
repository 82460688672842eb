"""When a failed attempt is tried again: the policy as a pure function."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moraine.errors import (
    Cancelled,
    FinalError,
    MoraineError,
    StorageRefused,
    StorageUnavailable,
    TransientError,
    WorkersLost,
)
from moraine.tasks.retry import GiveUp, RetryAt, RetryPolicy, decide

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SEED = RetryPolicy(5, timedelta(seconds=30), 2.0, timedelta(hours=1))

seconds = st.integers(0, 7 * 24 * 3600).map(lambda n: timedelta(seconds=n))
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 100),
    initial_backoff=seconds,
    multiplier=st.floats(1, 100),
    max_backoff=seconds,
    jitter=st.floats(0, 1),
)
attempts = st.integers(1, 10**9)
with_attempts_left = policies.flatmap(
    lambda policy: st.tuples(
        st.just(replace(policy, max_attempts=policy.max_attempts + 1)),
        st.integers(1, policy.max_attempts),
    )
)
retriable = st.sampled_from([TransientError(), StorageUnavailable(), MoraineError(), OSError()])
final = st.sampled_from([FinalError(), StorageRefused(), Cancelled(), WorkersLost()])


def test_retry_policy_has_the_specified_backoffs() -> None:
    waits = [SEED.backoff(attempt).total_seconds() for attempt in range(1, 10)]
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


@given(policies, attempts)
def test_retry_backoff_never_shrinks_and_never_exceeds_its_cap(
    policy: RetryPolicy, attempt: int
) -> None:
    assert timedelta(0) <= policy.backoff(attempt) <= policy.backoff(attempt + 1)
    assert policy.backoff(attempt + 1) <= policy.max_backoff


@given(policies, st.integers(1, 6))
def test_retry_backoff_is_the_initial_one_multiplied_up_to_the_cap(
    policy: RetryPolicy, attempt: int
) -> None:
    multiplied = policy.initial_backoff.total_seconds() * policy.multiplier ** (attempt - 1)
    expected = min(multiplied, policy.max_backoff.total_seconds())
    assert policy.backoff(attempt).total_seconds() == pytest.approx(expected, abs=1e-6)


@given(seconds, st.floats(1.1, 100), st.integers(10**5, 10**12))
def test_retry_backoff_of_very_many_attempts_does_not_overflow(
    cap: timedelta, multiplier: float, attempt: int
) -> None:
    policy = RetryPolicy(5, timedelta(seconds=1), multiplier, cap)
    assert policy.backoff(attempt) == cap


@given(with_attempts_left, retriable, st.floats(0, 1))
def test_retry_jitter_only_adds_and_no_more_than_its_share(
    case: tuple[RetryPolicy, int], error: Exception, chance: float
) -> None:
    policy, attempt = case
    decision = decide(policy, attempt, error, NOW, chance=chance)
    assert isinstance(decision, RetryAt)
    wait = policy.backoff(attempt)
    assert NOW + wait <= decision.at <= NOW + wait * (1 + policy.jitter)


@given(with_attempts_left, retriable)
def test_retry_jitter_spreads_retries_over_its_whole_share(
    case: tuple[RetryPolicy, int], error: Exception
) -> None:
    policy, attempt = case
    wait = policy.backoff(attempt)
    least, most = (decide(policy, attempt, error, NOW, chance=chance) for chance in (0, 1))
    assert least == RetryAt(NOW + wait)
    assert most == RetryAt(NOW + wait * (1 + policy.jitter))


@given(policies, attempts, final)
def test_retry_policy_never_retries_a_final_error(
    policy: RetryPolicy, attempt: int, error: Exception
) -> None:
    assert decide(policy, attempt, error, NOW) == GiveUp("the error is final")


@given(policies, st.integers(1, 120) | attempts, retriable)
def test_retry_policy_retries_other_errors_while_attempts_are_left(
    policy: RetryPolicy, attempt: int, error: Exception
) -> None:
    decision = decide(policy, attempt, error, NOW)
    assert isinstance(decision, RetryAt) == (attempt < policy.max_attempts)


@given(policies)
def test_retry_policy_gives_a_failing_task_exactly_its_attempts(
    policy: RetryPolicy,
) -> None:
    attempt = 1
    while isinstance(decide(policy, attempt, TransientError(), NOW), RetryAt):
        attempt += 1
    assert attempt == policy.max_attempts
    given_up = decide(policy, attempt, TransientError(), NOW)
    assert given_up == GiveUp(f"all {policy.max_attempts} attempts are used up")


def test_retry_backoff_with_a_whole_multiplier_does_not_overflow() -> None:
    policy = RetryPolicy(10_000, timedelta(seconds=0.5), 2, timedelta(seconds=10))
    assert policy.backoff(10_000) == timedelta(seconds=10)
