"""S3 servers of the benchmarks: fast ones, each in a process of its own.

with running_s3("memory_s3.py") as server:
    server.put_empty("lake", file_of_keys)
    S3Store("lake", endpoint=server.url, ...)
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BUCKET = "lake"


@dataclass(frozen=True)
class S3Server:
    url: str
    process: subprocess.Popen[str]

    @property
    def properties(self) -> dict[str, str]:
        """As Iceberg calls them; nobody checks the keys."""
        return {
            "s3.endpoint": self.url,
            "s3.path-style-access": "true",
            "s3.access-key-id": "bench",
            "s3.secret-access-key": "bench",
            "client.region": "us-east-1",
        }

    def put_empty(self, keys: Path) -> None:
        """Put an empty object there for each line of a file: no request for each of them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{BUCKET} {keys}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@contextlib.contextmanager
def running_s3(script: str, folder: Path) -> Iterator[S3Server]:
    """On a free port, with an empty bucket."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        server = S3Server(f"http://127.0.0.1:{int(process.stdout.readline())}", process)
        nothing = folder / "no-keys"
        nothing.touch()
        server.put_empty(nothing)
        yield server
    finally:
        process.terminate()
        process.wait(10)
