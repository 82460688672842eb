"""HTTP on a plain socket: a client that sends half a request, or does not read its answer."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit


class RawAnswer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes
    is_closed: bool
    """Whether the server closed the connection after it."""


class RawClient:
    def __init__(self, url: str, source: str = "127.0.0.1", timeout: float = 30) -> None:
        self._base = urlsplit(url)
        address = (self._base.hostname or "", self._base.port or 80)
        self.socket = socket.create_connection(address, timeout, (source, 0))

    def begin(
        self, method: str, path: str, length: int | None = None, headers: Mapping[str, str] = {}
    ) -> RawClient:
        """The head of a request, whose body follows."""
        lines = [f"{method} {self._base.path}{path} HTTP/1.1", f"Host: {self._base.netloc}"]
        if length is not None:
            lines += [f"Content-Length: {length}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        return self

    def send(self, part: bytes) -> RawClient:
        self.socket.sendall(part)
        return self

    def answer(self) -> RawAnswer:
        response = http.client.HTTPResponse(self.socket)
        response.begin()
        body = response.read()
        if (response.getheader("connection") or "").lower() != "close":
            return RawAnswer(response.status, response.headers, body, is_closed=False)
        with contextlib.suppress(ConnectionError):
            assert self.socket.recv(1) == b""
        return RawAnswer(response.status, response.headers, body, is_closed=True)

    def close(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def raw_client(url: str, source: str = "127.0.0.1", timeout: float = 30) -> Iterator[RawClient]:
    """`source` is the address of the client: all of 127.0.0.0/8 are this machine."""
    client = RawClient(url, source, timeout)
    try:
        yield client
    finally:
        client.close()
