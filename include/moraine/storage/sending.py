"""One request to a store, retried until it is answered: at a shared pace, and only if permitted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from obstore.exceptions import BaseError

from moraine.storage.clients import StorageLimits
from moraine.storage.credentials import Credentials, RenewedCredentials
from moraine.storage.outcomes import Kind, Problem, classify

T = TypeVar("T")

_FIRST_PAUSE = 0.1
_MAX_PAUSE = 10.0
_SHORTEST_PAUSE = 0.05
_SHARE_GAIN = 0.05
_PAUSE_FACTOR = 0.7
_RECHECK_AFTER = 0.05
_FIRST_BACKOFF = 0.25
_MAX_BACKOFF = 10.0
_PERMIT_INTERVAL = 0.5
_TRIES_BEFORE_SPLIT = 2


class Pace:
    """How fast to send: as fast as allowed, until the store throttles.

    Shared by all threads that send to one store; the clock is passed in, in seconds. Each
    throttled answer halves the share of the allowed concurrency that is used and doubles the pause
    before the next request; each success gives a little of both back.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._lock = threading.Lock()
        self.share = 1.0
        self.pause = 0.0
        self._not_before = float("-inf")
        self._slowed_at = float("-inf")
        self._last_progress = float("-inf")
        self._in_flight = 0

    def take(self, now: float, max_in_flight: int) -> float:
        """Take a slot to send from: 0, or how many seconds to wait before asking again."""
        with self._lock:
            if now < self._not_before:
                return self._not_before - now
            if self._in_flight >= max(1, int(max_in_flight * self.share)):
                return _RECHECK_AFTER
            self._in_flight += 1
            if self.pause:
                # The next request starts a pause later: together they would be a burst.
                self._not_before = now + self.pause * (0.5 + self._chance())
            return 0.0

    def give_back(self) -> None:
        with self._lock:
            self._in_flight -= 1

    def speed_up(self, now: float) -> None:
        with self._lock:
            self._last_progress = now
            self.share = min(1.0, self.share + _SHARE_GAIN)
            pause = self.pause * _PAUSE_FACTOR
            self.pause = pause if pause > _SHORTEST_PAUSE else 0.0

    def slow_down(self, now: float, taken_at: float) -> None:
        """The request that took its slot at `taken_at` was throttled."""
        with self._lock:
            if taken_at < self._slowed_at:
                # Sent before the last slow-down: it says nothing about the new pace.
                return
            self._slowed_at = now
            self.share /= 2
            self.pause = min(max(self.pause * 2, _FIRST_PAUSE), _MAX_PAUSE)
            self._not_before = now + self.pause * (0.5 + self._chance())

    def idle(self, now: float, since: float) -> float:
        """Seconds without progress of any request, counted from `since` at the earliest."""
        return now - max(self._last_progress, since)


class Unsent:
    """Nothing was sent: the permit was withdrawn."""


NOT_SENT: Final = Unsent()


class Permits:
    """Asks whether more may be sent: one thread at a time, and never again after a no."""

    def __init__(self, permit: Callable[[], bool]) -> None:
        self._permit = permit
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def granted(self) -> bool:
        with self._lock:
            if self._stopped.is_set():
                return False
            try:
                permitted = self._permit()
            except BaseException:
                self.stop()
                raise
            if not permitted:
                self.stop()
            return permitted

    def stop(self) -> None:
        self._stopped.set()

    def wait(self, seconds: float) -> bool:
        """Wait; False as soon as the permit is withdrawn."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._stopped.wait(min(left, _PERMIT_INTERVAL)):
                return False
            if left > _PERMIT_INTERVAL and not self.granted():
                return False
        return not self._stopped.is_set()


class Sender:
    """Sends all requests of a Storage."""

    def __init__(self, credentials: RenewedCredentials, limits: StorageLimits) -> None:
        self._credentials = credentials
        self._limits = limits
        self._pace = Pace()

    def send(
        self,
        act: Callable[[Credentials], T],
        permits: Permits,
        max_in_flight: int,
        *,
        splits: bool = False,
    ) -> T | Problem | Unsent:
        """The request's result, or the problem that neither retries nor new credentials solved.

        A request that `splits` can be sent in smaller parts: if it fails for some of its keys only,
        the problem is returned after few retries.
        """
        started = time.monotonic()
        problem: Problem | None = None
        broken = in_part = 0
        renewed = False
        while True:
            taken_at = self._take_slot(permits, max_in_flight)
            if taken_at is None:
                return _unsent(problem)
            try:
                credentials = self._permitted_credentials(permits)
                if credentials is None:
                    return _unsent(problem)
                result = self._try(act, credentials)
            finally:
                self._pace.give_back()
            now = time.monotonic()
            if not isinstance(result, Problem):
                self._pace.speed_up(now)
                return result
            problem = result
            if problem.kind is Kind.THROTTLED:
                self._pace.slow_down(now, taken_at)
                if self._pace.idle(now, started) > self._limits.patience:
                    return problem
            elif problem.kind is Kind.BROKEN:
                broken += 1
                if broken > self._limits.retries or not permits.wait(_backoff(broken)):
                    return problem
            elif problem.kind is Kind.UNAUTHENTICATED and not renewed:
                renewed = self._credentials.replace(credentials)
                if not renewed:
                    return self._explain(problem)
            else:
                return self._explain(problem)
            in_part += problem.of_key
            if splits and in_part == _TRIES_BEFORE_SPLIT:
                return problem

    def _take_slot(self, permits: Permits, max_in_flight: int) -> float | None:
        while delay := self._pace.take(now := time.monotonic(), max_in_flight):
            if not permits.wait(delay):
                return None
        return now

    def _permitted_credentials(self, permits: Permits) -> Credentials | None:
        """The permit is asked for last. That may take so long that the credentials expire."""
        while True:
            credentials = self._credentials.current()
            if not permits.granted():
                return None
            if self._credentials.current() is credentials:
                return credentials

    def _explain(self, problem: Problem) -> Problem:
        """A refusal of expired credentials says nothing about newer ones, so it is not final."""
        expired = problem.kind is Kind.UNAUTHENTICATED and self._credentials.expired
        return replace(problem, kind=Kind.BROKEN) if expired else problem

    def _try(self, act: Callable[[Credentials], T], credentials: Credentials) -> T | Problem:
        try:
            return act(credentials)
        except (BaseError, FileNotFoundError, ValueError, TypeError) as error:
            return classify(error)


def _unsent(problem: Problem | None) -> Problem | Unsent:
    """A request that was sent once and got no answer may have been carried out: not unsent."""
    return problem if problem and problem.kind is Kind.BROKEN else NOT_SENT


def _backoff(failures: int) -> float:
    longest: float = min(_FIRST_BACKOFF * 2**failures, _MAX_BACKOFF)
    return longest * (0.5 + random.random() / 2)  # noqa: S311 - jitter, no secret
