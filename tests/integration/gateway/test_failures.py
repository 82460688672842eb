"""A catalog that cannot be reached, breaks off or says nothing: each in Iceberg's form, and what
was begun is left to be found out."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

from support.gateway import REPLAYED, Caller, Scene, Way, error_of, new_key
from support.keyed_catalog import Execute, half_an_answer, reset_after, reset_before, silent_after
from support.relay import Answer
from support.waiting import wait_for

StartGateway = Callable[..., Caller]
Rows = Callable[[str], list[dict[str, Any]]]

LOCAL = {"purge": {"task_type": "local"}}


@pytest.fixture
def awake() -> Iterator[threading.Event]:
    """Ends what a silent catalog waits for."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def away(way: Way) -> Iterator[Way]:
    """The way, with no process listening on its port."""
    way.stop()
    yield way
    if way._server is None:
        way.start()


def check(response: requests.Response, status: int, kind: str) -> None:
    assert response.status_code == status, response.text
    assert error_of(response)["type"] == kind
    assert "'prod'" in error_of(response)["message"]


def test_a_catalog_that_cannot_be_reached(
    caller: Caller, way: Way, scene: Scene, rows: Rows
) -> None:
    scene.direct.done(scene.create_table("t"))
    ask, key = scene.append("t", 1001), new_key()
    assert caller.get("config").status_code == 200
    way.stop()
    try:
        for response in (
            caller.send(*ask, key=key),
            caller.send(*ask),
            caller.send(*scene.create_table("u"), key=new_key()),
            caller.get(scene.path("tables")),
            caller.get("config"),
        ):
            check(response, 503, "ServiceUnavailableException")
            assert int(response.headers["Retry-After"]) >= 1
        assert rows(key)[0]["abandoned"]
    finally:
        way.start()
    assert caller.send(*ask, key=key).status_code == 200
    assert scene.snapshots("t") == [1001]


def test_a_gateway_that_starts_before_its_catalog(
    start_gateway: StartGateway, away: Way, scene: Scene
) -> None:
    caller = start_gateway()
    key = new_key()
    check(caller.send(*scene.create_table("t"), key=key), 503, "ServiceUnavailableException")
    away.start()
    assert caller.send(*scene.create_table("t"), key=key).status_code == 200


@pytest.mark.parametrize(
    ("fault", "executed"),
    [(reset_before, 0), (reset_after, 1), (half_an_answer, 1)],
    ids=["before", "after", "in the middle of its answer"],
)
def test_a_connection_that_breaks(
    caller: Caller, way: Way, scene: Scene, rows: Rows, fault: Any, executed: int
) -> None:
    scene.direct.done(scene.create_table("t"))
    ask, key = scene.append("t", 1001), new_key()
    way.break_with(fault)
    check(caller.send(*ask, key=key), 502, "CommitStateUnknownException")
    # Sent once and never again by itself.
    assert (len(way.mutations), len(way.executed)) == (1, executed)
    assert rows(key)[0]["abandoned"]
    assert caller.send(*ask, key=key).status_code == 200
    assert scene.snapshots("t") == [1001]
    assert len(way.executed) == 1


@pytest.mark.parametrize("method", ["DELETE", "POST"])
def test_without_a_key_a_mutation_is_sent_once(
    caller: Caller, way: Way, scene: Scene, method: str
) -> None:
    scene.direct.done(scene.create_table("t"))
    way.break_with(reset_before)
    ask = scene.drop_table("t") if method == "DELETE" else scene.append("t", 1)
    assert caller.send(*ask).status_code == 502
    assert len(way.mutations) == 1


def test_a_read_of_a_connection_that_breaks(caller: Caller, way: Way, scene: Scene) -> None:
    way.break_reads_with(reset_before, reset_before, reset_before)
    response = caller.get(scene.path("tables"))
    check(response, 502, "CommitStateUnknownException")
    way.heal()
    assert caller.get(scene.path("tables")).status_code == 200


def test_a_silent_catalog(
    start_gateway: StartGateway, way: Way, scene: Scene, rows: Rows, awake: threading.Event
) -> None:
    caller = start_gateway(gateway={"read_timeout": "0.3s", **LOCAL})
    scene.direct.done(scene.create_table("t"))
    ask, key = scene.append("t", 1001), new_key()
    way.break_with(silent_after(awake))
    check(caller.send(*ask, key=key), 504, "CommitStateUnknownException")
    assert rows(key)[0]["abandoned"]
    again = caller.send(*ask, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    assert scene.snapshots("t") == [1001]
    assert len(way.executed) == 1


def test_a_catalog_that_comes_late(
    start_gateway: StartGateway, way: Way, scene: Scene, awake: threading.Event
) -> None:
    """The gateway has given up on it, the retry has found nothing there, and then it executes:
    one of the two is refused, and both mean the same change."""
    caller = start_gateway(gateway={"read_timeout": "0.3s", **LOCAL})
    scene.direct.done(scene.create_table("t"))
    ask, key = scene.append("t", 1001), new_key()
    ended = threading.Event()

    def late(execute: Execute) -> Answer:
        awake.wait(30)
        answer = execute()
        ended.set()
        return answer

    way.break_with(late)
    assert caller.send(*ask, key=key).status_code == 504
    assert caller.send(*ask, key=key).status_code == 200
    awake.set()
    assert ended.wait(60)
    assert scene.snapshots("t") == [1001]
    assert caller.send(*ask, key=key).status_code == 200


def test_a_catalog_that_breaks_off_a_long_answer(start_gateway: StartGateway) -> None:
    """What has begun to go out cannot become an error: the client sees that it was cut."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)  # for its configuration
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
                connection.sendall(head + b"x" * 500_000)

        thread = threading.Thread(target=serve)
        thread.start()
        caller = start_gateway({"prod": f"http://127.0.0.1:{server.getsockname()[1]}"})
        with pytest.raises(requests.exceptions.RequestException):
            caller.get("namespaces/n/tables/t")
        thread.join()


def test_a_client_that_hangs_up_loses_nothing(
    caller: Caller, way: Way, scene: Scene, rows: Rows, awake: threading.Event
) -> None:
    ask, key = scene.create_table("t"), new_key()

    def slow(execute: Execute) -> Answer:
        awake.wait(30)
        return execute()

    way.break_with(slow)
    with pytest.raises(requests.Timeout):
        caller.send(*ask, key=key, timeout=0.3)
    awake.set()
    wait_for(lambda: rows(key)[0]["http_status"] == 200 or rows(key)[0]["abandoned"])
    assert caller.send(*ask, key=key).status_code == 200
    assert len(way.executed) == 1


def test_a_catalog_that_packs_its_answers_unasked(
    caller: Caller, way: Way, scene: Scene, rows: Rows
) -> None:
    """It is unpacked to be looked into, and what is given on says so."""

    def pack(execute: Execute) -> Answer:
        answer = execute()
        document = {**json.loads(answer.body), "config": {"token": "a-secret"}}
        packed = (*answer.headers, ("Content-Encoding", "gzip"))
        return Answer(answer.status, gzip.compress(json.dumps(document).encode()), packed)

    way.break_with(pack)
    ask, key = scene.create_table("t"), new_key()
    first = caller.send(*ask, key=key)
    assert first.json()["config"] == {"token": "a-secret"}
    [row] = rows(key)
    assert b"a-secret" not in _unpacked(row["response_body"])
    again = caller.send(*ask, key=key)
    assert again.headers[REPLAYED] == "true"
    assert again.json()["metadata"] == first.json()["metadata"]


def _unpacked(body: bytes) -> bytes:
    plain = zlib.decompress(body)
    return gzip.decompress(plain) if plain[:2] == b"\x1f\x8b" else plain
