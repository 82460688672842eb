"""What a stranger wants: that every catalog stops, or that the gateway's memory ends, for the price
of some sockets.

A stranger is a client that the catalog behind the gateway knows as little as the gateway does.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import requests

from support.gateway import KEY, Caller, ScriptedCatalog, error_of, new_key, running_gateway
from support.keyed_catalog import as_json
from support.raw_http import RawClient, raw_client
from support.relay import Answer, Forward, Request, Scripted
from support.waiting import wait_for

TABLES = "/prod/v1/namespaces/shop/tables"
TABLE = f"{TABLES}/orders"
COMMIT = json.dumps({"requirements": [], "updates": []}).encode()
OTHER_CLIENT = "127.0.0.2"

StartGateway = Callable[..., str]


def loaded(_request: Request) -> Answer:
    return as_json(200, {"metadata-location": "file:/m", "metadata": {"table-uuid": "u"}})


@pytest.fixture
def gateway_of(ledger_url: str) -> Iterator[StartGateway]:
    """The address of a gateway before these catalogs, with these limits."""
    with ExitStack() as stack:

        def start(catalogs: dict[str, str], max_connections: int = 200, **limits: Any) -> str:
            gateway = {"max_connections": max_connections, "limits": limits}
            return stack.enter_context(running_gateway(ledger_url, catalogs, gateway=gateway))

        yield start


@pytest.fixture
def catalog() -> Iterator[ScriptedCatalog]:
    with ScriptedCatalog(loaded) as catalog:
        yield catalog


class StuckCatalog(Scripted):
    """Answers no request before it is told to."""

    def __init__(self) -> None:
        super().__init__(loaded)
        self.free = threading.Event()

    def answer(self, request: Request, forward: Forward) -> Answer:
        if request.path.endswith("/v1/config"):
            return as_json(200, {})
        self.seen.append(request)
        assert self.free.wait(60)
        return loaded(request)


@contextmanager
def stuck_catalog() -> Iterator[StuckCatalog]:
    catalog = StuckCatalog()
    with catalog:
        try:
            yield catalog
        finally:
            catalog.free.set()


@contextmanager
def many(count: int, base: str, begin: Callable[[RawClient], Any]) -> Iterator[list[RawClient]]:
    with ExitStack() as stack:
        clients = [stack.enter_context(raw_client(base)) for _ in range(count)]
        for client in clients:
            begin(client)
        yield clients


def get(base: str, path: str = TABLE, **options: Any) -> requests.Response:
    return requests.get(f"{base}{path}", **{"timeout": 20, **options})


# --- Slow bodies ----------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True])
def test_300_uploads_that_send_a_byte_do_not_stop_the_catalog(
    gateway_of: StartGateway, catalog: ScriptedCatalog, keyed: bool
) -> None:
    limits = {"requests_per_client": 1000, "requests_per_catalog": 20}
    base = gateway_of({"prod": catalog.url}, max_connections=8, **limits)

    def begin(client: RawClient) -> None:
        headers = {KEY: new_key()} if keyed else {}
        client.begin("POST", TABLE, 1000, headers).send(b"{")

    with many(300, base, begin):
        for _ in range(5):
            assert get(base).status_code == 200
        sent = requests.post(f"{base}{TABLE}", data=COMMIT, timeout=20)
        assert sent.status_code == 200


def test_uploads_that_stall_half_way_do_not_stop_the_catalog(
    gateway_of: StartGateway, catalog: ScriptedCatalog
) -> None:
    """They have sent so much that the gateway has begun to forward it."""
    base = gateway_of({"prod": catalog.url}, connections_per_catalog=4, connection_wait="3s")
    with many(20, base, lambda one: one.begin("POST", TABLE, 1 << 20).send(b"x" * 200_000)):
        assert get(base).status_code == 200
        sent = requests.post(f"{base}{TABLE}", data=COMMIT, timeout=20)
        assert sent.status_code == 200


@pytest.mark.parametrize("sent", [b"", b"{", b"x" * 200_000], ids=["nothing", "a byte", "much"])
@pytest.mark.parametrize("keyed", [False, True])
def test_a_body_that_stalls_ends_its_request(
    gateway_of: StartGateway, catalog: ScriptedCatalog, sent: bytes, keyed: bool
) -> None:
    base = gateway_of({"prod": catalog.url}, body_grace="0.5s")
    headers = {KEY: new_key()} if keyed else {}
    with raw_client(base) as client:
        answer = client.begin("POST", TABLE, 1 << 20, headers).send(sent).answer()
    assert answer.status == 408
    assert json.loads(answer.body)["error"]["type"] == "BadRequestException"
    assert answer.is_closed
    assert not [one for one in catalog.seen if len(one.body) == 1 << 20]


def test_a_trickle_is_not_enough(gateway_of: StartGateway, catalog: ScriptedCatalog) -> None:
    """A byte now and then resets no clock."""
    base = gateway_of({"prod": catalog.url}, body_grace="1s")
    with raw_client(base) as client:
        client.begin("POST", TABLE, 1000)
        client.socket.settimeout(0.1)
        for _ in range(300):  # of 1000 bytes
            try:
                client.send(b" ")
                assert client.socket.recv(1)
                break
            except TimeoutError:
                continue
        else:
            pytest.fail("the gateway is still waiting for the body")


def test_a_slow_but_honest_upload_arrives(
    gateway_of: StartGateway, catalog: ScriptedCatalog
) -> None:
    """It lasts much longer than the grace, at more than the minimum rate."""
    base = gateway_of({"prod": catalog.url}, body_grace="3s", min_body_rate=10_000)
    with raw_client(base) as client:
        client.begin("POST", TABLE, 500_000)
        for _ in range(50):
            client.send(b" " * 10_000)
            time.sleep(0.1)
        assert client.answer().status == 200


# --- Requests at once -----------------------------------------------------------------------


def test_one_client_cannot_take_all_requests(gateway_of: StartGateway) -> None:
    with stuck_catalog() as catalog:
        base = gateway_of({"prod": catalog.url}, requests_per_client=5)
        with many(5, base, lambda one: one.begin("GET", TABLE)):
            wait_for(lambda: len(catalog.seen) == 5)
            refused = get(base)
            assert refused.status_code == 429
            assert int(refused.headers["Retry-After"]) >= 1
            assert error_of(refused)["type"] == "TooManyRequestsException"
            catalog.free.set()
            with raw_client(base, OTHER_CLIENT) as other:
                assert other.begin("GET", TABLE).answer().status == 200
        wait_for(lambda: get(base).status_code == 200)


def test_one_catalog_cannot_take_all_requests(
    gateway_of: StartGateway, catalog: ScriptedCatalog
) -> None:
    with stuck_catalog() as stuck:
        catalogs = {"prod": stuck.url, "other": catalog.url}
        base = gateway_of(catalogs, requests_per_catalog=5)
        with many(5, base, lambda one: one.begin("GET", TABLE)):
            wait_for(lambda: len(stuck.seen) == 5)
            assert get(base).status_code == 429
            assert get(base, TABLE.replace("prod", "other")).status_code == 200


def test_one_slow_catalog_does_not_take_the_connections_to_others(
    gateway_of: StartGateway, catalog: ScriptedCatalog
) -> None:
    with stuck_catalog() as stuck:
        catalogs = {"prod": stuck.url, "other": catalog.url}
        limits = {"connections_per_catalog": 3, "connection_wait": "2s"}
        base = gateway_of(catalogs, max_connections=4, **limits)
        with many(10, base, lambda one: one.begin("GET", TABLE)) as clients:
            assert get(base, TABLE.replace("prod", "other")).status_code == 200
            waiting = get(base)
            assert waiting.status_code == 503
            assert int(waiting.headers["Retry-After"]) >= 1
            assert len(stuck.seen) == 3
            stuck.free.set()
            answered = [client.answer().status for client in clients]
            assert sorted(set(answered)) == [200, 503]
        assert get(base).status_code == 200


def test_there_is_an_end_of_waiting_for_a_connection(gateway_of: StartGateway) -> None:
    with stuck_catalog() as stuck, stuck_catalog() as other:
        base = gateway_of(
            {"prod": stuck.url, "other": other.url},
            max_connections=2,
            connections_per_catalog=2,
            connection_wait="0.2s",
        )
        with many(2, base, lambda one: one.begin("GET", TABLE)):
            wait_for(lambda: len(stuck.seen) == 2)
            refused = get(base, TABLE.replace("prod", "other"))
            assert refused.status_code == 503
            assert error_of(refused)["type"] == "ServiceUnavailableException"


def test_limits_are_counted(gateway_of: StartGateway, catalog: ScriptedCatalog) -> None:
    """The metrics of the process say which limit refused how many."""
    from moraine.app.metrics import _Limits
    from moraine.http.limits import Concurrency, LimitCounts

    counts = LimitCounts()
    limit = Concurrency("client", 1, counts)
    with limit.hold("a"):
        for _ in range(3):
            with pytest.raises(Exception, match="in progress"), limit.hold("a"):
                pass
    [family] = _Limits(counts.all()).collect()
    [sample] = family.samples
    assert (sample.name, sample.labels, sample.value) == (
        "moraine_requests_limited_total",
        {"limit": "client"},
        3.0,
    )
    assert len(limit) == 0


# --- Memory ---------------------------------------------------------------------------------


def test_bodies_of_all_clients_together_have_a_limit(gateway_of: StartGateway) -> None:
    body = json.dumps({"requirements": [], "updates": [], "x": "x" * 60_000}).encode()

    def send(base: str, source: str = "127.0.0.1") -> int:
        with raw_client(base, source) as client:
            return client.begin("POST", TABLE, len(body), {KEY: new_key()}).send(body).answer()[0]

    with stuck_catalog() as catalog:
        base = gateway_of({"prod": catalog.url}, buffered_bytes=100_000)
        first = threading.Thread(target=send, args=[base])
        first.start()
        wait_for(lambda: catalog.seen)
        assert send(base, OTHER_CLIENT) == 429
        catalog.free.set()
        first.join()
        assert send(base) == 200, "what the first took is free again"


def test_a_bomb_of_a_catalog_does_not_go_off(gateway_of: StartGateway) -> None:
    """200 MiB of a listing or a configuration, in 200 KiB."""
    bomb = gzip.compress(b'{"a": "' + b"x" * (200 << 20) + b'"}', 1)

    def say(request: Request) -> Answer:
        packed = (("Content-Encoding", "gzip"), ("Content-Type", "application/json"))
        return Answer(200, bomb, packed) if request.header("X-Bomb") else as_json(200, {})

    with Scripted(say) as catalog:
        base = gateway_of({"prod": catalog.url}, answer_bytes=10 << 20, buffered_bytes=20 << 20)
        caller = Caller(f"{base}/prod", {"X-Bomb": "1"})
        answer = caller.send("GET", "config")
        assert answer.status_code == 502
        assert "gateway.limits.answer-bytes" in error_of(answer)["message"]
        assert get(base).status_code == 200


def test_a_client_that_does_not_read_its_answer_loses_its_connection(
    gateway_of: StartGateway,
) -> None:
    large = as_json(200, {"a": "x" * (64 << 20)})
    with ScriptedCatalog(lambda one: large if one.header("X-Large") else loaded(one)) as catalog:
        base = gateway_of(
            {"prod": catalog.url}, connections_per_catalog=1, connection_wait="20s", send_wait="1s"
        )
        with raw_client(base) as client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.begin("GET", TABLE, headers={"X-Large": "1"})
            wait_for(lambda: catalog.seen)
            assert get(base).status_code == 200


# --- Airflow's origin -----------------------------------------------------------------------


def test_a_catalog_does_not_get_the_session_of_an_airflow_user(
    gateway_of: StartGateway, catalog: ScriptedCatalog
) -> None:
    base = gateway_of({"prod": catalog.url})
    for key in ({}, {KEY: new_key()}):
        headers = {"Cookie": "_token=secret", "Authorization": "Bearer mine", **key}
        assert requests.post(f"{base}{TABLE}", data=COMMIT, headers=headers).status_code == 200
    assert get(base, "/prod/v1/config", headers={"Cookie": "_token=secret"}).status_code == 200
    assert len(catalog.seen) >= 2
    for request in catalog.seen:
        assert "secret" not in str(request.headers)
        assert request.header("Authorization") == "Bearer mine"


def test_a_client_cannot_claim_to_be_another_or_ask_for_something_else(
    gateway_of: StartGateway, catalog: ScriptedCatalog
) -> None:
    base = gateway_of({"prod": catalog.url})
    claims = {
        "X-Forwarded-For": "10.0.0.1",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Client-Cert": "Subject=admin",
        "Forwarded": "for=10.0.0.1",
        "X-Real-IP": "10.0.0.1",
        "X-HTTP-Method-Override": "DELETE",
        "X-Original-URL": "/admin",
    }
    assert get(base, headers=claims).status_code == 200
    [request] = catalog.seen
    sent = {name.lower() for name, _ in request.headers}
    assert not sent & {name.lower() for name in claims}


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("kind", ["text/html", "Text/HTML; charset=utf-8", "image/svg+xml"])
def test_a_page_of_a_catalog_runs_nothing_in_airflows_origin(
    gateway_of: StartGateway, kind: str, status: int
) -> None:
    page = b"<script>fetch('/api/v2/connections')</script>"
    headers = (
        ("Content-Type", kind),
        ("Set-Cookie", "_token=the-attackers"),
        ("Clear-Site-Data", '"cookies"'),
        ("Content-Security-Policy", "script-src *"),
    )
    with ScriptedCatalog(lambda _: Answer(status, page, headers)) as catalog:
        base = gateway_of({"prod": catalog.url})
        answers = [
            get(base),
            requests.post(f"{base}{TABLE}", data=COMMIT, headers={KEY: new_key()}),
        ]
    for answer in answers:
        assert answer.status_code == status
        assert answer.content == page
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"] == "sandbox; default-src 'none'"
        assert "Set-Cookie" not in answer.headers
        assert "Clear-Site-Data" not in answer.headers


def test_no_cache_gives_a_clients_host_to_others(
    gateway_of: StartGateway,
) -> None:
    with Scripted(lambda _: as_json(200, {"overrides": {"uri": catalog.url}})) as catalog:
        base = gateway_of({"prod": catalog.url})
        named = get(base, "/prod/v1/config", headers={"Host": "evil.example"})
        assert named.json()["overrides"]["uri"] == "http://evil.example/catalog/prod"
        assert named.headers["Cache-Control"] == "no-store"
        for host in ("evil.example/x?", "a b", "user@evil.example"):
            assert get(base, "/prod/v1/config", headers={"Host": host}).status_code == 400
