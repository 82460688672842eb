"""Probes answer soon, and a dependency that hangs holds one thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from moraine.errors import LedgerUnavailable
from moraine.http import probe
from moraine.http.probe import NO_ANSWER, OK, Probe


def test_health_probe_answers_with_the_state_of_its_checks() -> None:
    def fail() -> None:
        raise LedgerUnavailable("postgresql://moraine:hunter2@host does not answer")

    assert asyncio.run(Probe("ledger", lambda: None).answer()) == OK
    assert asyncio.run(Probe("ledger", fail).answer()) == "LEDGER_UNAVAILABLE"


def test_health_probe_runs_a_hanging_check_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_PATIENCE_SECONDS", 0.05)
    release, calls = threading.Event(), []

    def hang() -> None:
        calls.append(1)
        release.wait(10)

    async def ask() -> None:
        hanging = Probe("ledger", hang)
        answers = await asyncio.gather(*(hanging.answer() for _ in range(20)))
        assert [*answers, await hanging.answer()] == [NO_ANSWER] * 21
        assert len(calls) == 1
        release.set()
        monkeypatch.setattr(probe, "_PATIENCE_SECONDS", 5)
        assert await hanging.answer() == OK

    asyncio.run(ask())
