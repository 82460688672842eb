"""Dag runs that last for an hour: how they end early."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from moraine.orchestration.dag_runs import dag_runs

_CHECK_INTERVAL_SECONDS = 5.0
_checked_at = 0.0


def blocks_scheduler() -> bool:
    """Whether a scheduler that lost its database waits for this run.

    Such a scheduler exits, but with the LocalExecutor only after its tasks have ended. So a task
    that would go on for an hour has to end first.
    """
    from airflow.sdk.configuration import conf

    global _checked_at
    if "LocalExecutor" not in conf.get("core", "executor", fallback=""):
        return False
    if time.monotonic() - _checked_at < _CHECK_INTERVAL_SECONDS:
        return False
    _checked_at = time.monotonic()
    return not dag_runs().scheduler_is_alive()


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT, so that work in progress is completed first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda *_: stop())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
