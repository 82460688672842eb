"""Named SQL from `.sql` files, run on a pool.

`-- name: claim` starts a block, and the comment below it says what the statement does. A statement
is retried once when its connection breaks, because the pool may hold a connection that died while
it was idle. So each statement must be idempotent, or its caller must look up what an earlier try
did (`Result.retried`). A database that does not answer raises LedgerUnavailable.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from importlib.resources import files
from typing import Any, Generic, Protocol, TypeVar

import psycopg
from psycopg.rows import class_row, dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from moraine.errors import LedgerUnavailable
from moraine.log import get_logger

log = get_logger(__name__)

R = TypeVar("R")
Row = dict[str, Any]

BROKEN = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout)
_BLOCK = re.compile(r"^-- name: (\w+)\n(.*?)(?=^-- name: |\Z)", re.M | re.S)
_PAUSE = 0.25


def load_queries(package: str, filename: str = "queries.sql") -> dict[str, bytes]:
    text = files(package).joinpath(filename).read_text()
    return {name: body.strip().encode() for name, body in _BLOCK.findall(text)}


class ConnectionSource(Protocol):
    """A pool, as far as the runner needs one."""

    def connection(self) -> AbstractContextManager[psycopg.Connection[Any]]: ...

    def check(self) -> None:
        """Drop connections that are broken."""


@dataclass(frozen=True, slots=True)
class Result(Generic[R]):
    rows: list[R]
    retried: bool
    """An earlier try broke. It may or may not have had its effect."""

    @property
    def first(self) -> R | None:
        return self.rows[0] if self.rows else None


@dataclass(frozen=True, slots=True, repr=False)
class Queries:
    """`patience` is how many seconds a statement is retried while the database does not answer."""

    pool: ConnectionSource
    queries: Mapping[str, bytes]
    _: KW_ONLY
    patience: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def run(self, name: str, **parameters: Any) -> list[Row]:
        return self._execute(name, dict_row, parameters).rows

    def run_as(self, record: type[R], name: str, **parameters: Any) -> Result[R]:
        """The rows as records. The names of the columns are those of the fields."""
        return self._execute(name, class_row(record), parameters)

    def _execute(self, name: str, factory: Any, parameters: Row) -> Result[Any]:
        tries = _Tries(name, self.patience, self.clock)
        while True:
            try:
                with self.pool.connection() as connection:
                    cursor = connection.cursor(binary=True, row_factory=factory)
                    cursor.execute(self.queries[name], parameters)
                    return Result(cursor.fetchall(), tries.broken)
            except BROKEN as error:
                time.sleep(tries.pause_after(error))
                self.pool.check()


@dataclass(frozen=True, slots=True, repr=False)
class AsyncQueries:
    pool: AsyncConnectionPool[Any]
    queries: Mapping[str, bytes]

    async def run(self, name: str, **parameters: Any) -> list[Row]:
        tries = _Tries(name)
        while True:
            try:
                async with self.pool.connection() as connection:
                    cursor = connection.cursor(binary=True, row_factory=dict_row)
                    await cursor.execute(self.queries[name], parameters)
                    rows: list[Row] = await cursor.fetchall()
                    return rows
            except BROKEN as error:
                await asyncio.sleep(tries.pause_after(error))
                await self.pool.check()


class _Tries:
    """The retry rule: once at once, then with a pause until the patience is used up."""

    def __init__(
        self, query: str, patience: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.broken = False
        self._query = query
        self._clock = clock
        self._give_up_at = clock() + patience

    def pause_after(self, error: Exception) -> float:
        """Seconds until the next try. Raises LedgerUnavailable if there is none."""
        kind = type(error).__name__
        last = self.broken or isinstance(error, PoolTimeout)
        if last and self._clock() >= self._give_up_at:
            raise LedgerUnavailable(
                "The ledger's database does not answer.", details=kind
            ) from error
        log.warning("ledger.retry", query=self._query, error=kind)
        pause = _PAUSE if self.broken else 0.0
        self.broken = True
        return pause
