"""Servers of tests and benchmarks: started, waited for, and always stopped."""

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
    argv: Sequence[str], folder: Path, env: Mapping[str, str], log: Path, *, grace: float = 10
) -> Iterator[subprocess.Popen[bytes]]:
    """A process while the block runs, whether it answers yet or not. It is killed if it does not
    stop by itself within `grace` seconds."""
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
                process.wait(grace)
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
    """Wait until a GET gets a good answer; quote the process's log if it never does."""

    def answers() -> bool:
        with contextlib.suppress(requests.RequestException):
            return is_good(requests.get(url, timeout=5))
        return False

    await_ready(answers, process, log, seconds, f"{url} did not answer.")


def await_ready(
    is_ready: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Path,
    seconds: float,
    else_say: str,
) -> None:
    """Wait for a process that has been started; quote its log if it never gets ready."""
    give_up_at = time.monotonic() + seconds
    while not is_ready():
        if process.poll() is not None or time.monotonic() > give_up_at:
            last_words = log.read_text(errors="replace")[-2000:]
            raise AssertionError(f"{else_say}\n{last_words}")
        time.sleep(0.05)
