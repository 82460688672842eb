"""Checks of Airflow's tokens: while Airflow's database is away, nothing else waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from moraine.access import airflow as airflow_module
from moraine.access.airflow import AirflowTokens, AirflowUnavailable
from moraine.errors import MoraineError, Unauthorized

READ, EXECUTE = "tasks:read", "tasks:execute"


class Airflow:
    """Knows one token, which may read; and can be away, like its database."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.threads: set[int] = set()
        self.answers = threading.Event()
        self.answers.set()

    def answer(self, token: str, asked: str) -> str:
        self.asked.append((token, asked))
        self.threads.add(threading.get_ident())
        assert self.answers.wait(20)
        if token != "good":
            raise Unauthorized()
        return "" if asked.startswith(READ) else "You may not."


@pytest.fixture
def airflow() -> Iterator[Airflow]:
    airflow = Airflow()
    yield airflow
    airflow.answers.set()


@contextmanager
def checking(airflow: Airflow, **options: float | Callable[[], float]) -> Iterator[AirflowTokens]:
    tokens = AirflowTokens("demo", airflow.answer, **options)  # type: ignore[arg-type]
    yield tokens
    tokens.close()


def test_airflow_tokens_a_token_that_allows_it(airflow: Airflow) -> None:
    with checking(airflow) as tokens:
        assert asyncio.run(tokens.answer("good", READ)) == ""
    assert airflow.asked == [("good", READ)]
    assert threading.get_ident() not in airflow.threads


def test_airflow_tokens_a_token_that_does_not(airflow: Airflow) -> None:
    with checking(airflow) as tokens:
        assert asyncio.run(tokens.answer("good", EXECUTE)) == "You may not."
        with pytest.raises(Unauthorized):
            asyncio.run(tokens.answer("made up", READ))


def test_airflow_tokens_the_event_loop_goes_on_while_airflows_database_is_away(
    airflow: Airflow,
) -> None:
    airflow.answers.clear()

    async def scene(tokens: AirflowTokens) -> None:
        checks = [asyncio.create_task(tokens.answer(f"token {n}", READ)) for n in range(40)]
        for _ in range(20):
            await asyncio.sleep(0.01)
            # The threads of all others are free.
            await asyncio.to_thread(int)
        assert not any(check.done() for check in checks)
        airflow.answers.set()
        results = await asyncio.gather(*checks, return_exceptions=True)
        assert {type(result) for result in results} == {Unauthorized}

    with checking(airflow, timeout=60) as tokens:
        asyncio.run(scene(tokens))
        assert len(airflow.threads) <= 4


def test_airflow_tokens_after_an_outage_tokens_are_checked_again(airflow: Airflow) -> None:
    airflow.answers.clear()

    async def scene(tokens: AirflowTokens) -> None:
        with pytest.raises(AirflowUnavailable):
            await tokens.answer("good", READ)
        airflow.answers.set()
        await asyncio.sleep(0.05)
        await tokens.answer("good", READ)

    with checking(airflow, timeout=1) as tokens:
        asyncio.run(scene(tokens))


def test_airflow_tokens_equal_checks_at_once_are_one(airflow: Airflow) -> None:
    async def scene(tokens: AirflowTokens) -> None:
        await asyncio.gather(*(tokens.answer("good", READ) for _ in range(50)))

    with checking(airflow) as tokens:
        asyncio.run(scene(tokens))
    assert len(airflow.asked) == 1


def test_airflow_tokens_a_decision_is_remembered_for_seconds_and_for_one_right(
    airflow: Airflow,
) -> None:
    now = 100.0

    async def scene(tokens: AirflowTokens) -> None:
        nonlocal now
        await tokens.answer("good", READ)
        now += 4.9
        await tokens.answer("good", READ)
        assert len(airflow.asked) == 1
        assert await tokens.answer("good", EXECUTE)
        assert not await tokens.answer("good", f"{READ} of another")
        assert len(airflow.asked) == 3
        now += 0.2
        await tokens.answer("good", READ)
        assert len(airflow.asked) == 4

    with checking(airflow, clock=lambda: now) as tokens:
        asyncio.run(scene(tokens))


def test_airflow_tokens_made_up_tokens_push_nothing_out_and_no_token_is_kept(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_module, "_MAX_KNOWN", 2)

    async def scene(tokens: AirflowTokens) -> None:
        await tokens.answer("good", READ)
        for number in range(10):
            with pytest.raises(Unauthorized):
                await tokens.answer(f"made up {number}", READ)
        before = len(airflow.asked)
        await tokens.answer("good", READ)
        assert len(airflow.asked) == before
        for number in range(5):
            await tokens.answer("good", f"{READ} {number}")
        assert len(tokens._known) == 2
        assert "good" not in repr(vars(tokens))

    with checking(airflow) as tokens:
        asyncio.run(scene(tokens))


def test_airflow_tokens_too_many_checks_at_once_are_refused_at_once(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_module, "_MAX_PENDING", 3)
    airflow.answers.clear()

    async def scene(tokens: AirflowTokens) -> None:
        waiting = [asyncio.create_task(tokens.answer(f"token {n}", READ)) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(AirflowUnavailable):
            await tokens.answer("another", READ)
        assert not any(one.done() for one in waiting)
        airflow.answers.set()
        await asyncio.gather(*waiting, return_exceptions=True)

    with checking(airflow) as tokens:
        asyncio.run(scene(tokens))


def test_airflow_tokens_an_exit_in_airflows_code_does_not_end_the_process() -> None:
    def leave(_token: str, _asked: str) -> str:
        raise SystemExit(1)

    tokens = AirflowTokens("demo", leave)
    with pytest.raises(MoraineError):
        asyncio.run(tokens.answer("good", READ))
    tokens.close()


def test_airflow_tokens_wait_for_the_import_of_airflow_once(airflow: Airflow) -> None:
    imported: list[float] = []

    def import_slowly() -> None:
        time.sleep(1.2)
        imported.append(time.monotonic())

    async def scene(tokens: AirflowTokens) -> list[str]:
        return await asyncio.gather(*(tokens.answer("good", f"{READ} {n}") for n in range(5)))

    tokens = AirflowTokens("demo", airflow.answer, import_slowly, timeout=1)
    assert asyncio.run(scene(tokens)) == [""] * 5
    assert len(imported) == 1
    tokens.close()
