"""A ledger that is away is the same error from every store that asks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from psycopg_pool import ConnectionPool

from moraine.drops.tombstones import TombstoneStore
from moraine.errors import LedgerUnavailable
from moraine.idempotency.store import count_records
from moraine.ledger.pools import open_pool
from support.tcp_proxy import TcpProxy, proxied

Pool = ConnectionPool[Any]
CALLS: dict[str, Callable[[Pool], Any]] = {
    "keys are counted": count_records,
    "tombstones are listed": lambda pool: TombstoneStore(pool, "demo").all(),
    "a table is hidden": lambda pool: TombstoneStore(pool, "demo").add(
        "lake", ("shop",), "orders", "", uuid4()
    ),
    "a tombstone is removed": lambda pool: TombstoneStore(pool, "demo").remove(uuid4()),
}


@pytest.fixture
def way(ledger_url: str) -> Iterator[TcpProxy]:
    with proxied(ledger_url) as proxy:
        yield proxy


@pytest.mark.parametrize("call", CALLS)
def test_idempotency_ledger_that_is_away_is_unavailable_when(call: str, way: TcpProxy) -> None:
    with open_pool(way.url, timeout=1) as pool:
        CALLS[call](pool)
        way.cut()
        with pytest.raises(LedgerUnavailable):
            CALLS[call](pool)
