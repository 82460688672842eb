"""supervisord, which keeps the stack's processes running after `moraine up` has returned."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import xmlrpc.client
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psutil
from supervisor.xmlrpc import SupervisorTransport  # type: ignore[import-untyped]

from moraine.local import launch
from moraine.local.errors import StackError
from moraine.local.part import Part
from moraine.local.privileges import belongs_to_us, is_root
from moraine.local.processes import MARK, tail, wait_gone
from moraine.local.vault import write_private

# A Unix socket's path may have 107 characters; supervisord first makes it with a suffix.
_LONGEST_SOCKET_PATH = 90
_USER = "moraine"
_ALREADY_SO = {60, 70}  # supervisord's faults ALREADY_STARTED and NOT_RUNNING


@dataclass(frozen=True)
class ProcessState:
    name: str
    state: str
    """supervisord's word: STOPPED, STARTING, RUNNING, BACKOFF, STOPPING, EXITED, FATAL."""
    pid: int | None
    exit_status: int


class Supervisor:
    def __init__(self, home: Path, password: str) -> None:
        self._home = home
        self._password = password
        self._run = home / "run"
        self._config = self._run / "supervisord.conf"
        self._pidfile = self._run / "supervisord.pid"
        self._log = home / "logs" / "supervisord.log"

    @property
    def pid(self) -> int | None:
        try:
            pid = int(self._pidfile.read_text())
        except (FileNotFoundError, ValueError):
            return None
        try:
            return pid if psutil.Process(pid).environ().get(MARK) == str(self._home) else None
        except psutil.Error:
            return None

    def is_running(self) -> bool:
        if self.pid is None:
            return False
        try:
            return bool(self._call("supervisor.getState")["statecode"] == 1)
        except (OSError, xmlrpc.client.Error):
            return False

    def start(self, parts: Iterable[Part], env: dict[str, str], timeout: float = 15) -> None:
        """Start supervisord with all parts known to it and none running."""
        self._make_folders()
        write_private(self._config, self.render_config(parts))
        started = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(self._config)],
            env={**env, MARK: str(self._home)},
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if started.returncode:
            raise StackError(f"supervisord did not start: {started.stderr.strip()}")
        deadline = time.monotonic() + timeout
        while not self.is_running():
            if time.monotonic() > deadline:
                raise StackError("supervisord does not answer.", details=tail(self._log))
            time.sleep(0.05)

    def states(self) -> dict[str, ProcessState]:
        return {
            info["name"]: ProcessState(
                info["name"], info["statename"], info["pid"] or None, info["exitstatus"]
            )
            for info in self._call("supervisor.getAllProcessInfo")
        }

    def state(self, name: str) -> ProcessState:
        return self.states()[name]

    def start_part(self, name: str) -> None:
        self._change("supervisor.startProcess", name, False)

    def stop_part(self, name: str) -> None:
        self._change("supervisor.stopProcess", name, True)

    def end(self) -> None:
        """End supervisord itself, after its parts were stopped.

        Its own shutdown takes seconds to notice that nothing is left to wait for.
        """
        if pid := self.pid:
            os.kill(pid, signal.SIGKILL)
            wait_gone(pid, timeout=10)
        self._pidfile.unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)
        if self.socket.parent != self._run:
            with contextlib.suppress(FileNotFoundError):
                self.socket.parent.rmdir()

    def spec(self, name: str) -> Path:
        """The private file a part's command and environment are read from at every start."""
        return self._run / f"{name}.json"

    def log(self, name: str) -> Path:
        return self._log.with_name(f"{name}.log")

    @property
    def socket(self) -> Path:
        path = self._run / "supervisor.sock"
        if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
            return path
        name = hashlib.sha256(os.fsencode(self._home)).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"moraine-{os.geteuid()}-{name}"
        return folder / "supervisor.sock"

    def render_config(self, parts: Iterable[Part]) -> str:
        sections = [
            f"""\
[unix_http_server]
file={_escaped(self.socket)}
chmod=0600
username={_USER}
password={self._password}

[supervisord]
logfile={_escaped(self._log)}
logfile_maxbytes=5MB
logfile_backups=1
pidfile={_escaped(self._pidfile)}
childlogdir={_escaped(self._run)}
identifier=moraine
umask=022
{"user=root" if is_root() else ""}

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
        ]
        for part in parts:
            command = [sys.executable, "-I", launch.__file__, str(self.spec(part.name))]
            group = str(part.signal_group).lower()
            sections.append(
                f"""\
[program:{part.name}]
command={_escaped(shlex.join(command))}
autostart=false
autorestart=true
startsecs=1
startretries=10
stopsignal={part.stop_signal}
stopwaitsecs={part.stop_seconds}
stopasgroup={group}
killasgroup={group}
redirect_stderr=true
stdout_logfile={_escaped(_escaped(self.log(part.name)))}
stdout_logfile_maxbytes=10MB
stdout_logfile_backups=2
"""
            )
        return "\n".join(sections)

    def _make_folders(self) -> None:
        for folder in (self._run, self._log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.socket.parent.mkdir(mode=0o700, exist_ok=True)
        if not belongs_to_us(self.socket.parent):
            raise StackError(f"{self.socket.parent} belongs to somebody else: remove it.")

    def _change(self, method: str, name: str, wait: bool) -> None:
        try:
            self._call(method, name, wait)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode not in _ALREADY_SO:
                raise StackError(f"supervisord refused: {fault.faultString}") from fault

    def _call(self, method: str, *arguments: Any) -> Any:
        # A connection for each call: threads share this object, and connections are cheap here.
        transport = SupervisorTransport(_USER, self._password, f"unix://{self.socket}")
        with xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport) as server:
            call = cast(Any, server)
            for name in method.split("."):
                call = getattr(call, name)
            return call(*arguments)


def _escaped(value: str | Path) -> str:
    """supervisord expands `%(…)s` in every value, and in a program's log file twice."""
    return str(value).replace("%", "%%")
