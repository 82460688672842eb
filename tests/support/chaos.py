"""A way to a server that breaks by chance, and in the same way whenever the seed is the same."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

from support.keyed_catalog import error
from support.relay import Answer, Forward, Relay, Request, Reset

# How often out of a hundred; the rest passes.
MUTATIONS = {"lost": 12, "reset": 8, "503 after": 7, "503 before": 7, "twice": 0, "late": 5}
READS = {"reset": 3, "503 before": 5, "late": 3}

_UNAVAILABLE = error(503, kind="ServiceUnavailableException")


class Chaos(Relay):
    """What happens to a request follows from the seed, the request, and how often it was sent."""

    def __init__(self, upstream: str, seed: str, mutations: dict[str, int]) -> None:
        super().__init__(upstream)
        self._seed = seed
        self._mutations = mutations
        self._sent: Counter[Any] = Counter()
        self._lock = threading.Lock()
        self.raging = False
        self.happened: Counter[str] = Counter()
        self.changes: list[Request] = []
        """Those that the server behind has carried out."""

    def answer(self, request: Request, forward: Forward) -> Answer:
        mutates = request.method not in ("GET", "HEAD")
        what, chance = self._draw(request, self._mutations if mutates else READS)
        if what == "reset":
            raise Reset
        if what == "503 before":
            return _UNAVAILABLE
        if what == "late":
            time.sleep(0.02 * chance)
        if what == "twice":
            twin = threading.Thread(target=self._again, args=[request])
            twin.start()
            answer = self._forward(request, forward, mutates)
            twin.join()
        else:
            answer = self._forward(request, forward, mutates)
        if what == "lost":
            raise Reset
        return _UNAVAILABLE if what == "503 after" else answer

    def _forward(self, request: Request, forward: Forward, mutates: bool) -> Answer:
        answer = forward(request)
        if mutates and answer.status < 300:
            with self._lock:
                self.changes.append(request)
        return answer

    def _again(self, request: Request) -> None:
        with self.forwarding() as forward:
            forward(request)

    def _draw(self, request: Request, chances: dict[str, int]) -> tuple[str, float]:
        if not self.raging:
            return "", 0.0
        with self._lock:
            name = (request.method, request.target, request.body)
            self._sent[name] += 1
            dice = random.Random(f"{self._seed} {name} {self._sent[name]}")
            drawn = dice.uniform(0, 100)
            for what, chance in chances.items():
                drawn -= chance
                if drawn < 0:
                    self.happened[what] += 1
                    return what, dice.random()
        return "", 0.0
