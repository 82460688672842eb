"""The processes of a stack: how each is started, and how all are found and ended.

`python processes.py SPEC` becomes one of them; supervisord runs that. Command and environment are
in a private file, not in supervisord's configuration: its quoting would have to keep JSON, percent
signs and spaces intact, and it cannot change without restarting everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

MARK = "_MORAINE_STACK"
"""In the environment of every process of a stack and of their children, whatever their parent is
now: the stack's home. Not a `MORAINE_…` setting, which clients of the stack have as well.
"""

PART = "_MORAINE_PART"
"""In the same environments: which part of the stack a process belongs to."""

_OWN_VARIABLES = ("AIRFLOW", "MORAINE_", "PG", "PYSPARK_", "SPARK_", "SUPERVISOR_", "_MORAINE_")
_PATIENCE = 5


def inherited_environment() -> dict[str, str]:
    """The caller's environment without variables about another stack or service."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OWN_VARIABLES)}
    kept.pop("PYTHONWARNINGS", None)  # a caller's `error` would stop Airflow at its first import
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"}


def find_processes(home: Path, postgres_data: Path) -> list[psutil.Process]:
    """All processes of the stack, including those whose supervisord is gone."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            # PostgreSQL's children overwrite their environment with their titles, but not their
            # working directory.
            if process.environ().get(MARK) == str(home) or process.cwd() == str(postgres_data):
                found.append(process)
    return found


def end_processes(processes: Iterable[psutil.Process]) -> None:
    """Terminate each, then kill what is left. psutil makes sure that no reused pid is hit."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(list(processes), timeout=_PATIENCE)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=_PATIENCE)


def grandchildren(pid: int) -> list[psutil.Process]:
    """The children of a process's children."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                found += child.children()
    return found


def catches_termination(process: psutil.Process) -> bool:
    """Whether it handles SIGTERM itself, rather than dying of it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            name, _, mask = line.partition(":")
            if name == "SigCgt":
                return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)
    return False


def wait_gone(pid: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while psutil.pid_exists(pid) and time.monotonic() <= deadline:
        time.sleep(0.05)


def tail(path: Path, lines: int = 12, start: int = 0) -> str:
    """The last lines of what was written to a log after the byte `start`."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        # A rotated log is shorter than `start`.
        file.seek(max(start if start <= size else 0, size - 64_000))
        text = file.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:])


def become(spec: Path) -> None:
    """Replace this process by the one that the file describes."""
    command = json.loads(spec.read_text())
    _end_predecessors(command["mark"])
    os.chdir(command["directory"])
    argv = command["argv"]
    os.execvpe(argv[0], argv, {**os.environ, **command["env"], **command["mark"]})  # noqa: S606


def _end_predecessors(mark: dict[str, str]) -> None:
    """Kill what a killed predecessor left, as systemd would: Airflow's workers, for example, would
    wait for their dead scheduler until the stack is stopped."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if mark.items() <= process.environ().items():
                process.kill()


if __name__ == "__main__":
    become(Path(sys.argv[1]))
