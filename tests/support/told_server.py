"""A real HTTP server that answers as told and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

# The status and the body, or several of them, of which the last is for good.
Answer = tuple[int, Any] | list[tuple[int, Any]]


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: str


@dataclass
class Server:
    url: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, Any]:
        found = self.answers.get(path, (404, {}))
        if isinstance(found, list):
            return found.pop(0) if len(found) > 1 else found[0]
        return found

    def asked_for(self, path: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.path == path]


@pytest.fixture
def server() -> Iterator[Server]:
    told = Server(answers={"/v1/config": (200, {"defaults": {}, "overrides": {}})})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            told.asked.append(Asked(self.command, path, query, dict(self.headers), body))
            status, answer = told.answer(path)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    told.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=lambda: http.serve_forever(0.02), daemon=True)
    thread.start()
    yield told
    http.shutdown()
    http.server_close()
