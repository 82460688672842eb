"""A server between a client and another server that sees every request and every answer.

On plain sockets and threads rather than ASGI: it passes each byte of a request's target and
headers on as it came, so that signatures hold, and it can reset a connection.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

_OWN_RANGE = range(20_000, 32_000)  # below the ports that outgoing connections take
_OF_ONE_HOP = {"connection", "content-length", "date", "expect", "server", "transfer-encoding"}
_RESET = struct.pack("ii", 1, 0)

NOWHERE = "http://127.0.0.1:9"

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    """Path and query as they were sent."""
    headers: Headers
    body: bytes

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.target).path)

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")

    def without(self, *names: str) -> Request:
        lower = {name.lower() for name in names}
        return replace(self, headers=tuple(h for h in self.headers if h[0].lower() not in lower))


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Headers = field(default=(("Content-Type", "application/json"),))


class Reset(Exception):
    """Raised to end the client's connection without an answer."""


Forward = Callable[[Request], Answer]


class Relay:
    """Passes everything on; subclasses override `answer`."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self._server: _Server | None = None
        self._port = 0
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def answer(self, request: Request, forward: Forward) -> Answer:
        return forward(request)

    def start(self) -> None:
        """Listen, at the same port as before if it was stopped."""
        assert self._server is None, "it is running"
        self.stopping.clear()
        self._server = _Server(self, self._port)
        self._port = self._server.server_port
        threading.Thread(
            target=self._server.serve_forever, args=[0.05], name=type(self).__name__
        ).start()

    def stop(self) -> None:
        """Break every connection and refuse new ones."""
        if self._server is not None:
            self.stopping.set()
            self._server.shutdown()
            self._server.break_connections()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def forwarding(self) -> Iterator[Forward]:
        """A way to the server behind, which keeps its connection."""
        assert self._upstream.hostname is not None
        assert self._upstream.port is not None
        connection = http.client.HTTPConnection(
            self._upstream.hostname, self._upstream.port, timeout=120
        )
        try:
            yield lambda request: _send(connection, request)
        finally:
            connection.close()


class Scripted(Relay):
    """Says what a test tells it to."""

    def __init__(self, say: Callable[[Request], Answer]) -> None:
        super().__init__(NOWHERE)
        self._say = say
        self.seen: list[Request] = []

    def answer(self, request: Request, forward: Forward) -> Answer:
        self.seen.append(request)
        return self._say(request)


def _send(connection: http.client.HTTPConnection, request: Request) -> Answer:
    fresh = connection.sock is None
    try:
        return _exchange(connection, request)
    except (http.client.RemoteDisconnected, ConnectionError):
        connection.close()
        if fresh:  # and not one that the server had closed while it was idle
            raise
        return _exchange(connection, request)


def _exchange(connection: http.client.HTTPConnection, request: Request) -> Answer:
    connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
    for name, value in request.headers:
        if name.lower() not in _OF_ONE_HOP or name.lower() == "date":  # a date may be signed
            connection.putheader(name, value)
    if request.body or request.method in ("POST", "PUT"):
        connection.putheader("Content-Length", str(len(request.body)))
    connection.endheaders(request.body or None)
    response = connection.getresponse()
    body = response.read()
    headers = tuple(h for h in response.getheaders() if h[0].lower() not in _OF_ONE_HOP)
    if request.method == "HEAD" and (length := response.getheader("Content-Length")):
        headers += (("Content-Length", length),)
    return Answer(response.status, body, headers)


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that server_close waits for them
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, relay: Relay, port: int) -> None:
        self.relay = relay
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        for candidate in [port] if port else random.sample(_OWN_RANGE, 100):
            try:
                super().__init__(("127.0.0.1", candidate), _Handler)
                return
            except OSError as error:
                failure = error
        raise failure

    def track(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)

    def forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def break_connections(self) -> None:
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away, tests that stop the relay: nothing to tell."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        self.server.track(self.connection)
        try:
            with self.server.relay.forwarding() as self._forward:
                super().handle()
        finally:
            self.server.forget(self.connection)

    def _relay(self) -> None:
        target = self.raw_requestline.split()[1].decode("latin-1")
        headers = tuple(self.headers.items())
        request = Request(self.command, target, headers, self._read_body())
        try:
            answer = self.server.relay.answer(request, self._forward)
        except (Reset, OSError, http.client.HTTPException):
            self._reset()
            return
        except Exception as error:
            traceback.print_exc()
            answer = Answer(500, f"The relay itself failed: {error!r}".encode())
        self._write(answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _relay

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(chunks)

    def _write(self, answer: Answer) -> None:
        lines = [f"HTTP/1.1 {answer.status} {http.client.responses.get(answer.status, '')}"]
        lines += [f"{name}: {value}" for name, value in answer.headers]
        if self.command != "HEAD" and answer.status not in (204, 304):
            lines.append(f"Content-Length: {len(answer.body)}")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        # In one piece: two would wait for each other's acknowledgement.
        self.wfile.write(head + (b"" if self.command == "HEAD" else answer.body))

    def _reset(self) -> None:
        self.close_connection = True
        self.server.forget(self.connection)
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            os.close(self.connection.detach())

    def log_message(self, format: str, *args: object) -> None:
        """Tests look at counters instead."""
