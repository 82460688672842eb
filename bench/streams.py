"""Clients that each stream one large file to an HTTP server, all at once, without reading it
themselves: the kernel sends it, so that they take no share of the cores worth mentioning.

Run as a process of its own: it reads a list of `[port, head, file]` as JSON from its standard input
and answers with the seconds that each took, and with those that all took.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Streamed:
    seconds: float
    each: list[float]


def stream(port: int, requests: Sequence[tuple[str, Path]]) -> Streamed:
    """Send requests, each a head and the file that is its body; every one over its own socket."""
    asked = [[port, head, str(file)] for head, file in requests]
    done = subprocess.run(
        [sys.executable, Path(__file__)],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return Streamed(**json.loads(done.stdout))


async def _send(port: int, head: str, file: str) -> float:
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode())
    await writer.drain()
    with open(file, "rb") as body:
        await asyncio.get_running_loop().sendfile(writer.transport, body)
    status = await reader.readline()
    if b" 200 " not in status:
        answer = await reader.read(2000)
        raise RuntimeError(f"{status!r} to {file}: {answer!r}")
    seconds = time.perf_counter() - began
    writer.close()
    return seconds


async def _send_all() -> Streamed:
    requests = json.load(sys.stdin)
    began = time.perf_counter()
    each = await asyncio.gather(*(_send(*request) for request in requests))
    return Streamed(time.perf_counter() - began, each)


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(_send_all()))))
