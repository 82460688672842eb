"""The processes of a stack, found by the mark they carry, whoever their parent is by now."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

MARK = "_MORAINE_STACK"
"""In the environment of every process of a stack, and of their children: the stack's home.

Not a `MORAINE_…` setting, which clients of the stack would carry as well.
"""

PART = "_MORAINE_PART"
"""Beside it: which part of the stack a process belongs to."""

_OWN_VARIABLES = ("AIRFLOW", "MORAINE_", "PG", "PYSPARK_", "SPARK_", "SUPERVISOR_", "_MORAINE_")


def inherited_environment() -> dict[str, str]:
    """The caller's environment without what says something about another stack or service."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OWN_VARIABLES)}
    kept.pop("PYTHONWARNINGS", None)  # a caller's `error` would stop Airflow at its first import
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"}


def find_processes(home: Path, postgres_data: Path) -> list[psutil.Process]:
    """All of the stack's processes, including those whose supervisor is gone."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            # PostgreSQL's children write their titles over their environment: look at where
            # they work instead.
            if process.environ().get(MARK) == str(home) or process.cwd() == str(postgres_data):
                found.append(process)
    return found


def end_processes(processes: Iterable[psutil.Process], patience: float = 5) -> None:
    """Ask each to end, then insist. By identity, so that a reused pid is never hit."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(list(processes), timeout=patience)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=patience)


def wait_gone(pid: int, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while psutil.pid_exists(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def tail(path: Path, lines: int = 12, start: int = 0) -> str:
    """The last lines of a log, of what was written after `start`."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        # The log may have been rotated since.
        file.seek(max(start if start <= size else 0, size - 64_000))
        text = file.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:])
