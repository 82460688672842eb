"""Removes expired keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from moraine.idempotency.store import RecordStore
from moraine.ledger.pools import open_async_pool
from moraine.orchestration.connections import ledger_url
from moraine.settings import get_settings

T = TypeVar("T")


def forget_expired_keys(url: str | None = None) -> int:
    """Remove expired keys, batch by batch; returns how many."""
    cleanup = get_settings().idempotency.cleanup
    if not cleanup.enabled:
        return 0

    async def run(records: RecordStore) -> int:
        removed = 0
        while batch := await records.remove_expired(cleanup.batch):
            removed += batch
        return removed

    return with_records(url or ledger_url(), run)


def with_records(url: str, work: Callable[[RecordStore], Coroutine[Any, Any, T]]) -> T:
    """Run something on the records of keyed requests, in an event loop of its own."""

    async def run() -> T:
        async with open_async_pool(url, size=2) as pool:
            return await work(RecordStore.of(pool, get_settings().idempotency))

    return asyncio.run(run())
