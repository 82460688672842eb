"""A way to a server that a test can cut, or let hang, without touching the server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit


class TcpProxy:
    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._passes = threading.Event()
        self._passes.set()
        self._listener: socket.socket | None = None
        self._port = 0
        self.passed_on = 0
        """Bytes, in both directions."""
        self.restore()

    @property
    def url(self) -> str:
        """The server's URL, through this proxy."""
        user = self._target.netloc.rpartition("@")[0]
        return urlunsplit(self._target._replace(netloc=f"{user}@127.0.0.1:{self._port}"))

    def cut(self) -> None:
        """Break every connection and refuse new ones."""
        if self._listener is not None:
            # Shut down first: that wakes the thread in accept().
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        self._pairs.clear()
        self._passes.set()

    def hang(self) -> None:
        """Take what is sent, and pass nothing on."""
        self._passes.clear()

    def restore(self) -> None:
        self._passes.set()
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self._port))
            self._port = self._listener.getsockname()[1]
            threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                inner, _ = listener.accept()
                outer = socket.create_connection((self._target.hostname, self._target.port))
            except OSError:
                return
            self._pairs.append((inner, outer))
            for ends in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                self.passed_on += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def proxied(url: str) -> Iterator[TcpProxy]:
    proxy = TcpProxy(url)
    try:
        yield proxy
    finally:
        proxy.cut()
