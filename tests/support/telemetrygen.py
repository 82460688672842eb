"""telemetrygen of the OpenTelemetry Collector: an exporter that shares no code with ours.

Built once with Go, and kept beside the jars.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from moraine.local.jars import default_cache

_VERSION = "v0.161.0"
_MODULE = "github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen"
_SECONDS_TO_BUILD = 900
_SECONDS_TO_SEND = 120


def find_telemetrygen() -> Path:
    """The program, built if it is not there yet. A test is skipped where there is no Go."""
    folder = default_cache().parent / "telemetrygen"
    program = folder / _VERSION / "telemetrygen"
    if program.exists():
        return program
    go = shutil.which("go")
    if go is None:
        pytest.skip("telemetrygen is built with Go, which is not installed.")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():  # somebody else may have built it meanwhile
            _build(go, folder, program)
    return program


def _build(go: str, folder: Path, program: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as draft:
        done = subprocess.run(
            [go, "install", f"{_MODULE}@{_VERSION}"],
            env={**os.environ, "GOBIN": draft},
            capture_output=True,
            text=True,
            timeout=_SECONDS_TO_BUILD,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"telemetrygen was not built.\n{done.stderr[-2000:]}")
        program.parent.mkdir(exist_ok=True)
        # Under its name only when it is whole.
        (Path(draft) / "telemetrygen").replace(program)


def send_logs(
    endpoint: str, count: int, token: str, *, http: bool = False, path: str = "/v1/logs"
) -> None:
    """So many logs of the service `telemetrygen`, in batches. The path is for HTTP alone."""
    command = [
        str(find_telemetrygen()),
        "logs",
        "--otlp-insecure",
        "--otlp-endpoint",
        endpoint,
        "--otlp-header",
        f'authorization="Bearer {token}"',
        "--logs",
        str(count),
        "--rate",
        "0",
        "--otlp-attributes",
        'deployment="test"',
        "--telemetry-attributes",
        "number=7",
    ]
    if http:
        command += ["--otlp-http", "--otlp-http-url-path", path]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_SECONDS_TO_SEND, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
