"""The rate limit of each client: a token bucket in this process."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from moraine.ingest.errors import RateLimited

_MAX_BUCKETS = 10_000


class RateLimit:
    def __init__(
        self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        """Take a token, or raise RateLimited with the time until the next one. `client` is nothing
        that a caller can choose, such as a name in its request."""
        now = self._clock()
        tokens, at = self._buckets.pop(client, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - at) * self._per_second)
        self._buckets[client] = (max(tokens - 1, 0.0) if tokens >= 1 else tokens, now)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if tokens < 1:
            wait = math.ceil((1 - tokens) / self._per_second)
            raise RateLimited(
                f"One client may send {self._per_second:g} requests a second to one process.", wait
            )
