"""Become one of the stack's processes: `python launch.py SPEC`, started by supervisord.

Command and environment are read from a private file rather than from supervisord's
configuration, whose quoting would have to survive JSON, percent signs and spaces, and which
could not change without restarting everything.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

import psutil


def main(spec: Path) -> None:
    command = json.loads(spec.read_text())
    end_predecessors(command["mark"])
    os.chdir(command["directory"])
    argv = command["argv"]
    os.execvpe(argv[0], argv, {**os.environ, **command["env"], **command["mark"]})  # noqa: S606


def end_predecessors(mark: dict[str, str]) -> None:
    """End what a killed predecessor left behind, as systemd would: Airflow's workers, say, wait
    for a scheduler that is no more, and would otherwise do so until the stack is stopped."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if mark.items() <= process.environ().items():
                process.kill()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
