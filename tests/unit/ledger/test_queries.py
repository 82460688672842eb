"""The SQL files, and the rule by which their statements are retried."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg_pool import PoolTimeout

import moraine
from moraine.errors import LedgerUnavailable
from moraine.ledger.queries import AsyncQueries, Queries

ROOT = Path(moraine.__path__[0])
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in ROOT.rglob("*.sql")
    if "migrations" not in path.parts
)
SQL = {"ping": b"SELECT 1"}


@pytest.mark.parametrize("file", FILES)
def test_ledger_statements_are_described_and_can_be_pasted_into_psql(file: str) -> None:
    _, *blocks = re.split(r"^-- name: ", (ROOT / file).read_text(), flags=re.M)
    assert blocks
    for block in blocks:
        name, description, *statement = block.splitlines()
        assert description.startswith("-- "), f"{name} has no description"
        words = next(line for line in statement if not line.startswith("-- ")).split()
        assert words[0] in {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}, name
        assert not re.search(r"\{\w+\}", block), f"{name} is completed in Python"


class BrokenPool:
    """Its connections break, so many times."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.checked = 0

    @contextmanager
    def connection(self) -> Iterator[Any]:
        if self.errors:
            raise self.errors.pop(0)
        yield Answering()

    def check(self) -> None:
        self.checked += 1


class BrokenAsyncPool(BrokenPool):
    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:  # type: ignore[override]
        if self.errors:
            raise self.errors.pop(0)
        yield AnsweringAsync()

    async def check(self) -> None:  # type: ignore[override]
        self.checked += 1


class Answering:
    def cursor(self, **_options: Any) -> Any:
        return self

    def execute(self, _query: bytes, _parameters: Any) -> None: ...

    def fetchall(self) -> list[dict[str, int]]:
        return [{"alive": 1}]


class AnsweringAsync(Answering):
    async def execute(self, _query: bytes, _parameters: Any) -> None: ...  # type: ignore[override]

    async def fetchall(self) -> list[dict[str, int]]:  # type: ignore[override]
        return [{"alive": 1}]


def run(kind: str, *errors: Exception) -> tuple[list[dict[str, Any]], BrokenPool]:
    if kind == "sync":
        pool = BrokenPool(*errors)
        return Queries(pool, SQL).run("ping"), pool
    async_pool: Any = BrokenAsyncPool(*errors)
    return asyncio.run(AsyncQueries(async_pool, SQL).run("ping")), async_pool


BREAKS = [psycopg.OperationalError("gone"), psycopg.InterfaceError("closed")]
both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
@pytest.mark.parametrize("error", BREAKS, ids=lambda error: type(error).__name__)
def test_ledger_statement_is_retried_once_on_a_broken_connection(
    kind: str, error: Exception
) -> None:
    rows, pool = run(kind, error)
    assert rows == [{"alive": 1}]
    assert pool.checked == 1


@both
@pytest.mark.parametrize(
    "errors", [BREAKS, [PoolTimeout("none free")]], ids=["broken twice", "none free"]
)
def test_ledger_that_does_not_answer_is_a_503(kind: str, errors: list[Exception]) -> None:
    with pytest.raises(LedgerUnavailable) as raised:
        run(kind, *errors)
    assert (raised.value.http_status, raised.value.code) == (503, "LEDGER_UNAVAILABLE")
    assert raised.value.details == type(errors[-1]).__name__


@both
def test_ledger_statement_error_is_raised_as_it_is(kind: str) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        run(kind, psycopg.errors.UniqueViolation("twice"))


def test_ledger_tells_a_patient_caller_that_an_earlier_try_broke(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, pauses = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        pauses.append(seconds)
        now += seconds

    monkeypatch.setattr("time.sleep", sleep)

    class Row:
        def __init__(self, alive: int) -> None: ...

    for breaks in range(4):
        pool = BrokenPool(*[psycopg.OperationalError("gone")] * breaks)
        queries = Queries(pool, SQL, patience=0.5, clock=lambda: now)
        assert queries.run_as(Row, "ping").retried is (breaks > 0)
        pauses.clear()
    pool = BrokenPool(*[psycopg.OperationalError("gone")] * 4)
    with pytest.raises(LedgerUnavailable):
        Queries(pool, SQL, patience=0.5, clock=lambda: now).run("ping")
    assert pauses == [0.0, 0.25, 0.25]
