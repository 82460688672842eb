"""Clients of an HTTP server that cost next to nothing, so that on two cores they do not become what
is measured: a process of its own, one parser and one socket for each client, no HTTP library.

It reads a `Load` as a line of JSON from its standard input and answers with a `Sample` as another.
Each client sends its request, waits for the answer to the last byte, and sends the next.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import httptools
import uvloop

# In a request, what is other each time; of one length each, so that Content-Length holds.
KEY, NUMBER = "{idempotency-key}", "{a-number}"


@dataclass(frozen=True)
class Load:
    port: int
    requests: list[str]
    """A whole HTTP request for each client."""
    seconds: float


@dataclass(frozen=True)
class Sample:
    """The latencies of one load, in milliseconds."""

    p50: float
    p99: float
    per_second: float
    count: int


class LoadGenerator:
    """Puts a load on a server, from this process's point of view."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def put(self, load: Load) -> Sample:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(load)) + "\n")
        self._process.stdin.flush()
        return Sample(**json.loads(self._process.stdout.readline()))


@contextmanager
def running_load() -> Iterator[LoadGenerator]:
    process = subprocess.Popen(
        [sys.executable, Path(__file__)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield LoadGenerator(process)
    finally:
        process.terminate()
        process.wait(10)


# --- In the process of its own --------------------------------------------------------------


class Client(asyncio.Protocol):
    def __init__(self, request: str, give_up_at: float) -> None:
        self._request = request
        self._give_up_at = give_up_at
        self._number = 0
        self._parser = httptools.HttpResponseParser(self)
        self.times: list[float] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(error or ConnectionError("The server hung up."))

    def on_message_complete(self) -> None:
        now = time.perf_counter()
        self.times.append(now - self._began)
        if (status := self._parser.get_status_code()) >= 300:
            self.ended.set_exception(RuntimeError(f"{status} to {self._request[:80]!r}"))
        elif now < self._give_up_at:
            self._parser = httptools.HttpResponseParser(self)
            self._send()
            return
        else:
            self.ended.set_result(None)
        self._transport.close()

    def _send(self) -> None:
        self._number += 1
        request = self._request.replace(KEY, str(uuid4())).replace(NUMBER, f"{self._number:010}")
        self._began = time.perf_counter()
        self._transport.write(request.encode())


async def put(load: Load) -> Sample:
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    clients = [Client(request, began + load.seconds) for request in load.requests]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", load.port)
    await asyncio.gather(*(client.ended for client in clients))
    seconds = time.perf_counter() - began
    times = sorted(1000 * one for client in clients for one in client.times)
    count = len(times)
    p50, p99 = times[count // 2], times[min(count - 1, count * 99 // 100)]
    return Sample(p50, p99, count / seconds, count)


async def serve() -> None:
    for line in iter(sys.stdin.readline, ""):
        sample = await put(Load(**json.loads(line)))
        print(json.dumps(asdict(sample)), flush=True)


if __name__ == "__main__":
    uvloop.run(serve())
