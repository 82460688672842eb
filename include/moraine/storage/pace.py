"""How fast to go: as fast as allowed, until the store asks to slow down."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0
_NO_PAUSE = 0.05
_RECOVERY = 0.05
_EASING = 0.7
_LOOK_AGAIN = 0.05


class Pace:
    """Shared by all that send requests to one store; the clock is passed in, in seconds.

    Each throttled answer halves the share of the allowed concurrency that is used and doubles
    the pause before the next request; each success gives a little of both back.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._lock = threading.Lock()
        self._share = 1.0
        self._pause = 0.0
        self._not_before = float("-inf")
        self._slowed_at = float("-inf")
        self._last_progress = float("-inf")
        self._in_flight = 0

    @property
    def share(self) -> float:
        return self._share

    @property
    def pause(self) -> float:
        return self._pause

    def take(self, now: float, most: int) -> float:
        """Take one of the places to send from: 0, or how long to wait before asking again."""
        with self._lock:
            if now < self._not_before:
                return self._not_before - now
            if self._in_flight >= max(1, int(most * self._share)):
                return _LOOK_AGAIN
            self._in_flight += 1
            if self._pause:
                # The next one starts a pause later: together they would be a burst.
                self._not_before = now + self._pause * (0.5 + self._chance())
            return 0.0

    def give_back(self) -> None:
        with self._lock:
            self._in_flight -= 1

    def speed_up(self, now: float) -> None:
        with self._lock:
            self._last_progress = now
            self._share = min(1.0, self._share + _RECOVERY)
            self._pause = self._pause * _EASING if self._pause * _EASING > _NO_PAUSE else 0.0

    def slow_down(self, now: float, taken_at: float) -> None:
        """The request that took its place then was throttled."""
        with self._lock:
            if taken_at < self._slowed_at:
                # Sent before the pace was last slowed down: it says nothing about the new pace.
                return
            self._slowed_at = now
            self._share /= 2
            self._pause = min(max(self._pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
            self._not_before = now + self._pause * (0.5 + self._chance())

    def idle(self, now: float, since: float) -> float:
        """Seconds without any progress, no longer than since the time given."""
        return now - max(self._last_progress, since)
