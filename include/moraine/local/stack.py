"""The embedded stack as a whole: up, down, and what lies between.

with Stack.ephemeral(tmp_path) as stack:
    stack.up({"postgres"})
    connect(stack.environment()["MORAINE_LEDGER__URL"])
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from moraine.local.airflow import ADMIN, COMPONENTS, Airflow
from moraine.local.catalog import RestCatalog
from moraine.local.classes import Classes
from moraine.local.errors import StackError
from moraine.local.files import file_uri, render_environment, render_settings
from moraine.local.jars import Jars
from moraine.local.java import find_java
from moraine.local.part import Part, Report, silent
from moraine.local.ports import free_ports, require_free
from moraine.local.postgres import Postgres
from moraine.local.processes import (
    PART,
    end_processes,
    find_processes,
    inherited_environment,
    wait_gone,
)
from moraine.local.spark import SparkConnect
from moraine.local.startup import Startup
from moraine.local.supervisor import Supervisor
from moraine.local.vault import Vault, write_private
from moraine.settings import StackSettings, get_settings

PROJECT = Path(__file__).resolve().parents[3]

_KINDS: tuple[type[Part], ...] = (Postgres, RestCatalog, SparkConnect, *COMPONENTS)
_FAILPOINTS = "MORAINE_FAILPOINTS"
_WORDS = {"exited": "failed", "fatal": "failed", "backoff": "failed"}


@dataclass(frozen=True)
class PartStatus:
    name: str
    state: str
    """running, starting, stopping, stopped, failed; or lost: running without supervisord."""
    pid: int | None
    url: str


class Stack:
    def __init__(self, settings: StackSettings, *, user_settings: Path | None = None) -> None:
        """`user_settings` is a `moraine.toml` that the stack's own is laid over."""
        self.home = _absolute(settings.home)
        self.settings = settings.model_copy(update={"home": self.home})
        self._user_settings = user_settings

    @classmethod
    def configured(cls) -> Stack:
        """The stack that the settings at hand describe."""
        file = Path(os.environ.get("MORAINE_CONFIG", PROJECT / "moraine.toml"))
        settings = get_settings().stack
        own = file.resolve().parent == _absolute(settings.home)
        return cls(settings, user_settings=None if own else file)

    @classmethod
    def open(cls, home: Path | None = None) -> Stack:
        """The stack whose data is in `home`, with the ports it was last started with."""
        chosen = home or os.environ.get("MORAINE_STACK__HOME") or StackSettings().home
        folder = _absolute(Path(chosen))
        # Written by another version of Moraine it may not be readable; `down` works all the same.
        with contextlib.suppress(FileNotFoundError, ValidationError):
            return cls(StackSettings.model_validate_json((folder / "stack.json").read_text()))
        return cls(StackSettings(home=folder))

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

        `extra_env` goes to Airflow's processes, and failpoints to Spark as well. A part that runs
        with another command or environment is started anew; on a failure, what this call has
        started is stopped again.
        """
        wanted = self._with_needs(self.parts if parts is None else parts)
        self.home.mkdir(parents=True, exist_ok=True)
        with self._lock():
            self._require_disk()
            fresh = not self.supervisor.is_running()
            if fresh:
                end_processes(self._processes())  # of a supervisord that was killed
            before = self._running()
            for name in wanted:
                if name not in before:
                    require_free(name, self.parts[name].ports)
            self._write_files()
            # Settings given by variables reach the Dags as well.
            given = {k: v for k, v in os.environ.items() if k.startswith("MORAINE_")}
            self.airflow.extra = {**given, **self.environment(), **(extra_env or {})}
            self.spark.extra = {k: v for k, v in self.airflow.extra.items() if k == _FAILPOINTS}
            if fresh:
                self.supervisor.start(self.parts.values(), inherited_environment())
            try:
                self._startup().run([self.parts[name] for name in wanted], on_event)
            except BaseException:
                self._take_down(None if fresh else set(wanted) - before)
                raise

    def down(self) -> None:
        """Stop everything. Afterwards no process of this stack is left, whoever its parent."""
        if self.home.exists():
            with self._lock():
                self._take_down(None)

    def is_running(self) -> bool:
        return self.home.exists() and self.supervisor.is_running()

    def status(self) -> list[PartStatus]:
        if not self.home.exists():
            return [PartStatus(kind.name, "stopped", None, "") for kind in _KINDS]
        states = self.supervisor.states() if self.supervisor.is_running() else {}
        lost = self._lost() if not states else {}
        result = []
        for name, part in self.parts.items():
            if state := states.get(name):
                word = state.state.lower()
                result.append(PartStatus(name, _WORDS.get(word, word), state.pid, part.url))
            else:
                pid = lost.get(name)
                result.append(PartStatus(name, "lost" if pid else "stopped", pid, part.url))
        return result

    @property
    def drop_folder(self) -> Path:
        """Files in DATABASE/TABLE below it become rows."""
        return self.home / "drop"

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
            "MORAINE_INGEST__OTLP__GRPC_PORT": str(self.settings.ports.otlp),
            **(extra or {}),
        }

    def fetch_jars(self, *, on_event: Report = silent) -> None:
        """Download what `up` would need, without starting anything."""
        self._jars.fetch(find_java(), on_event, self.settings.ivy_settings)

    # --- One part -------------------------------------------------------------------------

    def pid(self, part: str) -> int | None:
        return self.supervisor.state(part).pid

    def start(self, part: str, *, on_event: Report = silent) -> None:
        """Start one part as it was last started, and wait until it answers."""
        if not self.is_running() or not self.supervisor.spec(part).exists():
            self.up({part}, on_event=on_event)
            return
        if self.pid(part) is None:
            require_free(part, self.parts[part].ports)
        self._startup().start(self.parts[part], on_event)

    def stop(self, part: str) -> None:
        self.supervisor.stop_part(part)

    def restart(self, part: str, *, on_event: Report = silent) -> None:
        self.stop(part)
        self.start(part, on_event=on_event)

    def kill(self, part: str) -> int:
        """kill -9 to its first process, as a test of failure: supervisord starts it again.

        Returns the pid that was killed; `wait` for the next.
        """
        pid = self.pid(part)
        if pid is None:
            raise StackError(f"{part} does not run.")
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid, timeout=10)
        return pid

    def wait(self, part: str, since: datetime | None = None) -> None:
        """Wait until a part answers that was killed, or is being started by somebody else."""
        self._startup().wait(self.parts[part], since or datetime.now(UTC))

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
        return Airflow(self.settings, self.vault, self.postgres, PROJECT)

    @cached_property
    def parts(self) -> dict[str, Part]:
        """In an order in which they can be started."""
        components = [component(self.airflow) for component in COMPONENTS]
        return {p.name: p for p in (self.postgres, self.catalog, self.spark, *components)}

    @cached_property
    def _jars(self) -> Jars:
        return Jars.pinned(self.settings.cache)

    @cached_property
    def _classes(self) -> Classes:
        return Classes(self.home, self._jars)

    def _startup(self) -> Startup:
        return Startup(self.home, self.supervisor, self.settings.start_timeout)

    # --- Up -------------------------------------------------------------------------------

    def _with_needs(self, names: Collection[str]) -> list[str]:
        wanted: set[str] = set()
        queue = list(names)
        while queue:
            name = queue.pop()
            if name not in self.parts:
                known = ", ".join(self.parts)
                raise StackError(f"There is no part {name!r}; the parts are {known}.")
            wanted.add(name)
            queue += set(self.parts[name].needs) - wanted
        return [name for name in self.parts if name in wanted]

    def _write_files(self) -> None:
        for folder in ("run", "logs", "workspace", "warehouse", "drop"):
            (self.home / folder).mkdir(exist_ok=True)
        own = {
            "realm": "demo",
            "workspace": file_uri(self.home / "workspace"),
            "airflow": {"url": self.airflow.url, "username": ADMIN},
            "catalogs": {"demo": {"uri": self.catalog.url}},
            "delegation": {"task": {"lease": {"lost-timeout-duration": "30s"}}},
            "ingest": {
                "filedrop": {
                    "prefixes": {"drop": {"location": file_uri(self.drop_folder), "settle": "2s"}}
                }
            },
        }
        (self.home / "moraine.toml").write_text(render_settings(own, self._user_settings))
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
        running = self._running()
        doomed = running if names is None else running & names
        # The database goes last: the others say goodbye to it.
        clients = doomed - {self.postgres.name}
        with ThreadPoolExecutor(max_workers=32) as pool:
            list(pool.map(self.supervisor.stop_part, clients))
        for name in doomed - clients:
            self.supervisor.stop_part(name)
        if names is None:
            self.supervisor.end()
            end_processes(self._processes())
            if left := self._processes():
                pids = ", ".join(str(process.pid) for process in left)
                raise StackError(f"These processes of the stack do not end: {pids}.")

    def _running(self) -> set[str]:
        if not self.supervisor.is_running():
            return set()
        return {state.name for state in self.supervisor.states().values() if state.pid}

    def _processes(self) -> list[psutil.Process]:
        return find_processes(self.home, self.postgres.data)

    def _lost(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for process in self._processes():
            with contextlib.suppress(psutil.Error, KeyError):
                found.setdefault(process.environ()[PART], process.pid)
        return found

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """One `up` or `down` at a time for a home."""
        with (self.home / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def use_environment_of_running_stack() -> bool:
    """Let this process use the stack in the default home, if one is running there."""
    stack = Stack.open()
    if not stack.is_running():
        return False
    for name, value in stack.environment().items():
        os.environ.setdefault(name, value)
    get_settings.cache_clear()
    return True


def _absolute(home: Path) -> Path:
    """A relative home is meant from the project, wherever the caller stands."""
    return (PROJECT / home.expanduser()).resolve()
