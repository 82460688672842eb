"""Bodies that the gateway has to read: how large, of whom, and what else goes on meanwhile."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from moraine.gateway import intake
from moraine.http import DELEGATION_PATH
from support.gateway import KEY, REPLAYED, Ask, Caller, Scene, Way, error_of, new_key
from support.gateway_fixtures import Rows, StartGateway
from support.oauth_server import Realm, running_realm

LOCAL = {"task_type": "local"}


def large(scene: Scene, size: int = 300_000) -> Ask:
    note = {"action": "set-properties", "updates": {"note": "x" * size}}
    return scene.commit("t", note)


# --- Beside the event loop -------------------------------------------------------------------


def test_others_are_answered_while_a_body_is_read(
    caller: Caller,
    scene: Scene,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene.direct.done(scene.create_table("t"))
    begun, may_end = threading.Event(), threading.Event()
    real = intake.fingerprint

    def held(*args: Any) -> str:
        begun.set()
        assert may_end.wait(60)
        return real(*args)

    monkeypatch.setattr(intake, "fingerprint", held)
    sent = pool.submit(caller.send, *large(scene), key=new_key())
    try:
        assert begun.wait(60)
        live = caller.url.replace("/catalog", f"{DELEGATION_PATH}/health/live")
        assert requests.get(live, timeout=30).status_code == 200
        assert caller.get("namespaces").status_code == 200
        assert not sent.done()
    finally:
        may_end.set()
    assert sent.result().status_code == 200


# --- Of callers whom the catalog knows -------------------------------------------------------


@pytest.fixture
def realm(direct: Caller) -> Iterator[Realm]:
    with running_realm(direct.url, Realm()) as realm:
        yield realm


@pytest.fixture
def guarded(start_gateway: StartGateway, realm: Realm) -> Caller:
    auth = {"kind": "oauth2", "client_id": realm.client_id, "client_secret": realm.client_secret}
    return start_gateway({"prod": {"uri": realm.catalog_uri, "auth": auth}})


@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
def test_nothing_is_read_of_a_stranger(
    guarded: Caller,
    scene: Scene,
    rows: Rows,
    monkeypatch: pytest.MonkeyPatch,
    chunked: bool,
) -> None:
    read: list[int] = []
    real = intake._parse

    def seen(body: bytes, *args: Any) -> Any:
        read.append(len(body))
        return real(body, *args)

    monkeypatch.setattr(intake, "_parse", seen)
    ask, key = large(scene), new_key()
    text = json.dumps(ask.body).encode()
    half = len(text) // 2
    body = iter([text[:half], text[half:]]) if chunked else text
    headers = {KEY: key, "Content-Type": "application/json"}
    refused = guarded.send(ask.method, ask.path, data=body, headers=headers)
    assert (refused.status_code, error_of(refused)["type"]) == (401, "NotAuthorizedException")
    assert read == []
    assert rows(key) == []


# --- Up to a limit ---------------------------------------------------------------------------


def test_a_body_with_a_key_has_a_limit_of_its_own(
    start_gateway: StartGateway, way: Way, scene: Scene, rows: Rows
) -> None:
    caller = start_gateway(gateway={"max_keyed_body_bytes": 100_000, "purge": LOCAL})
    scene.direct.done(scene.create_table("t"))
    ask, key = large(scene), new_key()
    refused = caller.send(*ask, key=key)
    assert (refused.status_code, error_of(refused)["type"]) == (413, "BadRequestException")
    assert "gateway.max-keyed-body-bytes" in error_of(refused)["message"]
    assert rows(key) == []
    assert way.mutations == []
    assert caller.send(*ask).status_code == 200


# --- Packed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [True, False], ids=["with a key", "without a key"])
@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "identity, gzip", "deflate", "zstd"])
def test_a_packed_body_is_refused(
    caller: Caller, way: Way, scene: Scene, rows: Rows, encoding: str, keyed: bool
) -> None:
    ask, key = scene.create_table("t"), new_key()
    body = gzip.compress(json.dumps(ask.body).encode())
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    given = key if keyed else None
    refused = caller.send(ask.method, ask.path, body, headers=headers, key=given)
    assert (refused.status_code, error_of(refused)["type"]) == (415, "BadRequestException")
    assert "Content-Encoding" in error_of(refused)["message"]
    assert rows(key) == []
    assert way.mutations == []


def test_a_body_that_says_it_is_not_packed(caller: Caller, scene: Scene) -> None:
    headers = {"Content-Encoding": "identity"}
    made = caller.send(*scene.create_table("t"), headers=headers, key=new_key())
    assert made.status_code == 200


# --- Of no tables ----------------------------------------------------------------------------


def test_a_transaction_of_no_tables(caller: Caller, way: Way, rows: Rows) -> None:
    key = new_key()
    for _ in range(2):
        refused = caller.post("transactions/commit", {"table-changes": []}, key=key)
        assert (refused.status_code, error_of(refused)["type"]) == (400, "BadRequestException")
        assert "table-changes" in error_of(refused)["message"]
        assert REPLAYED not in refused.headers
    assert rows(key) == []
    assert way.mutations == []
