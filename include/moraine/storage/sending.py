"""One request to a store, sent until it is answered: at the common pace, and only if permitted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from obstore.exceptions import BaseError

from moraine.storage.clients import StorageLimits
from moraine.storage.credentials import Credentials
from moraine.storage.pace import Pace
from moraine.storage.problems import Kind, Problem, classify
from moraine.storage.renewal import RenewedCredentials

T = TypeVar("T")

_FIRST_BACKOFF = 0.25
_LONGEST_BACKOFF = 10.0
_LOOK_AROUND = 0.5
_TRIES_BEFORE_SPLIT = 2


class Unsent:
    """Nothing was sent: it was not permitted any more."""


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
        """Wait, unless it is not worth it any more: then False."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._stopped.wait(min(left, _LOOK_AROUND)):
                return False
            if left > _LOOK_AROUND and not self.granted():
                return False
        return not self._stopped.is_set()


class Sender:
    """What all requests of a Storage share."""

    def __init__(self, credentials: RenewedCredentials, limits: StorageLimits) -> None:
        self._credentials = credentials
        self._limits = limits
        self._pace = Pace()

    def send(
        self,
        act: Callable[[Credentials], T],
        permits: Permits,
        most: int,
        *,
        splits: bool = False,
    ) -> T | Problem | Unsent:
        """The request's result, or the problem that neither time nor new credentials solved.

        One that splits can be sent in smaller parts: if it fails for some of its keys only, it
        comes back early.
        """
        started = time.monotonic()
        problem: Problem | None = None
        broken = in_part = 0
        renewed = False
        while True:
            taken_at = self._take_place(permits, most)
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

    def _take_place(self, permits: Permits, most: int) -> float | None:
        while delay := self._pace.take(now := time.monotonic(), most):
            if not permits.wait(delay):
                return None
        return now

    def _permitted_credentials(self, permits: Permits) -> Credentials | None:
        """The permit is the last thing to be asked for, and may take longer than credentials do."""
        while True:
            credentials = self._credentials.current()
            if not permits.granted():
                return None
            if self._credentials.current() is credentials:
                return credentials

    def _explain(self, problem: Problem) -> Problem:
        """That old credentials are refused says nothing about newer ones."""
        expired = problem.kind is Kind.UNAUTHENTICATED and self._credentials.expired
        return replace(problem, kind=Kind.BROKEN) if expired else problem

    def _try(self, act: Callable[[Credentials], T], credentials: Credentials) -> T | Problem:
        try:
            return act(credentials)
        except (BaseError, FileNotFoundError, ValueError, TypeError) as error:
            return classify(error)


def _unsent(problem: Problem | None) -> Problem | Unsent:
    """What was sent once and got no answer may have been done: that is not unsent."""
    return problem if problem and problem.kind is Kind.BROKEN else NOT_SENT


def _backoff(failures: int) -> float:
    longest: float = min(_FIRST_BACKOFF * 2**failures, _LONGEST_BACKOFF)
    return longest * (0.5 + random.random() / 2)  # noqa: S311 - jitter, no secret
