"""Sessions with the adapter that gives mutations their keys, in a time of a test's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import requests

from moraine.client.adapter import IdempotentAdapter
from support.keyed_catalog import KeyedCatalog

COMMIT = "/v1/namespaces/n/tables/t"
BODY = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}


class FakeTime:
    """Passes only during a sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[], None] = lambda: None

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.on_sleep()


def adapter(time: FakeTime, **options: Any) -> IdempotentAdapter:
    return IdempotentAdapter(clock=time.clock, sleep=time.sleep, chance=lambda: 0.5, **options)


def commit(
    session: requests.Session, catalog: KeyedCatalog, body: Any = None, **options: Any
) -> requests.Response:
    options = {"timeout": 20, **options}
    return session.post(catalog.url + COMMIT, json=body or BODY, **options)
