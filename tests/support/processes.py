"""Servers of the tests' own: started, waited for, and stopped for sure."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import requests


@contextlib.contextmanager
def running(
    argv: Sequence[str], folder: Path, env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process while it is needed, whether it answers yet or not."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def await_answer(
    url: str,
    process: subprocess.Popen[bytes],
    log: Path,
    seconds: float,
    is_good: Callable[[requests.Response], bool] = lambda response: response.ok,
) -> None:
    """Wait until a GET is answered well; say what the process said if it never is."""
    give_up_at = time.monotonic() + seconds
    while True:
        with contextlib.suppress(requests.RequestException):
            if is_good(requests.get(url, timeout=5)):
                return
        if process.poll() is not None or time.monotonic() > give_up_at:
            last_words = log.read_text(errors="replace")[-2000:]
            raise AssertionError(f"{url} did not answer.\n{last_words}")
        time.sleep(0.05)
