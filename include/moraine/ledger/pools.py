"""Connection pools to the ledger's database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from pydantic_core import from_json

_CONNECTION: dict[str, Any] = {
    "autocommit": True,
    "application_name": "moraine",
    "connect_timeout": 5,
}


def open_pool(url: str, *, size: int = 4, timeout: float = 5.0) -> ConnectionPool[Any]:
    return ConnectionPool(
        url,
        min_size=1,
        max_size=size,
        timeout=timeout,
        open=True,
        kwargs=_CONNECTION,
        configure=lambda connection: set_json_loads(_load_json, connection),
    )


def open_async_pool(url: str, *, size: int) -> AsyncConnectionPool[Any]:
    """Opened by `async with`."""
    return AsyncConnectionPool(
        url, min_size=1, max_size=size, timeout=5.0, open=False, kwargs=_CONNECTION
    )


class SingleConnection:
    """One connection in place of a pool, opened when it is first needed and after it broke."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._options = _CONNECTION | options
        self._connection: psycopg.Connection[Any] | None = None

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, **self._options)
        try:
            yield self._connection
        except psycopg.Error:
            self.close()
            raise

    def check(self) -> None:
        """Nothing to do: a broken connection is closed at once."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _load_json(data: bytes | str) -> Any:
    try:
        return from_json(data)
    except ValueError:  # nested deeper, or a number longer, than the fast parser takes
        return json.loads(data)
