"""Bodies that pass through: in chunks, too large, of no sense, and larger than memory."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from support.gateway import REPLAYED, ApiProcess, Ask, Caller, Scene, Way, error_of, new_key
from support.gateway_fixtures import Rows, StartGateway

MEGABYTE = 1 << 20


def test_a_body_in_chunks(caller: Caller, way: Way, scene: Scene) -> None:
    def chunks(ask: Ask) -> Iterator[bytes]:
        text = json.dumps(ask.body).encode()
        for start in range(0, len(text), 10):
            yield text[start : start + 10]

    ask = scene.create_table("t")
    headers = {"Content-Type": "application/json"}
    assert caller.send("POST", ask.path, data=chunks(ask), headers=headers).status_code == 200
    key, ask = new_key(), scene.create_table("u")
    for replayed in (None, "true"):
        response = caller.send("POST", ask.path, data=chunks(ask), headers=headers, key=key)
        assert (response.status_code, response.headers.get(REPLAYED)) == (200, replayed)
    assert scene.tables() == ["t", "u"]
    assert [request.body for request in way.mutations][1] == json.dumps(ask.body).encode()


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
@pytest.mark.parametrize("keyed", [False, True], ids=["without a key", "with a key"])
def test_a_body_that_is_too_large(
    start_gateway: StartGateway, way: Way, scene: Scene, chunked: bool, keyed: bool
) -> None:
    caller = start_gateway(gateway={"max_body_bytes": 1000, "purge": {"task_type": "local"}})
    ask = scene.create_table("t", properties={"note": "x" * 1000})
    text = json.dumps(ask.body).encode()
    body = iter([text[:500], text[500:]]) if chunked else text
    headers = {"Content-Type": "application/json"}
    key = new_key() if keyed else None
    response = caller.send("POST", ask.path, data=body, headers=headers, key=key)
    assert response.status_code == 413
    assert error_of(response)["type"] == "BadRequestException"
    assert "1000" in error_of(response)["message"]
    assert scene.tables() == []
    assert caller.send(*scene.create_table("u"), key=key).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        # What the catalog takes, and would take a second time under another key.
        {"namespace": ["{name}"], "properties": {"a": 1}},
        {"namespace": ["{name}"], "properties": {"a": "nul \x00"}},
        # What it does not.
        {"namespace": "{name}"},
        {},
        b"",
        b"no JSON",
        b"[1]",
    ],
)
def test_a_body_whose_effect_could_not_be_checked(
    caller: Caller, way: Way, scene: Scene, rows: Rows, body: Any
) -> None:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    text, key = text.replace(b"{name}", scene.namespace.encode() + b"x"), new_key()
    response = caller.post("namespaces", text, key=key)
    assert (response.status_code, error_of(response)["type"]) == (400, "BadRequestException")
    assert way.mutations == []
    assert rows(key) == []
    # Without a key it is between the caller and the catalog, as ever.
    caller.post("namespaces", text)
    assert len(way.mutations) == 1


class Flood:
    """A catalog that takes and gives more than anybody should hold in memory."""

    def __init__(self, megabytes: int) -> None:
        self.megabytes = megabytes
        self.received = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as incoming:
            first = incoming.readline()
            length = 0
            while (line := incoming.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            while length > 0 and (data := incoming.read(min(length, MEGABYTE))):
                self.received += len(data)
                length -= len(data)
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
            if first.startswith((b"POST", b"GET /v1/config")):
                connection.sendall(head + b"Content-Length: 2\r\n\r\n{}")
                return
            connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
            chunk = b"%x\r\n%s\r\n" % (MEGABYTE, b" " * MEGABYTE)
            for _ in range(self.megabytes):
                connection.sendall(chunk)
            connection.sendall(b"0\r\n\r\n")


def test_large_bodies_pass_without_being_held(ledger: str, tmp_path: Path) -> None:
    megabytes = 200
    flood = Flood(megabytes)
    api = ApiProcess(tmp_path, ledger, flood.url, gateway__max_body_bytes=str(megabytes * MEGABYTE))
    with contextlib.closing(flood), api.running() as process:

        def peak_memory() -> int:
            status = Path(f"/proc/{process.pid}/status").read_text()
            return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10

        url = f"{api.url}/v1/namespaces/n/tables/t"
        before = peak_memory()
        with requests.get(url, stream=True, timeout=60) as response:
            assert sum(map(len, response.iter_content(MEGABYTE))) == megabytes * MEGABYTE

        class Zeros:
            """A file that is never in memory as a whole."""

            left = megabytes * MEGABYTE

            def __len__(self) -> int:
                return self.left

            def read(self, size: int) -> bytes:
                size = min(size, self.left)
                self.left -= size
                return b" " * size

        answer = requests.post(f"{url}/metrics", data=Zeros(), timeout=60)
        assert answer.status_code == 200
        assert flood.received == megabytes * MEGABYTE
        assert peak_memory() - before < 40 * MEGABYTE


def test_a_large_result_of_a_keyed_request(
    start_gateway: StartGateway, way: Way, scene: Scene, rows: Rows
) -> None:
    """Larger than what is kept at once: it is streamed, and made again for a replay."""
    scene.direct.done(scene.create_table("t"))
    note = "".join(f"{number:08x}" for number in range(1_300_000))  # 10 MB
    key = new_key()
    ask = scene.commit("t", {"action": "set-properties", "updates": {"note": note}})
    caller = start_gateway()
    first = caller.send(*ask, key=key)
    assert first.status_code == 200, "as large as it is, it may have a key"
    assert first.json()["metadata"]["properties"]["note"] == note
    again = caller.send(*ask, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    assert again.json()["metadata"] == first.json()["metadata"]
    assert len(way.mutations) == 1
    assert len(scene.load("t")["metadata"]["metadata-log"]) == 1
