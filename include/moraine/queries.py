"""Runs named SQL on a pool, and says so in our own terms when the database does not answer.

Every statement is tried twice: the pool may hold a connection that died while nobody used it. So
each must bear being repeated, which is for whoever writes it to see to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolTimeout

from moraine.errors import LedgerUnavailable
from moraine.log import get_logger

log = get_logger(__name__)

BROKEN = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)


class AsyncQueries:
    def __init__(self, pool: AsyncConnectionPool[Any], queries: Mapping[str, bytes]) -> None:
        self._pool = pool
        self._queries = queries

    async def run(self, name: str, **parameters: Any) -> list[dict[str, Any]]:
        for last in (False, True):
            try:
                async with self._pool.connection() as connection:
                    cursor = connection.cursor(binary=True, row_factory=dict_row)
                    await cursor.execute(self._queries[name], parameters)
                    rows: list[dict[str, Any]] = await cursor.fetchall()
                    return rows
            except BROKEN as error:
                _give_up_or_log(error, name, last)
                await self._pool.check()
        raise AssertionError("unreachable")


class Queries:
    def __init__(self, pool: ConnectionPool[Any], queries: Mapping[str, bytes]) -> None:
        self._pool = pool
        self._queries = queries

    def run(self, name: str, **parameters: Any) -> list[dict[str, Any]]:
        for last in (False, True):
            try:
                with self._pool.connection() as connection:
                    cursor = connection.cursor(binary=True, row_factory=dict_row)
                    rows: list[dict[str, Any]] = cursor.execute(
                        self._queries[name], parameters
                    ).fetchall()
                    return rows
            except BROKEN as error:
                _give_up_or_log(error, name, last)
                self._pool.check()
        raise AssertionError("unreachable")


def _give_up_or_log(error: Exception, name: str, last: bool) -> None:
    if last or isinstance(error, PoolTimeout):
        raise LedgerUnavailable(
            "The ledger's database does not answer.", details=type(error).__name__
        ) from error
    log.warning("ledger.retry", query=name, error=type(error).__name__)
    return None
