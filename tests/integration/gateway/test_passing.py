"""What passes through: everything, as it came, but what belongs to one connection."""

from __future__ import annotations

import gzip
import http.client
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.gateway import Caller, Scene, ScriptedCatalog, Way, running_gateway
from support.gateway_fixtures import StartGateway
from support.keyed_catalog import as_json
from support.relay import Answer


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


# The gateway adds them, so that no browser runs what a catalog says.
FOR_BROWSERS = {"content-security-policy", "x-content-type-options"}


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
                (name.lower(), value.replace("text/html", "text/plain"))
                for name, value in response.getheaders()
                if name.lower() not in own | FOR_BROWSERS
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
    ("path", "sent"),
    [
        ("/v1/namespaces/a%1Fb%2Fc/tables/%C3%BC%20+", None),
        ("/v1/namespaces/n/tables?x=%20y+z&&a=&b;c=%2B", None),
        ("/v1/something/that/is?new", None),
        ("/v1/namespaces/a%252Fb", None),
        ("/v1/namespaces/n/", "/v1/namespaces/n"),
        ("/v1/namespaces/a%1fb|c", "/v1/namespaces/a%1Fb%7Cc"),
        ("/v1/%6eamespaces/n/%74ables/t", "/v1/namespaces/n/tables/t"),
        ("/v1/namespaces/%7e~!$&'()*,=:@", "/v1/namespaces/~~%21%24%26%27%28%29%2A%2C%3D%3A%40"),
    ],
)
def test_paths_go_on_in_one_form_and_queries_as_they_came(
    start_gateway: StartGateway, path: str, sent: str | None
) -> None:
    with ScriptedCatalog(lambda _: as_json(200, {})) as catalog:
        caller = start_gateway({"prod": f"{catalog.url}/api/catalog"})
        with exchange(caller.url, "GET", path) as response:
            assert response.status == 200
        with exchange(f"{caller.url}/prod", "GET", path) as response:
            assert response.status == 200
        assert [request.target for request in catalog.seen] == [f"/api/catalog{sent or path}"] * 2


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/namespaces/../config",
        "/v1/namespaces/%2e%2E/tables",
        "/v1/../../admin",
        "/v1//namespaces",
        "/prod/v1/./namespaces",
        "/v1/..;/..;/management",
        "/v1/namespaces;a=b/n",
        "/v1/..%2f..%2fmanagement",
        "/v1/..%5cmanagement",
        "/v1/%252e%252e/management",
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
    with ScriptedCatalog(lambda _: Answer(200, b"{}", headers)) as catalog:
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
        ("x-own", "kept"),
        ("server", "Jetty"),
        ("content-length", "2"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "sandbox; default-src 'none'"),
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
    with ScriptedCatalog(lambda _: Answer(307, b"", elsewhere)) as catalog:
        caller = start_gateway({"prod": catalog.url})
        response = caller.get("namespaces", allow_redirects=False)
        assert (response.status_code, response.headers["Location"]) == (307, elsewhere[0][1])


def test_other_bodies_than_json(start_gateway: StartGateway) -> None:
    with ScriptedCatalog(
        lambda request: Answer(200, request.body, (("Content-Type", "application/octet-stream"),))
    ) as catalog:
        caller = start_gateway({"prod": catalog.url})
        form = {"grant_type": "client_credentials", "client_secret": "a b&c"}
        response = caller.send("POST", "oauth/tokens", data=form)
        assert response.text == "grant_type=client_credentials&client_secret=a+b%26c"
        assert response.headers["Content-Type"] == "application/octet-stream"
        [request] = catalog.seen
        assert request.header("Content-Type") == "application/x-www-form-urlencoded"
