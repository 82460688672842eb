"""Blocking calls in threads, so that they do not block the event loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from moraine.errors import MoraineError
from moraine.log import get_logger

T = TypeVar("T")

log = get_logger(__name__)

_MAX_THREADS = 32


class Threads:
    """A separate thread pool. Our calls go back to the host app, whose own threads serve them, so
    using all of those threads would be a deadlock."""

    def __init__(self, max_threads: int = _MAX_THREADS) -> None:
        self._limiter = anyio.CapacityLimiter(max_threads)

    async def __call__(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        work = functools.partial(call, *args, **options)
        return await anyio.to_thread.run_sync(contained, work, limiter=self._limiter)


def contained(call: Callable[[], T]) -> T:
    """Return or raise what the call does, but turn `SystemExit` and the like into a MoraineError.

    They would end the event loop, and every other request with it.
    """
    try:
        return call()
    except Exception:
        raise
    except BaseException as error:
        # Only its type is logged: its message may hold a secret.
        log.error("thread.ended", error=type(error).__name__)
        raise MoraineError() from None
