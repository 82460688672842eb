"""Starts parts in parallel, each after those it needs, and waits until they answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from pathlib import Path

from moraine.local.part import Event, Part, Report, StackError
from moraine.local.processes import MARK, PART, tail
from moraine.local.supervisor import Supervisor
from moraine.tls.files import write_private

_PROBE_INTERVALS = (0.05, 0.5)
"""Seconds. Frequent at first, because PostgreSQL answers at once; then rarer, because every probe
takes processor time from the parts that start."""
_MAX_STARTS = 3


class Startup:
    def __init__(self, home: Path, supervisor: Supervisor, patience: timedelta) -> None:
        self._home = home
        self._supervisor = supervisor
        self._patience = patience
        self._aborted = threading.Event()

    def run(self, parts: Iterable[Part], report: Report) -> None:
        """Start these parts, given in an order in which each comes after its needs."""
        futures: dict[str, Future[None]] = {}
        with ThreadPoolExecutor(max_workers=32) as pool:
            for part in parts:
                needs = [futures[need] for need in part.needs]
                futures[part.name] = pool.submit(self._bring_up, part, needs, report)
            try:
                wait(futures.values(), return_when="FIRST_EXCEPTION")
            finally:
                if not all(f.done() and f.exception() is None for f in futures.values()):
                    self._aborted.set()  # after a failure or Ctrl-C: do not wait for the others
        errors = [error for future in futures.values() if (error := future.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, _Aborted)):
            raise error

    def start(self, part: Part, report: Report) -> None:
        """Start one part by its spec, unless it runs, and wait until it answers."""
        since = datetime.now(UTC)
        log = self._supervisor.log(part.name)
        log_start = log.stat().st_size if log.exists() else 0
        if self._supervisor.state(part.name).pid:
            since -= timedelta(seconds=30)
        else:
            report(Event(part.name, "starting"))
            part.clean()
            self._supervisor.start_part(part.name)
        self.wait(part, since, log_start)
        part.settle(report)
        report(Event(part.name, "ready", ready=True))

    def wait(self, part: Part, since: datetime, log_start: int = 0) -> None:
        deadline = time.monotonic() + self._patience.total_seconds()
        pids: set[int] = set()
        interval, longest = _PROBE_INTERVALS
        while not self._aborted.is_set():
            try:
                return part.probe(since)
            except Exception as error:
                reason = error
            state = self._supervisor.state(part.name)
            pids |= {state.pid} if state.pid else set()
            if state.state in ("FATAL", "STOPPED") or len(pids) > _MAX_STARTS:
                raise self._failure(part, "ended at its start", log_start)
            if time.monotonic() > deadline:
                what = f"did not answer within {self._patience.total_seconds():.0f} s"
                raise self._failure(part, f"{what} ({_one_line(reason)})", log_start) from reason
            time.sleep(interval)
            interval = min(interval * 1.2, longest)
        raise _Aborted

    def _bring_up(self, part: Part, needs: list[Future[None]], report: Report) -> None:
        for need in needs:
            if need.exception():
                raise _Aborted
        part.prepare(report)
        if self._write_spec(part) and self._supervisor.state(part.name).pid:
            self._supervisor.stop_part(part)
        self.start(part, report)

    def _write_spec(self, part: Part) -> bool:
        """Returns whether the command has changed."""
        command = part.command()
        text = json.dumps(
            {
                "argv": command.argv,
                "directory": str(command.directory),
                "env": dict(command.env),
                "mark": {MARK: str(self._home), PART: part.name},
            }
        )
        spec = self._supervisor.spec(part.name)
        if spec.exists() and spec.read_text() == text:
            return False
        write_private(spec, text)
        return True

    def _failure(self, part: Part, what: str, log_start: int) -> StackError:
        log = self._supervisor.log(part.name)
        last_lines = tail(log, start=log_start)
        return StackError(f"{part.name} {what}: see the end of {log}.", details=last_lines)


class _Aborted(StackError):
    """Another part failed, so this one was not waited for."""


def _one_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
