"""Checks whether a dependency answers, without hanging when it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from moraine.errors import MoraineError
from moraine.log import get_logger

log = get_logger(__name__)

OK = "ok"
NO_ANSWER = "NO_ANSWER"
_PATIENCE_SECONDS = 2.0


class Probe:
    """One dependency's check. Callers during a check share its answer, so a dependency that hangs
    holds one thread, however often its health is asked for."""

    def __init__(self, name: str, check: Callable[[], None]) -> None:
        self._name = name
        self._check = check
        self._running: asyncio.Task[str] | None = None

    async def answer(self) -> str:
        """`ok`, or an error code. The route needs no token, so the reason goes to the log only."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(asyncio.to_thread(self._try))
        await asyncio.wait([self._running], timeout=_PATIENCE_SECONDS)
        return self._running.result() if self._running.done() else NO_ANSWER

    def _try(self) -> str:
        try:
            self._check()
        except MoraineError as error:
            log.warning("health.check.failed", dependency=self._name, reason=str(error))
            return error.code
        return OK
