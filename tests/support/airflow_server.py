"""A stand-in for Airflow's web server: the four calls that Moraine makes, and what it answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

TOKEN = "an-airflow-token"
PASSWORD = "an-airflow-password"


class AirflowServer:
    """`runs` has every Dag run by its id, `starts` the id of every request to start one.
    `delay` makes it slow; `broken` makes it answer 500; `html` makes it answer like a proxy that
    stands before it."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.starts: list[str] = []
        self.key_set: dict[str, Any] = {"keys": []}
        self.delay = 0.0
        self.broken = False
        self.html = False
        self.gone = False
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.gone = True
        if self._thread.is_alive():
            self._http.shutdown()
            self._http.server_close()
            self._thread.join()

    def answer(self, method: str, path: str, token: str, body: Any) -> tuple[int, Any]:
        if path == "/keys":
            return 200, self.key_set
        time.sleep(self.delay)
        if self.broken:
            return 500, {"detail": "broken"}
        if path == "/auth/token":
            return (201, {"access_token": TOKEN}) if body["password"] == PASSWORD else (401, {})
        if token != f"Bearer {TOKEN}":
            return 401, {"detail": "who are you"}
        if path == "/api/v2/version":
            return 200, {"version": "3.3.2"}
        _, _, _, _, dag_id, _, *run = path.split("/")
        with self._lock:
            if method == "GET":
                return (200, self.runs[run[0]]) if run[0] in self.runs else (404, {})
            self.starts.append(body["dag_run_id"])
            if body["dag_run_id"] in self.runs:
                return 409, {"detail": "that run is there"}
            self.runs[body["dag_run_id"]] = {"dag_id": dag_id, "state": "queued", **body}
            return 200, body

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._do()

            def do_POST(self) -> None:
                self._do()

            def _do(self) -> None:
                if outer.gone:  # connections that were kept alive end as well
                    self.close_connection = True
                    return
                sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, answer = outer.answer(
                    self.command,
                    unquote(self.path),
                    self.headers.get("Authorization", ""),
                    json.loads(sent) if sent else None,
                )
                body = b"<html>" if outer.html else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: Any) -> None:
                pass

        return Handler


@contextmanager
def airflow_server() -> Iterator[AirflowServer]:
    server = AirflowServer()
    server.start()
    try:
        yield server
    finally:
        server.stop()
