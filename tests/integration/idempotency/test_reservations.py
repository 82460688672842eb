"""A key is accepted once, and looking at a known one costs the ledger no write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import psycopg
import pytest

from moraine.idempotency.model import KeyClaim, Record, Response, Scope
from moraine.idempotency.store import RecordStore
from moraine.ledger.pools import open_async_pool

HASH = 64 * "0"
INTENT = {"operation": "updateTable"}


@asynccontextmanager
async def open_store(url: str, keep: timedelta = timedelta(hours=1)) -> AsyncIterator[RecordStore]:
    async with open_async_pool(url, size=8) as pool:
        yield RecordStore(pool, lease=timedelta(seconds=30), keep=keep, max_bytes=1 << 20)


def scope(key: str) -> Scope:
    return Scope("demo", "test", "POST", "/catalog/demo/v1/namespaces/shop/tables/orders", key)


def marks(url: str, key: str) -> tuple[object, ...] | None:
    """Who wrote or locked the row last: either costs a transaction and a write to the disk."""
    query = "SELECT xmin, xmax FROM idempotency_records WHERE idempotency_key = %s"
    with psycopg.connect(url) as connection:
        return connection.execute(query, [key]).fetchone()


def test_reservation_finds_a_known_key_without_a_write(ledger_url: str) -> None:
    async def check() -> None:
        async with open_store(ledger_url) as store:
            claim = await store.reserve(scope("known"), HASH, INTENT)
            assert isinstance(claim, KeyClaim)
            in_progress = await store.reserve(scope("known"), HASH, INTENT)
            assert isinstance(in_progress, Record)
            assert in_progress.response is None
            assert await store.finalize(claim, Response(200, (("etag", "x"),), b"done"))
            before = marks(ledger_url, "known")
            record = await store.reserve(scope("known"), HASH, INTENT)
            assert isinstance(record, Record)
            assert record.response == Response(200, (("etag", "x"),), b"done")
            assert marks(ledger_url, "known") == before

    asyncio.run(check())


def test_reservation_of_a_key_succeeds_for_one_of_many_at_once(ledger_url: str) -> None:
    async def check() -> None:
        async with open_store(ledger_url) as store:
            for number in range(20):
                asked = (store.reserve(scope(f"race-{number}"), HASH, INTENT) for _ in range(8))
                found = await asyncio.gather(*asked)
                assert sum(isinstance(one, KeyClaim) for one in found) == 1
                # The others saw it, or will when they ask again.
                again = await store.reserve(scope(f"race-{number}"), HASH, INTENT)
                assert isinstance(again, Record)

    asyncio.run(check())


def test_reservation_that_is_sent_again_finds_itself(
    ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection may break after the reservation was written and before that was said."""
    monkeypatch.setattr("moraine.idempotency.store.uuid4", lambda: "the-same-owner")

    async def check() -> None:
        async with open_store(ledger_url) as store:
            first = await store.reserve(scope("sent-again"), HASH, INTENT)
            second = await store.reserve(scope("sent-again"), HASH, INTENT)
            assert isinstance(first, KeyClaim)
            assert second == first

    asyncio.run(check())


def test_reservation_does_not_know_an_expired_key(ledger_url: str) -> None:
    async def check() -> None:
        async with open_store(ledger_url, keep=timedelta()) as store:
            first = await store.reserve(scope("expired"), HASH, INTENT)
            second = await store.reserve(scope("expired"), HASH, INTENT)
            assert isinstance(first, KeyClaim)
            assert isinstance(second, KeyClaim)
            assert second.owner != first.owner

    asyncio.run(check())
