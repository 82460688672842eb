"""What passes through: everything, as it came, but what belongs to one connection."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests

from support.gateway import (
    REPLAYED,
    ApiProcess,
    Ask,
    Caller,
    Scene,
    Way,
    error_of,
    new_key,
    running_gateway,
)
from support.keyed_catalog import as_json, error, reset_after
from support.relay import Answer, Forward, Relay, Request

StartGateway = Callable[..., Caller]
Rows = Callable[[str], list[dict[str, Any]]]

MEGABYTE = 1 << 20
OWNER = {"action": "set-properties", "updates": {"owner": "ana"}}


class Scripted(Relay):
    """Says what a test tells it to."""

    def __init__(self, say: Callable[[Request], Answer]) -> None:
        super().__init__("http://127.0.0.1:9")
        self._say = say
        self.seen: list[Request] = []

    def answer(self, request: Request, forward: Forward) -> Answer:
        self.seen.append(request)
        return self._say(request)


@contextmanager
def exchange(
    url: str, method: str, path: str, headers: list[tuple[str, str]] | None = None
) -> Iterator[http.client.HTTPResponse]:
    """Byte by byte as given: nothing is added, normalised or unpacked."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=30)
    try:
        connection.putrequest(method, where.path + path, skip_accept_encoding=True)
        for name, value in headers or []:
            connection.putheader(name, value)
        connection.endheaders()
        yield connection.getresponse()
    finally:
        connection.close()


# --- The same as without ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(ledger: str, direct: Caller) -> Iterator[Caller]:
    """A gateway with nothing between it and the catalog."""
    with running_gateway(ledger, {"prod": direct.url}) as base:
        yield Caller(base)


@pytest.fixture(scope="module")
def furnished(direct: Caller) -> Scene:
    scene = Scene(direct)
    direct.done(scene.create_table("t", properties={"note": "x" * 2000}))
    direct.done(scene.append("t", 1))
    direct.done(scene.create_view("v"))
    direct.done(scene.create_namespace("below"))
    return scene


READS = [
    ("GET", "namespaces"),
    ("GET", "namespaces?parent={ns}"),
    ("GET", "namespaces?pageToken=&pageSize=1"),
    ("GET", "namespaces/{ns}"),
    ("HEAD", "namespaces/{ns}"),
    ("GET", "namespaces/{ns}%2Ebelow"),
    ("GET", "namespaces/nowhere"),
    ("HEAD", "namespaces/nowhere"),
    ("GET", "namespaces/{ns}/tables"),
    ("GET", "namespaces/{ns}/tables/t"),
    ("GET", "namespaces/{ns}/tables/t?snapshots=refs"),
    ("HEAD", "namespaces/{ns}/tables/t"),
    ("GET", "namespaces/{ns}/tables/nothing"),
    ("HEAD", "namespaces/{ns}/tables/nothing"),
    ("GET", "namespaces/{ns}/tables/t/credentials"),
    ("GET", "namespaces/{ns}/views"),
    ("GET", "namespaces/{ns}/views/v"),
    ("HEAD", "namespaces/{ns}/views/v"),
    ("GET", "namespaces/{ns}/views/nothing"),
    ("GET", "no/such/route"),
    ("POST", "namespaces/{ns}/tables"),
    ("DELETE", "namespaces/{ns}"),
]


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
@pytest.mark.parametrize(("method", "path"), READS)
def test_the_same_directly_and_through_the_gateway(
    straight: Caller, furnished: Scene, method: str, path: str, encoding: str
) -> None:
    whole = f"/v1/{path.format(ns=furnished.namespace)}"
    seen = []
    for url in (furnished.direct.url, straight.url):
        with exchange(url, method, whole, [("Accept-Encoding", encoding)]) as response:
            # Of errors not even the length: they have the catalog's stack trace in them.
            own = {"date", "connection"} | ({"content-length"} if response.status >= 400 else set())
            headers = sorted(
                (name.lower(), value)
                for name, value in response.getheaders()
                if name.lower() not in own
            )
            seen.append((response.status, headers, response.read()))
    ours, theirs = seen[1], seen[0]
    assert ours[0] == theirs[0]
    assert _plain(ours[2]) == _plain(theirs[2])
    assert ours[1] == theirs[1]


def _plain(body: bytes) -> Any:
    """Stack traces in errors have the time and the thread in them."""
    text = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
    try:
        document = json.loads(text)
    except ValueError:
        return re.sub(rb"127.0.0.1:\d+", b"HOST", text)
    if isinstance(document, dict) and "error" in document:
        document["error"].pop("stack", None)
    return document


def test_a_tag_saves_the_second_load(straight: Caller, furnished: Scene) -> None:
    path = furnished.path("tables", "t")
    plain = {"Accept-Encoding": "identity"}  # the catalog knows no tag of a packed answer again
    tag = straight.get(path, headers=plain).headers["ETag"]
    assert tag == furnished.direct.get(path, headers=plain).headers["ETag"]
    known = straight.get(path, headers={**plain, "If-None-Match": tag})
    assert (known.status_code, known.content) == (304, b"")
    assert straight.get(path, headers={**plain, "If-None-Match": "other"}).status_code == 200


def test_a_packed_answer_stays_packed(straight: Caller, furnished: Scene) -> None:
    path = f"/v1/{furnished.path('tables', 't')}"
    with exchange(straight.url, "GET", path, [("Accept-Encoding", "gzip")]) as response:
        assert response.getheader("Content-Encoding") == "gzip"
        assert json.loads(gzip.decompress(response.read()))["metadata"]


# --- To the byte ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1/namespaces/a%1fb%2Fc/tables/%C3%BC%20+",
        "/v1/main%7Cware|house/namespaces/n",
        "/v1/namespaces/n/tables?x=%20y+z&&a=&b;c=%2B",
        "/v1/namespaces/n/",
        "/v1/something/that/is?new",
        "/v1/namespaces/a%252Fb",
        "/v1/namespaces/%7e~!$&'()*,;=:@",
    ],
)
def test_paths_and_queries_go_on_as_they_came(start_gateway: StartGateway, path: str) -> None:
    with Scripted(lambda _: as_json(200, {})) as catalog:
        caller = start_gateway({"prod": f"{catalog.url}/api/catalog"})
        with exchange(caller.url, "GET", path) as response:
            assert response.status == 200
        with exchange(f"{caller.url}/prod", "GET", path) as response:
            assert response.status == 200
        assert [request.target for request in catalog.seen] == [f"/api/catalog{path}"] * 2


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/namespaces/../config",
        "/v1/namespaces/%2e%2E/tables",
        "/v1/../../admin",
        "/v1//namespaces",
        "/prod/v1/./namespaces",
    ],
)
def test_paths_that_climb_are_refused(caller: Caller, way: Way, method: str, path: str) -> None:
    with exchange(caller.url, method, path) as response:
        assert response.status == 400
    assert way.seen == []


def test_headers_go_on_but_those_of_one_connection(start_gateway: StartGateway) -> None:
    headers = (
        ("Content-Type", "application/json"),
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("X-Own", "kept"),
        ("Server", "Jetty"),
        ("Connection", "X-Of-This-Hop"),
        ("X-Of-This-Hop", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Authenticate", "Basic"),
    )
    with Scripted(lambda _: Answer(200, b"{}", headers)) as catalog:
        caller = start_gateway({"prod": catalog.url})
        given = [
            ("Authorization", "Bearer t"),
            ("X-Iceberg-Access-Delegation", "vended-credentials"),
            ("X-Twice", "1"),
            ("X-Twice", "2"),
            ("User-Agent", "a test"),
            ("Connection", "X-Hop"),
            ("X-Hop", "1"),
            ("TE", "trailers"),
            ("Proxy-Authorization", "Basic eDp5"),
        ]
        with exchange(caller.url, "GET", "/v1/namespaces", given) as response:
            answered = [(name.lower(), value) for name, value in response.getheaders()]
        [request] = catalog.seen
    arrived = [(name.lower(), value) for name, value in request.headers]
    assert [pair for pair in arrived if pair[0] != "host"] == [
        ("authorization", "Bearer t"),
        ("x-iceberg-access-delegation", "vended-credentials"),
        ("x-twice", "1"),
        ("x-twice", "2"),
        ("user-agent", "a test"),
    ]
    assert ("host", urlsplit(catalog.url).netloc) in arrived
    assert [pair for pair in answered if pair[0] != "date"] == [
        ("content-type", "application/json"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("x-own", "kept"),
        ("server", "Jetty"),
        ("content-length", "2"),
    ]
    assert len([name for name, _ in answered if name == "date"]) == 1


def test_a_key_that_is_there_twice(caller: Caller, way: Way, scene: Scene) -> None:
    twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "a"), ("Content-Length", "0")]
    with exchange(caller.url, "POST", f"/v1/{scene.path('tables')}", twice) as response:
        assert response.status == 400
        assert "2 times" in json.loads(response.read())["error"]["message"]
    assert way.mutations == []


def test_a_redirect_is_the_clients_affair(start_gateway: StartGateway) -> None:
    elsewhere = (("Location", "http://127.0.0.1:9/v1/x"),)
    with Scripted(lambda _: Answer(307, b"", elsewhere)) as catalog:
        caller = start_gateway({"prod": catalog.url})
        response = caller.get("namespaces", allow_redirects=False)
        assert (response.status_code, response.headers["Location"]) == (307, elsewhere[0][1])


def test_other_bodies_than_json(start_gateway: StartGateway) -> None:
    with Scripted(lambda request: Answer(200, request.body, (("Content-Type", "x/y"),))) as catalog:
        caller = start_gateway({"prod": catalog.url})
        form = {"grant_type": "client_credentials", "client_secret": "a b&c"}
        response = caller.send("POST", "oauth/tokens", data=form)
        assert response.text == "grant_type=client_credentials&client_secret=a+b%26c"
        assert response.headers["Content-Type"] == "x/y"
        [request] = catalog.seen
        assert request.header("Content-Type") == "application/x-www-form-urlencoded"


# --- Bodies -----------------------------------------------------------------------------------


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
def test_a_body_of_which_nobody_could_tell_whether_it_was_carried_out(
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
            if first.startswith(b"POST"):
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
    with api.running() as process:

        def most_memory() -> int:
            status = Path(f"/proc/{process.pid}/status").read_text()
            return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) << 10

        url = f"{api.url}/v1/namespaces/n/tables/t"
        before = most_memory()
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
        assert most_memory() - before < 40 * MEGABYTE
    flood.close()


def test_a_large_result_of_a_keyed_request(
    start_gateway: StartGateway, way: Way, scene: Scene, rows: Rows
) -> None:
    """Larger than what is kept at once: it is given on as it comes, and made anew for a replay."""
    scene.direct.done(scene.create_table("t"))
    note = "".join(f"{number:08x}" for number in range(1_300_000))  # 10 MB
    key = new_key()
    ask = scene.commit("t", {"action": "set-properties", "updates": {"note": note}})
    caller = start_gateway()
    first = caller.send(*ask, key=key)
    assert first.status_code == 200
    assert first.json()["metadata"]["properties"]["note"] == note
    again = caller.send(*ask, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    assert again.json()["metadata"] == first.json()["metadata"]
    assert len(way.mutations) == 1
    assert len(scene.load("t")["metadata"]["metadata-log"]) == 1


# --- The configuration ------------------------------------------------------------------------


def test_the_configuration_is_the_catalogs_with_keys_added(caller: Caller, scene: Scene) -> None:
    theirs = scene.direct.get("config").json()
    ours = caller.get("config").json()
    assert ours == {
        **theirs,
        "idempotency-key-lifetime": "PT30M",
        "properties": {
            "idempotency-key-supported": "true",
            "idempotency-key-lifetime": "PT30M",
        },
    }


def test_what_a_catalog_says_of_itself_is_kept(caller: Caller, way: Way) -> None:
    way.config = {"properties": {"flavour": "vanilla"}, "something-new": [1]}
    config = caller.get("config").json()
    assert config["something-new"] == [1]
    assert config["properties"]["flavour"] == "vanilla"
    assert config["properties"]["idempotency-key-supported"] == "true"
    assert config["endpoints"]


def test_an_address_that_leads_past_the_gateway(
    caller: Caller, way: Way, start_gateway: StartGateway
) -> None:
    overrides = {"prefix": "p", "namespace-separator": "%2E"}
    way.config = {"overrides": {**overrides, "uri": f"{way.url}/"}, "defaults": {"uri": "x"}}
    config = caller.get("config").json()
    assert config["overrides"] == {**overrides, "uri": caller.url}
    assert config["defaults"] == {"uri": "x"}
    named = Caller(f"{caller.url}/prod")
    assert named.get("config").json()["overrides"]["uri"] == named.url
    public = start_gateway(
        gateway={"public_uri": "https://lake.example/catalog", "purge": {"task_type": "local"}}
    )
    assert public.get("config").json()["overrides"]["uri"] == "https://lake.example/catalog"


def test_the_warehouse(start_gateway: StartGateway, way: Way) -> None:
    caller = start_gateway({"prod": {"uri": way.url, "warehouse": "s3://lake/w"}})
    for query in ("", "?warehouse=mine"):
        assert caller.get(f"config{query}").status_code == 200
    assert [request.query for request in way.configs_asked_for] == [
        {"warehouse": "s3://lake/w"},
        {"warehouse": "mine"},
    ]


def test_a_refusal_of_the_configuration_is_passed_on(start_gateway: StartGateway) -> None:
    refusal = error(401, kind="NotAuthorizedException")
    with Scripted(lambda _: refusal) as catalog:
        response = start_gateway({"prod": catalog.url}).get("config")
        assert (response.status_code, response.content) == (401, refusal.body)


# --- Names ------------------------------------------------------------------------------------


def test_an_unknown_catalog(caller: Caller, way: Way) -> None:
    response = Caller(f"{caller.url}/elsewhere").get("namespaces")
    assert (response.status_code, error_of(response)["type"]) == (404, "NotFoundException")
    assert "elsewhere" in error_of(response)["message"]
    assert way.seen == []


def test_what_is_no_catalogs_path(caller: Caller) -> None:
    for path in ("", "/", "/prod", "/prod/v2/namespaces"):
        assert requests.get(f"{caller.url}{path}", timeout=30).status_code == 404


def test_catalogs_by_name(start_gateway: StartGateway, way: Way, direct: Caller) -> None:
    both = {"prod": way.url, "te-st": direct.url}
    nameless = start_gateway(both)
    response = nameless.get("namespaces")
    assert response.status_code == 404
    assert "default" in error_of(response)["message"]
    assert Caller(f"{nameless.url}/te-st").get("namespaces").status_code == 200
    assert way.seen == []
    assert Caller(f"{nameless.url}/prod").get("namespaces").status_code == 200
    assert len(way.seen) == 1

    gateway = {"default_catalog": "prod", "purge": {"task_type": "local"}}
    assert start_gateway(both, gateway=gateway).get("namespaces").status_code == 200
    assert len(way.seen) == 2


def test_a_key_belongs_to_a_catalog(start_gateway: StartGateway, way: Way, direct: Caller) -> None:
    base = start_gateway({"one": way.url, "two": way.url}).url
    key, scene = new_key(), Scene(direct)
    ask = scene.create_table("t")
    assert Caller(f"{base}/one").send(*ask, key=key).status_code == 200
    assert Caller(f"{base}/two").send(*ask, key=key).status_code == 409
    assert len(way.mutations) == 2


def test_with_the_gateway_off_nothing_is_there(start_gateway: StartGateway) -> None:
    assert start_gateway(gateway={"enabled": False}).get("namespaces").status_code == 404


@pytest.mark.parametrize("level", ["grüße", "日本", "a b", "x+y", "q?#&=", "semi;colon"])
def test_names_of_every_kind(caller: Caller, way: Way, scene: Scene, level: str) -> None:
    """Made, changed with the answer lost, found again, and dropped: each with a key."""
    below = f"namespaces/{scene.namespace}%2E{quote(level, safe='')}"
    asks = [
        Ask("POST", "namespaces", {"namespace": [scene.namespace, level]}),
        scene.create_table(level)._replace(path=f"{below}/tables"),
        Ask("POST", f"{below}/tables/{quote(level, safe='')}", {"updates": [OWNER]}),
        Ask("DELETE", f"{below}/tables/{quote(level, safe='')}"),
        Ask("DELETE", below),
    ]
    for ask in asks:
        key = new_key()
        way.break_with(reset_after)
        assert caller.send(*ask, key=key).status_code == 502
        again = caller.send(*ask, key=key)
        assert again.status_code in (200, 204), (ask, again.text)
        assert again.headers[REPLAYED] == "true"
    assert len(way.executed) == len(asks)
