"""Looks at every prefix until all that was found there is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

from moraine.ingest.filedrop.ledger import FileLedger
from moraine.ingest.filedrop.looks import Counts, Look
from moraine.ingest.filedrop.prefix import Prefix

_POLL_SECONDS = 0.25
_LOOK_AGAIN_SECONDS = 5.0


class Watcher:
    def __init__(self, prefixes: Sequence[Prefix], files: FileLedger, duration: timedelta) -> None:
        self._prefixes = prefixes
        self._files = files
        self._duration = duration.total_seconds()

    async def watch(self) -> Counts:
        """Look until nothing is left to wait for, or the time is over.

        Raises the last look's first problem with a store at the end, when everything else is done.
        """
        until = time.monotonic() + self._duration
        total = Counts()
        async with self._files.alone() as alone:
            while alone:
                look = Look()
                for prefix in self._prefixes:
                    await prefix.look_through(look)
                await self._wait(look, until)
                total = total.then(look.counts)
                if not look.counts.open or time.monotonic() >= until:
                    if look.problem:
                        raise look.problem
                    break
        return total

    async def _wait(self, look: Look, until: float) -> None:
        """Until the next look is worthwhile: meanwhile files may be written."""
        pause = _LOOK_AGAIN_SECONDS if look.next_due is None else look.next_due
        until = min(until, time.monotonic() + pause)
        while look.counts.open and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(_POLL_SECONDS, left))
            if look.counts.waiting:
                waiting = [await prefix.settle(look) for prefix in self._prefixes]
                look.counts.waiting = sum(waiting)
