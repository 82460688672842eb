"""Limits of one process: what they count, and that they forget."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from moraine.errors import BodyTooSlow, TooManyRequests
from moraine.http.limits import HEAD, BodyPace, ByteBudget, Concurrency, LimitCounts, client_of


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not:an:address", "not:an:address"),
        ("testclient", "testclient"),
    ],
)
def test_a_client_is_an_address_or_its_network(address: str, client: str) -> None:
    assert client_of({"client": (address, 5000)}) == client


def test_a_client_without_an_address() -> None:
    assert client_of({"client": None}) == client_of({}) == ""


def test_requests_of_one_key_at_once() -> None:
    counts = LimitCounts()
    limit = Concurrency("client", 2, counts)
    with limit.hold("a"), limit.hold("a"):
        with pytest.raises(TooManyRequests) as refused, limit.hold("a"):
            pass
        assert refused.value.retry_after == 1
        with limit.hold("b"):
            assert len(limit) == 2
    with limit.hold("a"), limit.hold("a"):
        pass
    assert len(limit) == 0, "who asks for nothing is not remembered"
    assert counts.all() == {"client": 1}


def test_a_request_that_fails_is_over() -> None:
    limit = Concurrency("client", 1, LimitCounts())
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), limit.hold("a"):
            raise ZeroDivisionError
    assert len(limit) == 0


def test_bytes_of_all_requests_together() -> None:
    counts = LimitCounts()
    budget = ByteBudget(100, counts)
    with budget.holding() as first, budget.holding() as second:
        first(60)
        second(40)
        with pytest.raises(TooManyRequests):
            first(1)
        assert budget.used == 100
    assert budget.used == 0
    assert counts.all() == {"bytes": 1}


class Body:
    """Parts of a body, each after a pause of so many seconds."""

    def __init__(self, *parts: tuple[float, bytes]) -> None:
        self._parts = list(parts)

    async def receive(self) -> Message:
        if not self._parts:
            return {"type": "http.disconnect"}
        pause, part = self._parts.pop(0)
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": part, "more_body": bool(self._parts)}


def read(body: Body, grace: float, rate: float, **options: Any) -> bytes:
    async def scene() -> bytes:
        receive = BodyPace(grace, rate, LimitCounts()).paced(body.receive, **options)
        content = b""
        while (message := await receive())["type"] == "http.request":
            content += message["body"]
        return content

    return asyncio.run(scene())


def test_a_body_in_time() -> None:
    assert read(Body((0, b"a"), (0.05, b"b"), (0, b"c")), 1, 1) == b"abc"


def test_a_body_that_is_slower_than_the_rate() -> None:
    """No pause is long, but all together bring too little."""
    with pytest.raises(BodyTooSlow, match=r"Only \d bytes"):
        read(Body(*[(0.05, b"a")] * 50), 0.2, 1000)
    assert len(read(Body(*[(0.02, b"a" * 100)] * 60), 1, 1000)) == 6000


def test_much_at_first_does_not_earn_a_long_pause() -> None:
    with pytest.raises(BodyTooSlow):
        read(Body((0, b"a" * 10_000), (1, b"b")), 0.2, 1000)


def test_the_readers_own_time_does_not_count() -> None:
    async def scene() -> None:
        body = Body(*[(0, b"a")] * 4)
        receive = BodyPace(0.3, 1000, LimitCounts()).paced(body.receive)
        for _ in range(4):
            await receive()
            await asyncio.sleep(0.3)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("sizes", "told_after"),
    [([10], 1), ([10, 10], 2), ([HEAD, 10, 10], 1), ([10, HEAD, 10], 2)],
)
def test_it_is_told_once_that_a_body_has_arrived(sizes: list[int], told_after: int) -> None:
    async def scene() -> list[int]:
        told: list[int] = []
        body = Body(*((0, b"a" * size) for size in sizes))
        receive = BodyPace(1, 1, LimitCounts()).paced(body.receive, lambda: told.append(number))
        for number in range(1, len(sizes) + 2):  # noqa: B007 - the call above reads it
            await receive()
        return told

    assert asyncio.run(scene()) == [told_after]


def test_a_wait_for_the_end_of_a_connection_has_no_limit() -> None:
    """A stream of events waits for it, for hours."""

    async def scene() -> None:
        async def receive() -> Message:
            if first.pop() is not None:
                return {"type": "http.request", "body": b"", "more_body": False}
            await asyncio.sleep(0.2)
            return {"type": "http.disconnect"}

        first: list[Any] = [None, 1]
        paced = BodyPace(0.05, 1, LimitCounts()).paced(receive)
        await paced()
        assert (await paced())["type"] == "http.disconnect"

    asyncio.run(scene())
