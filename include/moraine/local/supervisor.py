"""supervisord, which runs the stack's processes after `moraine up` has returned."""

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
from typing import Any

import psutil
from supervisor.xmlrpc import SupervisorTransport  # type: ignore[import-untyped]

from moraine.local import processes
from moraine.local.part import Part, StackError, run_tool
from moraine.local.privileges import belongs_to_us, is_root
from moraine.local.processes import MARK, tail, wait_gone
from moraine.tls.files import write_private

# A Unix socket's path may have 107 characters, and supervisord first appends a suffix.
_MAX_SOCKET_PATH = 90
_USER = "moraine"
_START_SECONDS = 15
_ALREADY_SO = {60, 70}  # supervisord's faults ALREADY_STARTED and NOT_RUNNING


@dataclass(frozen=True)
class ProcessState:
    state: str
    """supervisord's word: STOPPED, STARTING, RUNNING, BACKOFF, STOPPING, EXITED, FATAL."""
    pid: int | None


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
            return pid if psutil.Process(pid).environ().get(MARK) == str(self._home) else None
        except (FileNotFoundError, ValueError, psutil.Error):
            return None

    def is_running(self) -> bool:
        if self.pid is None:
            return False
        try:
            return bool(self._call("getState")["statecode"] == 1)
        except (OSError, xmlrpc.client.Error):
            return False

    def start(self, parts: Iterable[Part], env: dict[str, str]) -> None:
        """Start supervisord. It knows all parts and runs none."""
        self._make_folders()
        write_private(self._config, self.render_config(parts))
        run_tool(
            [sys.executable, "-m", "supervisor.supervisord", "-c", self._config],
            "supervisord did not start.",
            env={**env, MARK: str(self._home)},
            cwd=self._home,
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self.is_running():
            if time.monotonic() > deadline:
                raise StackError("supervisord does not answer.", details=tail(self._log))
            time.sleep(0.05)

    def states(self) -> dict[str, ProcessState]:
        return {
            info["name"]: ProcessState(info["statename"], info["pid"] or None)
            for info in self._call("getAllProcessInfo")
        }

    def state(self, name: str) -> ProcessState:
        return self.states()[name]

    def start_part(self, name: str) -> None:
        self._change("startProcess", name)

    def stop_part(self, part: Part) -> None:
        """Returns when it has ended: by itself, or killed after its `stop_seconds`."""
        pid = self.state(part.name).pid
        self._change("stopProcess", part.name)
        while pid and self.state(part.name).pid:
            part.while_stopping(pid)
            wait_gone(pid, timeout=1)

    def end(self) -> None:
        """End supervisord itself, after its parts were stopped.

        Its own shutdown would wait for seconds though no part is left.
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
        """The private file with a part's command and environment, read at every start."""
        return self._run / f"{name}.json"

    def log(self, name: str) -> Path:
        return self._log.with_name(f"{name}.log")

    @property
    def socket(self) -> Path:
        path = self._run / "supervisor.sock"
        if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
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
            command = [sys.executable, "-I", processes.__file__, str(self.spec(part.name))]
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
killasgroup=true
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
            raise StackError(f"{self.socket.parent} belongs to another user: remove it.")

    def _change(self, method: str, name: str) -> None:
        try:
            self._call(method, name, False)  # returns at once
        except xmlrpc.client.Fault as fault:
            if fault.faultCode not in _ALREADY_SO:
                raise StackError(f"supervisord refused: {fault.faultString}") from fault

    def _call(self, method: str, *arguments: Any) -> Any:
        # A connection for each call: threads share this object, and connections are cheap here.
        transport = SupervisorTransport(_USER, self._password, f"unix://{self.socket}")
        with xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport) as server:
            return getattr(server, f"supervisor.{method}")(*arguments)


def _escaped(value: str | Path) -> str:
    """supervisord expands `%(…)s` in every value, and in a program's log file twice."""
    return str(value).replace("%", "%%")
