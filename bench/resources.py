"""What processes use while something is measured: memory and time of the cores."""

from __future__ import annotations

import contextlib
import threading

import psutil

_INTERVAL = 0.02


class PeakMemory:
    """The most resident memory a process was seen with, in bytes.

    with PeakMemory(psutil.Process()) as memory:
        ...
    print(memory.peak - memory.before)
    """

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.before = self.peak = self._now()

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.peak = max(self.peak, self._now())

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL):
            self.peak = max(self.peak, self._now())

    def _now(self) -> int:
        return int(self._process.memory_info().rss)


def cpu_seconds(process: psutil.Process) -> float:
    """What a process has used so far, its children included."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total
