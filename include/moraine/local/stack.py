"""The embedded stack as a whole: up, down, and what lies between.

with Stack.ephemeral(tmp_path) as stack:
    stack.up({"postgres"})
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moraine.local.airflow import ADMIN, COMPONENTS, Airflow
from moraine.local.catalog import RestCatalog
from moraine.local.classes import Classes
from moraine.local.errors import StackError
from moraine.local.files import render_environment, render_settings
from moraine.local.jars import Jars
from moraine.local.part import LOOPBACK, Event, Part, Report, silent
from moraine.local.ports import free_ports, require_free
from moraine.local.postgres import Postgres
from moraine.local.processes import (
    MARK,
    PART,
    end_processes,
    find_processes,
    inherited_environment,
    tail,
    wait_gone,
)
from moraine.local.spark import SparkConnect
from moraine.local.supervisor import Supervisor
from moraine.local.vault import Vault, write_private
from moraine.settings import StackSettings

PROJECT = Path(__file__).resolve().parents[3]

_PROBE_INTERVAL = 0.1
_MOST_STARTS = 3


@dataclass(frozen=True)
class PartStatus:
    name: str
    state: str
    """running, starting, stopping, stopped, failed; lost: running without supervisord."""
    pid: int | None
    url: str


class Stack:
    def __init__(self, settings: StackSettings | None = None) -> None:
        given = settings or StackSettings()
        self.home = (PROJECT / given.home.expanduser()).resolve()
        self.settings = given.model_copy(update={"home": self.home})
        self._stopping = threading.Event()

    @classmethod
    def open(cls, home: Path) -> Stack:
        """The stack whose data is in `home`, with the ports it was started with."""
        home = (PROJECT / home.expanduser()).resolve()
        saved = home / "stack.json"
        # Written by another version of Moraine it may not be readable; `down` works all the same.
        with contextlib.suppress(FileNotFoundError, ValidationError):
            return cls(StackSettings.model_validate_json(saved.read_text()))
        return cls(StackSettings(home=home))

    @classmethod
    def ephemeral(cls, folder: Path, **changes: Any) -> Stack:
        """A stack of a test's own, on free ports."""
        return cls(StackSettings(home=folder, ports=free_ports(), **changes))

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # --- The whole ------------------------------------------------------------------------

    def up(
        self,
        parts: Collection[str] | None = None,
        *,
        on_event: Report = silent,
        extra_env: Mapping[str, str] | None = None,
    ) -> None:
        """Start these parts and what they need (by default all) and return when they answer.

        `extra_env` goes to Airflow's processes. A part that runs with another command or
        environment is started anew; on a failure, what this call has started is stopped again.
        """
        wanted = self._with_needs(parts if parts is not None else self.parts)
        self.home.mkdir(parents=True, exist_ok=True)
        with self._lock():
            self._require_disk()
            running = self._running()
            for name in wanted:
                if name not in running:
                    require_free(name, self.parts[name].ports)
            self._write_files()
            # Settings given by variables reach the Dags as well.
            given = {k: v for k, v in os.environ.items() if k.startswith("MORAINE_")}
            self.airflow.extra = {**given, **self.environment(), **(extra_env or {})}
            fresh = not self.supervisor.is_running()
            if fresh:
                end_processes(self._processes())
                self.supervisor.start(self.parts.values(), inherited_environment())
            try:
                self._bring_up(wanted, on_event)
            except BaseException:
                self._take_down(None if fresh else set(wanted) - running)
                raise

    def down(self) -> None:
        """Stop everything. Afterwards no process of this stack is left, whoever its parent."""
        if not self.home.exists():
            return
        with self._lock():
            self._take_down(None)

    def status(self) -> list[PartStatus]:
        if not self.home.exists():
            return [PartStatus(name, "stopped", None, "") for name in self.parts]
        supervised = self.supervisor.is_running()
        states = self.supervisor.states() if supervised else {}
        lost = {} if supervised else self._lost()
        words = {"exited": "failed", "fatal": "failed", "backoff": "failed"}
        result = []
        for name, part in self.parts.items():
            if name in states:
                word = states[name].state.lower()
                result.append(PartStatus(name, words.get(word, word), states[name].pid, part.url))
            else:
                pid = lost.get(name)
                result.append(PartStatus(name, "lost" if pid else "stopped", pid, part.url))
        return result

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Every variable a process needs to use this stack. It holds secrets: do not log it."""
        return {
            **self.spark.environment,
            **self.airflow.variables(),
            "MORAINE_CONFIG": str(self.home / "moraine.toml"),
            "MORAINE_STACK__HOME": str(self.home),
            "MORAINE_LEDGER__URL": self.postgres.ledger_url,
            "MORAINE_AIRFLOW__URL": self.airflow.url,
            "MORAINE_AIRFLOW__USERNAME": ADMIN,
            "MORAINE_AIRFLOW__PASSWORD": self.vault.airflow_admin,
            **(extra or {}),
        }

    # --- One part -------------------------------------------------------------------------

    def pid(self, part: str) -> int | None:
        return self.supervisor.state(part).pid

    def start(self, part: str, *, on_event: Report = silent) -> None:
        """Start one part as it was last started, and wait until it answers."""
        if not self.supervisor.is_running() or not self.supervisor.spec(part).exists():
            self.up({part}, on_event=on_event)
            return
        self._stopping.clear()
        require_free(part, self.parts[part].ports)
        self._start_and_wait(self.parts[part], on_event)

    def stop(self, part: str) -> None:
        self.supervisor.stop_part(part)

    def restart(self, part: str, *, on_event: Report = silent) -> None:
        self.stop(part)
        self.start(part, on_event=on_event)

    def kill(self, part: str) -> int:
        """kill -9, as a test of failure: supervisord starts it again. Returns the killed pid."""
        pid = self.pid(part)
        if pid is None:
            raise StackError(f"{part} does not run.")
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid, timeout=10)
        return pid

    def wait(self, part: str) -> None:
        """Wait until a part answers that was killed, or is being started by somebody else."""
        self._await(self.parts[part], datetime.now(UTC), log_start=0)

    def logs(self, part: str) -> Path:
        return self.supervisor.log(part)

    # --- What it is made of ---------------------------------------------------------------

    @cached_property
    def vault(self) -> Vault:
        self.home.mkdir(parents=True, exist_ok=True)
        return Vault.open(self.home / "secrets.json")

    @cached_property
    def supervisor(self) -> Supervisor:
        return Supervisor(self.home, self.vault.supervisor)

    @cached_property
    def postgres(self) -> Postgres:
        return Postgres(self.home, self.settings.ports.postgres, self.vault)

    @cached_property
    def catalog(self) -> RestCatalog:
        return RestCatalog(self.settings, self._jars, self._classes)

    @cached_property
    def spark(self) -> SparkConnect:
        session = self.vault.spark_session
        return SparkConnect(self.settings, self._jars, self._classes, self.catalog.url, session)

    @cached_property
    def airflow(self) -> Airflow:
        return Airflow(self.settings, self.vault, self.postgres, self.spark, PROJECT)

    @cached_property
    def _jars(self) -> Jars:
        return Jars.pinned(self.settings.cache)

    @cached_property
    def _classes(self) -> Classes:
        return Classes(self.home, self._jars)

    @cached_property
    def parts(self) -> dict[str, Part]:
        """In the order in which they are started."""
        components = [component(self.airflow) for component in COMPONENTS]
        return {p.name: p for p in (self.postgres, self.catalog, self.spark, *components)}

    def _with_needs(self, names: Collection[str]) -> list[str]:
        wanted: set[str] = set()
        queue = list(names)
        while queue:
            name = queue.pop()
            if name not in self.parts:
                raise StackError(
                    f"There is no part {name!r}; the parts are {', '.join(self.parts)}."
                )
            wanted.add(name)
            queue += set(self.parts[name].needs) - wanted
        return [name for name in self.parts if name in wanted]

    # --- Up -------------------------------------------------------------------------------

    def _bring_up(self, wanted: list[str], report: Report) -> None:
        self._stopping.clear()
        futures: dict[str, Future[None]] = {}
        with ThreadPoolExecutor(len(wanted)) as pool:
            for name in wanted:
                part = self.parts[name]
                needs = [futures[need] for need in part.needs]
                futures[name] = pool.submit(self._bring_up_part, part, needs, report)
            try:
                wait(futures.values(), return_when="FIRST_EXCEPTION")
            finally:
                # Also on Ctrl-C: let the others stop waiting.
                if not all(f.done() and f.exception() is None for f in futures.values()):
                    self._stopping.set()
        errors = [error for f in futures.values() if (error := f.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, _Stopping)):
            raise error

    def _bring_up_part(self, part: Part, needs: list[Future[None]], report: Report) -> None:
        for need in needs:
            if need.exception():
                raise _Stopping
        part.prepare(report)
        changed = self._write_spec(part)
        if self.supervisor.state(part.name).pid and changed:
            self.supervisor.stop_part(part.name)
        self._start_and_wait(part, report)

    def _start_and_wait(self, part: Part, report: Report) -> None:
        since = datetime.now(UTC)
        log = self.logs(part.name)
        log_start = log.stat().st_size if log.exists() else 0
        if self.supervisor.state(part.name).pid:
            since -= timedelta(seconds=30)
        else:
            report(Event(part.name, "starting"))
            self.supervisor.start_part(part.name)
        self._await(part, since, log_start)
        part.settle(report)
        report(Event(part.name, "ready", ready=True))

    def _await(self, part: Part, since: datetime, log_start: int) -> None:
        deadline = time.monotonic() + self.settings.start_timeout.total_seconds()
        pids: set[int] = set()
        while not self._stopping.is_set():
            try:
                return part.probe(since)
            except Exception as error:
                reason = error
            state = self.supervisor.state(part.name)
            pids |= {state.pid} if state.pid else set()
            if state.state in ("FATAL", "STOPPED") or len(pids) > _MOST_STARTS:
                raise StackError(self._obituary(part, "ended at start", log_start))
            if time.monotonic() > deadline:
                patience = f"{self.settings.start_timeout.total_seconds():.0f} s"
                what = f"did not answer within {patience} ({_one_line(reason)})"
                raise StackError(self._obituary(part, what, log_start)) from reason
            time.sleep(_PROBE_INTERVAL)
        raise _Stopping

    def _obituary(self, part: Part, what: str, log_start: int) -> str:
        log = self.logs(part.name)
        return f"{part.name} {what}; the end of {log}:\n{tail(log, start=log_start)}"

    def _write_spec(self, part: Part) -> bool:
        """Returns whether the command is another than before."""
        command = part.command()
        text = json.dumps(
            {
                "argv": command.argv,
                "directory": str(command.directory),
                "env": dict(command.env),
                "mark": {MARK: str(self.home), PART: part.name},
            }
        )
        spec = self.supervisor.spec(part.name)
        if spec.exists() and spec.read_text() == text:
            return False
        write_private(spec, text)
        return True

    def _write_files(self) -> None:
        for folder in ("run", "logs", "workspace", "warehouse"):
            (self.home / folder).mkdir(exist_ok=True)
        ports = self.settings.ports
        own = {
            "realm": "demo",
            "workspace": (self.home / "workspace").as_uri(),
            "airflow": {"url": f"http://{LOOPBACK}:{ports.airflow}", "username": "admin"},
            "catalogs": {"demo": {"uri": f"http://{LOOPBACK}:{ports.catalog}"}},
            "delegation": {"task": {"lease": {"lost-timeout-duration": "30s"}}},
        }
        (self.home / "moraine.toml").write_text(render_settings(own))
        (self.home / "stack.json").write_text(self.settings.model_dump_json(indent=2))
        write_private(self.home / "env", render_environment(self.environment()))

    def _require_disk(self) -> None:
        free = shutil.disk_usage(self.home).free / 1e9
        least = self.settings.min_free_disk_gb
        if free < least:
            raise StackError(
                f"Only {free:.1f} GB are free on the disk of {self.home}, and the stack wants "
                f"{least:g} GB: make room, or choose another folder with stack.home."
            )

    # --- Down -----------------------------------------------------------------------------

    def _take_down(self, names: set[str] | None) -> None:
        """Stop some parts, or (None) all of them and supervisord with what it left behind."""
        self._stopping.set()
        if self.supervisor.is_running():
            running = self._running()
            doomed = running if names is None else running & names
            # The database goes last: the others say goodbye to it.
            clients = doomed - {self.postgres.name}
            with ThreadPoolExecutor(len(clients) or 1) as pool:
                list(pool.map(self.supervisor.stop_part, clients))
            for name in doomed - clients:
                self.supervisor.stop_part(name)
        if names is None:
            self.supervisor.shut_down()
            end_processes(self._processes())
            if left := self._processes():
                pids = ", ".join(str(process.pid) for process in left)
                raise StackError(f"These processes of the stack do not end: {pids}.")

    def _running(self) -> set[str]:
        if not self.supervisor.is_running():
            return set()
        return {state.name for state in self.supervisor.states().values() if state.pid}

    def _processes(self) -> list[Any]:
        return find_processes(self.home, self.postgres.data)

    def _lost(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for process in self._processes():
            with contextlib.suppress(Exception):
                found.setdefault(process.environ()[PART], process.pid)
        return found

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """One `up` or `down` at a time for a home."""
        with (self.home / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class _Stopping(StackError):
    """Another part failed, so this one was not waited for."""


def _one_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
