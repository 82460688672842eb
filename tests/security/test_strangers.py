"""A stranger at every door. The routes come from the apps themselves, so a new one is among them.

For each: callers without a valid token, and callers with one that does not allow it. They get 401
or 403 in the door's own error format, the ledger stays as it is, no catalog hears of them, and
nothing of what they sent comes back.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
import requests
from fastapi.routing import APIRoute
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

from moraine.app.assembly import create_apps, ingest_openapi_document, openapi_document
from moraine.gateway.model import GATEWAY_PATH
from moraine.http import DELEGATION_PATH
from moraine.iceberg.endpoints import Endpoint
from moraine.ingest.rest.app import INGEST_PATH
from moraine.local.stack import Stack
from support.access import ALL_SCOPES, AccessSite, running_site
from support.api_server import purge
from support.issuer import Issuer

ISSUER = Issuer()
FORGER, UNKNOWN = Issuer(), Issuer("key-2")  # the one claims the issuer's key id
SECRET = "AKIA-planted-5d1e"
POLICY = """
[[rules]]
subjects = ["polaris"]
actions = ["*"]
"""


def good(**changes: Any) -> str:
    return ISSUER.token(**{"scope": ALL_SCOPES, **changes})


Attack = Callable[[], str | None]
STRANGERS: dict[str, Attack] = {
    "no token": lambda: None,
    "another scheme": lambda: "Basic cG9sYXJpczpzZWNyZXQ=",
    "no JWT": lambda: f"Bearer {SECRET}",
    "a bad signature": lambda: f"Bearer {FORGER.token(scope=ALL_SCOPES)}",
    "no signature": lambda: f"Bearer {good().rpartition('.')[0]}.",
    "expired": lambda: f"Bearer {good(exp=int(time.time()) - 3600)}",
    "never expires": lambda: f"Bearer {good(exp=None)}",
    "another audience": lambda: f"Bearer {good(aud='other')}",
    "another issuer": lambda: f"Bearer {good(iss='https://elsewhere.example')}",
    "no issuer": lambda: f"Bearer {good(iss=None)}",
    "alg none": lambda: f"Bearer {ISSUER.unsigned(kid=ISSUER.kid)}",
    "the public key as a secret": lambda: f"Bearer {ISSUER.signed_with_public_key()}",
    "an unknown key": lambda: f"Bearer {UNKNOWN.token(scope=ALL_SCOPES)}",
}
KNOWN: dict[str, Attack] = {
    "no scope": lambda: f"Bearer {good(scope=None)}",
    "another scope": lambda: f"Bearer {good(scope='openid profile')}",
    "nothing allowed by the policy": lambda: f"Bearer {good(sub='mallory')}",
}


@dataclass(frozen=True)
class Door:
    """A route of an app."""

    app: str
    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.app}{self.path}"


def doors() -> list[Door]:
    found = []
    for path, app in create_apps().items():
        if path == GATEWAY_PATH:
            continue
        for route in app.routes:
            assert isinstance(route, APIRoute), f"{route} is not tested here"
            found += [Door(path, method, route.path) for method in sorted(route.methods)]
    return found


OPEN = {
    f"GET {DELEGATION_PATH}/health/live",
    f"GET {DELEGATION_PATH}/health/ready",
    # They say that there are no such signals, to all.
    f"POST {INGEST_PATH}/v1/traces",
    f"POST {INGEST_PATH}/v1/metrics",
}
CLOSED = [door for door in doors() if str(door) not in OPEN]


def gateway_doors() -> list[Door]:
    names = {"namespace": "shop", "table": "orders", "view": "v"}
    named = [
        Door(GATEWAY_PATH, endpoint.method, f"/prod/{endpoint.path('', names)}")
        for endpoint in Endpoint
    ]
    purging = next(door for door in named if (door.method, door.path[-6:]) == ("DELETE", "orders"))
    others = [
        ("DELETE", f"{purging.path}?purgeRequested=true"),
        ("GET", "/v1/config"),
        ("POST", "/prod/v1/oauth/tokens"),
        ("GET", "/prod/v1/not-of-the-spec"),
        ("PUT", "/prod/v1/namespaces"),
        ("GET", "/no-such-catalog/v1/namespaces"),
        ("GET", "/prod/v1/wrong-prefix/namespaces"),
        ("GET", "/no-such-path"),
    ]
    return named + [Door(GATEWAY_PATH, *other) for other in others]


# --- The site ---------------------------------------------------------------------------------


class Site(AccessSite):
    task_id: str

    def send(
        self, door: Door, authorization: str | None, *, stream: bool = False
    ) -> requests.Response:
        headers = {
            "Idempotency-Key": "of-a-stranger",
            "X-Idempotency-Key": "of-a-stranger",
            "X-Database": "shop",
            "X-Table": "orders",
            "X-Secret": SECRET,
            "Cookie": f"session={SECRET}",
            "Content-Type": "application/json",
        }
        if door.path == "/v1/ingest":
            headers["Content-Type"] = "application/x-ndjson"
        if authorization is not None:
            headers["Authorization"] = authorization
        names = {"task_id": self.task_id, "key": "some", "database": "shop", "table": "orders"}
        path = re.sub(r"{(\w+)(:path)?}", lambda name: names[name[1]], door.path)
        body = json.dumps(body_of(door)).encode() if door.method == "POST" else None
        return requests.request(
            door.method,
            f"{self.origin}{door.app}{path}",
            headers=headers,
            data=body,
            timeout=30,
            stream=stream,
        )


def body_of(door: Door) -> dict[str, Any]:
    """One that would do something."""
    if door.path.endswith("/promotions"):
        return {"field": "latency", "type": "real"}
    if (door.app, door.path) == (INGEST_PATH, "/v1/tables"):
        columns = [{"name": "id", "type": "long"}]
        return {"database": "shop", "table": "orders", "columns": columns}
    if door.app == GATEWAY_PATH:
        return {"namespace": ["shop"], "name": "orders", "secret": SECRET}
    return {**purge("customers"), "credentials": {"password": SECRET}}


@pytest.fixture(scope="module")
def site(postgres: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """With a task and a hidden table that strangers want."""
    folder = tmp_path_factory.mktemp("site")
    with running_site(postgres, folder, POLICY, issuer=ISSUER) as running:
        site = Site(**vars(running))
        site.task_id = site.api().submit("orders")
        site.hide("hidden", site.task_id)
        site.catalog.seen.clear()
        yield site


def check_refusal(door: Door, response: requests.Response, status: int, sent: str | None) -> None:
    assert response.status_code == status, response.text
    body = response.json()
    if door.app == GATEWAY_PATH:
        kind = {401: "NotAuthorizedException", 403: "ForbiddenException"}[status]
        assert (body["error"]["code"], body["error"]["type"]) == (status, kind)
        message = body["error"]["message"]
    elif door.path == "/v1/logs":
        assert body["code"] == {401: 16, 403: 7}[status]
        message = body["message"]
    elif door.app == INGEST_PATH:
        code = {401: "unauthorized", 403: "forbidden"}[status]
        assert body["error"]["code"] == code
        message = body["error"]["message"]
    else:
        assert body["error_code"] == {401: "UNAUTHORIZED", 403: "FORBIDDEN"}[status]
        message = body["message"]
    assert message
    if status == 401:
        assert response.headers["www-authenticate"] == "Bearer"
    answer = f"{response.text}{response.headers}"
    assert SECRET not in answer
    if sent:
        assert sent.partition(" ")[2] not in answer
    assert "Traceback" not in answer


# --- Every route ------------------------------------------------------------------------------


@pytest.mark.parametrize("door", CLOSED, ids=str)
def test_a_stranger_gets_nothing_at_any_route(site: Site, door: Door) -> None:
    before, asked = site.state(), len(site.catalog.seen)
    for name, attack in STRANGERS.items():
        sent = attack()
        response = site.send(door, sent)
        assert response.status_code == 401, (name, response.text)
        check_refusal(door, response, 401, sent)
    assert site.state() == before
    assert len(site.catalog.seen) == asked


@pytest.mark.parametrize("door", CLOSED, ids=str)
def test_a_known_caller_without_the_right_gets_nothing_at_any_route(site: Site, door: Door) -> None:
    before, asked, refused = (
        site.state(),
        len(site.catalog.seen),
        len(site.audited(outcome="refused")),
    )
    for name, attack in KNOWN.items():
        sent = attack()
        response = site.send(door, sent)
        assert response.status_code == 403, (name, response.text)
        check_refusal(door, response, 403, sent)
    assert site.state() == before
    assert len(site.catalog.seen) == asked
    assert len(site.audited(outcome="refused")) == refused + len(KNOWN)


@pytest.mark.parametrize("door", gateway_doors(), ids=str)
def test_a_stranger_reaches_no_catalog(site: Site, door: Door) -> None:
    before = site.state()
    for name, attack in STRANGERS.items():
        sent = attack()
        response = site.send(door, sent)
        assert response.status_code == 401, (name, response.text)
        check_refusal(door, response, 401, sent)
    assert site.state() == before
    assert site.catalog.seen == [], "not even for its configuration"


def test_two_tokens_are_none(site: Site) -> None:
    """A server that takes the first and one that takes the last would not agree on the caller."""
    for path in (f"{DELEGATION_PATH}/v1/tasks", f"{GATEWAY_PATH}/prod/v1/namespaces"):
        connection = http.client.HTTPConnection(urlsplit(site.origin).netloc, timeout=30)
        connection.putrequest("GET", path)
        connection.putheader("Authorization", f"Bearer {good()}")
        connection.putheader("Authorization", f"Bearer {good(sub='mallory')}")
        connection.endheaders()
        assert connection.getresponse().status in (400, 401)
        connection.close()
    assert site.catalog.seen == []


def export(site: Site, token: str | None) -> Any:
    with grpc.insecure_channel(f"127.0.0.1:{site.grpc_port}") as channel:
        call = channel.unary_unary(
            "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
            request_serializer=ExportLogsServiceRequest.SerializeToString,
            response_deserializer=ExportLogsServiceResponse.FromString,
        )
        request = ExportLogsServiceRequest()
        request.resource_logs.add().scope_logs.add().log_records.add().body.string_value = "line"
        return call(
            request, metadata=[("authorization", token)] if token is not None else (), timeout=30
        )


def test_a_stranger_gets_nothing_over_grpc(site: Site) -> None:
    before = site.state()
    for attacks, code in (
        (STRANGERS, grpc.StatusCode.UNAUTHENTICATED),
        (KNOWN, grpc.StatusCode.PERMISSION_DENIED),
    ):
        for name, attack in attacks.items():
            sent = attack()
            with pytest.raises(grpc.RpcError) as raised:
                export(site, sent)
            assert raised.value.code() is code, name
            assert SECRET not in str(raised.value)
    assert site.state() == before
    assert len(site.audited(issuer="unknown", act="otlp:write")) <= 1, "not one for each connection"


def test_strangers_do_not_fill_the_audit_log(site: Site) -> None:
    for _ in range(20):
        assert site.send(CLOSED[0], None).status_code == 401
    assert len(site.audited(issuer="unknown", address="127.0.0.1")) <= 2, "one a minute"


# --- The suite itself -------------------------------------------------------------------------


def test_every_operation_of_the_documents_is_tested() -> None:
    tested = {str(door) for door in CLOSED}
    for root, document in (
        (DELEGATION_PATH, openapi_document()),
        (INGEST_PATH, ingest_openapi_document()),
    ):
        for path, operations in document["paths"].items():
            plain = {re.sub(r"{\w+(:path)?}", "{}", door): door for door in tested | OPEN}
            for method in operations.keys() - {"parameters"}:
                name = re.sub(r"{\w+}", "{}", f"{method.upper()} {root}{path}")
                assert name in plain
    assert len(CLOSED) > 15


def test_open_routes_tell_everyone_the_same(site: Site) -> None:
    for door in doors():
        if str(door) in OPEN:
            answers = [site.send(door, sent) for sent in (None, "Bearer x", f"Bearer {good()}")]
            assert len({(answer.status_code, answer.text) for answer in answers}) == 1
            assert SECRET not in answers[0].text


@pytest.mark.parametrize("door", CLOSED, ids=str)
def test_a_caller_who_may_gets_through(site: Site, door: Door) -> None:
    """Without this, a door that refuses everyone would pass the tests above."""
    response = site.send(door, f"Bearer {good()}", stream=True)
    assert response.status_code not in (401, 403), response.text
    response.close()


def test_a_caller_who_may_reaches_the_catalog(site: Site) -> None:
    response = site.send(Door(GATEWAY_PATH, "GET", "/prod/v1/namespaces"), f"Bearer {good()}")
    assert (response.status_code, response.json()["error"]["message"]) == (404, "Not there")
    assert [request.path for request in site.catalog.seen[-1:]] == ["/v1/namespaces"]


def test_a_drop_through_the_gateway_asks_the_policy(site: Site) -> None:
    """The catalog has let the caller in; that is not yet the right to have files deleted."""
    door = Door(GATEWAY_PATH, "DELETE", "/prod/v1/namespaces/shop/tables/t?purgeRequested=true")
    tasks = site.state().count("tasks: ")
    response = site.send(door, KNOWN["nothing allowed by the policy"]())
    assert response.status_code == 403, response.text
    check_refusal(door, response, 403, None)
    assert site.state().count("tasks: ") == tasks
    assert len(site.audited(act="drop", outcome="refused", subject="mallory")) == 1
