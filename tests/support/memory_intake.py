"""An ingest service that keeps bodies in memory, once per key, and fails on demand."""

from __future__ import annotations

import json
from typing import Any

from moraine.errors import MoraineError
from moraine.ingest.model import Arrival


class MemoryIntake:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.taken: dict[str, tuple[Arrival, bytes]] = {}
        self.asked = 0
        self.failures: list[MoraineError] = []
        """Raised one by one, each instead of taking a batch."""

    async def take(self, arrival: Arrival, body: bytes) -> None:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        self.taken.setdefault(arrival.key, (arrival, body))

    @property
    def arrivals(self) -> list[Arrival]:
        return [arrival for arrival, _ in self.taken.values()]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for _, body in self.taken.values()
            for line in body.splitlines()
            if line
        ]
