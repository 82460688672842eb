"""The embedded stack as a whole: start it, stop it, and use its parts.

with Stack.ephemeral(tmp_path) as stack:
    stack.up({"postgres"})
    connect(stack.environment()["MORAINE_LEDGER__URL"])
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from moraine.local.airflow import ADMIN, COMPONENTS, Airflow, Component, MoraineApi
from moraine.local.catalog import CatalogServer
from moraine.local.certificates import StackCertificates
from moraine.local.home import Vault, file_uri, merged, render_environment, render_settings
from moraine.local.jars import Classes, Jars
from moraine.local.java import find_java
from moraine.local.part import (
    Part,
    Report,
    StackError,
    free_ports,
    locked,
    require_free,
    silent,
)
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
from moraine.settings import StackSettings, get_settings
from moraine.tls.files import write_private

PROJECT = Path(__file__).resolve().parents[3]

_KINDS: tuple[type[Part], ...] = (Postgres, CatalogServer, SparkConnect, *COMPONENTS)
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
        """`user_settings` is a `moraine.toml`; the stack's own settings override it."""
        self.home = _absolute(settings.home)
        self.settings = settings.model_copy(update={"home": self.home})
        self._user_settings = user_settings

    @classmethod
    def configured(cls) -> Stack:
        """The stack that the current settings describe."""
        file = Path(os.environ.get("MORAINE_CONFIG", PROJECT / "moraine.toml"))
        settings = get_settings().stack
        own = file.resolve().parent == _absolute(settings.home)
        return cls(settings, user_settings=None if own else file)

    @classmethod
    def open(cls, home: Path | None = None) -> Stack:
        """The stack whose data is in `home`, with the ports it was last started with."""
        chosen = home or os.environ.get("MORAINE_STACK__HOME") or StackSettings().home
        folder = _absolute(Path(chosen))
        # A file of another version of Moraine may not be readable; `down` works without it.
        with contextlib.suppress(FileNotFoundError, ValidationError):
            return cls(StackSettings.model_validate_json((folder / "stack.json").read_text()))
        return cls(StackSettings(home=folder))

    @classmethod
    def ephemeral(cls, folder: Path, **changes: Any) -> Stack:
        """A stack for one test, on free ports."""
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
        with another command or environment is restarted. If a part fails, the parts that this call
        has started are stopped.
        """
        wanted = self._with_needs(self.parts if parts is None else parts)
        with locked(self.home):
            self._require_disk()
            fresh = not self.supervisor.is_running()
            if fresh:
                end_processes(self._processes())  # left by a supervisord that was killed
            before = self._running()
            for name in wanted:
                if name not in before:
                    require_free(name, self.parts[name].ports)
            self.certificates.prepare()
            self._write_files()
            # Settings in the caller's environment reach the Dags as well.
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
        """Stop everything. No process of this stack is left, whatever its parent."""
        if self.home.exists():
            with locked(self.home):
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
            pid = lost.get(name)
            word = "lost" if pid else "stopped"
            if state := states.get(name):
                pid, word = state.pid, state.state.lower()
            result.append(PartStatus(name, _WORDS.get(word, word), pid, part.url))
        return result

    @property
    def drop_folder(self) -> Path:
        """Files in DATABASE/TABLE below it become rows."""
        return self.home / "drop"

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Every variable that a client of this stack needs, secrets included: do not log it."""
        return {
            **self.spark.environment,
            **self.airflow.variables(),
            "MORAINE_CONFIG": str(self.home / "moraine.toml"),
            "MORAINE_STACK__HOME": str(self.home),
            "MORAINE_LEDGER__URL": self.postgres.ledger_url,
            "MORAINE_LEDGER__EXECUTOR_URL": self.postgres.executor_url,
            "MORAINE_AIRFLOW__URL": self.airflow.url,
            "MORAINE_AIRFLOW__USERNAME": ADMIN,
            "MORAINE_AIRFLOW__PASSWORD": self.vault.airflow_admin,
            "MORAINE_INGEST__OTLP__GRPC_PORT": str(self.settings.ports.otlp),
            **(extra or {}),
        }

    def own_settings(self) -> dict[str, Any]:
        """Moraine's settings for this stack, without secrets."""
        own: dict[str, Any] = {
            "realm": "demo",
            "workspace": file_uri(self.home / "workspace"),
            "airflow": {"url": self.airflow.url, "username": ADMIN},
            "catalogs": {
                "demo": {
                    "uri": self.catalog.url,
                    "allowed-locations": [file_uri(self.home / "warehouse")],
                }
            },
            "delegation": {"task": {"lease": {"lost-timeout-duration": "30s"}}},
            "ingest": {
                "filedrop": {
                    "prefixes": {"drop": {"location": file_uri(self.drop_folder), "settle": "2s"}}
                }
            },
        }
        if self.settings.tls:
            own["api"] = {"port": self.settings.ports.api}
        return merged(own, self.certificates.settings())

    def fetch_jars(self, *, on_event: Report = silent) -> None:
        """Download what `up` needs, without starting anything."""
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
        self.supervisor.stop_part(self.parts[part])

    def restart(self, part: str, *, on_event: Report = silent) -> None:
        self.stop(part)
        self.start(part, on_event=on_event)

    def kill(self, part: str) -> int:
        """kill -9 its first process, for tests of failures: supervisord starts it again.

        Returns the pid that was killed. `wait` returns when the next one answers.
        """
        pid = self.pid(part)
        if pid is None:
            raise StackError(f"{part} is not running.")
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid, timeout=10)
        return pid

    def wait(self, part: str, since: datetime | None = None) -> None:
        """Wait until a part answers that was killed, or that another process starts."""
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
    def certificates(self) -> StackCertificates:
        return StackCertificates(self.settings)

    @cached_property
    def postgres(self) -> Postgres:
        return Postgres(self.settings, self.vault, self.certificates, self._jars)

    @cached_property
    def catalog(self) -> CatalogServer:
        return CatalogServer(self.settings, self._jars, self._classes)

    @cached_property
    def spark(self) -> SparkConnect:
        return SparkConnect(self.settings, self._jars, self._classes, self.catalog.url, self.vault)

    @cached_property
    def airflow(self) -> Airflow:
        return Airflow(self.settings, self.vault, self.postgres, PROJECT, self.certificates)

    @cached_property
    def parts(self) -> dict[str, Part]:
        """In an order in which they can be started."""
        kinds: tuple[type[Component], ...] = COMPONENTS
        if self.settings.tls:
            kinds = (*COMPONENTS, MoraineApi)
        components = [kind(self.airflow) for kind in kinds]
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
        # Whoever writes there decides what is read and deleted.
        (self.home / "workspace").chmod(0o700)
        (self.home / "moraine.toml").write_text(
            render_settings(self.own_settings(), self._user_settings)
        )
        (self.home / "stack.json").write_text(self.settings.model_dump_json(indent=2))
        write_private(self.home / "env", render_environment(self.environment()))

    def _require_disk(self) -> None:
        free = shutil.disk_usage(self.home).free / 1e9
        least = self.settings.min_free_disk_gb
        if free < least:
            raise StackError(
                f"Only {free:.1f} GB are free on the disk of {self.home}, and the stack needs "
                f"{least:g} GB: make room, or choose another folder with stack.home."
            )

    # --- Down -----------------------------------------------------------------------------

    def _take_down(self, names: set[str] | None) -> None:
        """Stop some parts, or (None) all of them and supervisord with what it left behind."""
        running = self._running()
        self._stop(running if names is None else running & names)
        if names is None:
            self.supervisor.end()
            end_processes(self._processes())
            if left := self._processes():
                pids = ", ".join(str(process.pid) for process in left)
                raise StackError(f"These processes of the stack do not end: {pids}.")

    def _stop(self, names: set[str]) -> None:
        """Each after those that need it: a task that ends with its scheduler still reports to the
        API server, which writes the outcome in the database."""
        while names:
            needed = {need for name in names for need in self.parts[name].needs}
            with ThreadPoolExecutor(max_workers=32) as pool:
                list(pool.map(self.stop, names - needed))
            names = names & needed

    def _running(self) -> set[str]:
        if not self.supervisor.is_running():
            return set()
        return {name for name, state in self.supervisor.states().items() if state.pid}

    def _processes(self) -> list[psutil.Process]:
        return find_processes(self.home, self.postgres.data)

    def _lost(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for process in self._processes():
            with contextlib.suppress(psutil.Error, KeyError):
                found.setdefault(process.environ()[PART], process.pid)
        return found


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
    """A relative home is relative to the project, not to the working directory."""
    return (PROJECT / home.expanduser()).resolve()
