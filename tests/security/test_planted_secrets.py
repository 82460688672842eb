"""Secrets planted in requests, settings and catalogs' answers are found nowhere else.

Not in the ledger, compressed answers included, not in a log, and not in an answer to another than
the one whom a catalog gave it to.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import grpc
import pytest
import requests
import structlog

from moraine import log as moraine_log
from moraine.local.stack import Stack
from support.access import AccessSite, running_site
from support.api_server import SYNC, Api, purge
from support.gateway import KEY, REPLAYED, error_of
from support.ledger import everything_in
from support.relay import Answer, Request

OF_SETTINGS = {
    "client secret": "planted-client-secret-1a",
    "storage key": "planted-storage-key-2b",
    "Airflow's password": "planted-airflow-password-3c",
}
OF_CATALOG = {
    "Moraine's own token": "planted-own-token-4d",
    "a vended key": "planted-vended-key-5e",
    "a vended session token": "planted-session-token-6f",
    "a default": "planted-default-7g",
}
OF_REQUEST = {
    "a header": "planted-header-8h",
    "a cookie": "planted-cookie-9i",
    "a query": "planted-query-1j",
    "a body": "planted-body-2k",
    "a name in a body": "planted-name-3l",
    "a password": "planted-password-4m",
}
HEADERS = {
    "X-Api-Key": OF_REQUEST["a header"],
    "Proxy-Authorization": f"Basic {OF_REQUEST['a header']}",
    "Cookie": f"session={OF_REQUEST['a cookie']}",
}
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
}


@pytest.fixture(autouse=True)
def all_logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Everything that is logged, down to the last detail, through Moraine's own set-up."""
    moraine_log.configure(level=logging.DEBUG)
    # The tests' own client, and a log that `moraine api` does not write.
    for name in ("urllib3", "uvicorn.access"):
        caplog.set_level(logging.WARNING, name)
    caplog.set_level(logging.DEBUG)
    logging.getLogger("hpack").setLevel(logging.INFO)
    yield
    structlog.reset_defaults()


def loaded_table() -> dict[str, Any]:
    """With credentials in all places where catalogs have them."""
    vended = {
        "s3.access-key-id": "AKIA",
        "s3.secret-access-key": OF_CATALOG["a vended key"],
        "s3.session-token": OF_CATALOG["a vended session token"],
    }
    return {
        "metadata-location": "s3://bucket/orders/metadata/1.json",
        "metadata": {
            "format-version": 2,
            "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
            "location": "s3://bucket/orders",
            "last-updated-ms": 1,
            "last-column-id": 1,
            "schemas": [SCHEMA],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "properties": {},
            "last-sequence-number": 0,
        },
        "config": {**vended, "token": OF_CATALOG["a vended session token"]},
        "storage-credentials": [{"prefix": "s3://bucket", "config": vended}],
    }


class Catalog:
    """Has one table once it was created."""

    def __init__(self) -> None:
        self.created = False

    def __call__(self, request: Request) -> Answer:
        if request.path.endswith("/oauth/tokens"):
            token = OF_CATALOG["Moraine's own token"]
            return self._say(200, access_token=token, token_type="bearer", expires_in=3600)
        if request.path.endswith("/v1/config"):
            return self._say(200, defaults={"s3.secret-access-key": OF_CATALOG["a default"]})
        if request.path.endswith("/tables") and request.method == "POST":
            self.created = True
            return self._say(200, **loaded_table())
        if request.path.endswith("/tables/orders") and self.created:
            return self._say(200, **loaded_table())
        if request.path.endswith("/namespaces/shop"):
            return self._say(200, namespace=["shop"], properties={})
        model = {"message": "Not there", "type": "NoSuchTableException", "code": 404}
        return self._say(404, error=model)

    def _say(self, status: int, **body: Any) -> Answer:
        return Answer(status, json.dumps(body).encode())


AIRFLOW = {
    "url": "http://127.0.0.1:9",
    "password": OF_SETTINGS["Airflow's password"],
    "timeout": "1s",
}


def secret_catalog(uri: str) -> dict[str, Any]:
    return {
        "uri": uri,
        "auth": {
            "kind": "oauth2",
            "client_id": "moraine",
            "client_secret": OF_SETTINGS["client secret"],
        },
        "storage": {"s3.secret-access-key": OF_SETTINGS["storage key"]},
    }


StartSite = Callable[..., AccessSite]


@pytest.fixture
def start_site(postgres: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartSite]:
    with ExitStack() as stack:

        def start(say: Callable[[Request], Answer]) -> AccessSite:
            folder = tmp_path_factory.mktemp("site")
            return stack.enter_context(
                running_site(
                    postgres, folder, say=say, catalog_settings=secret_catalog, airflow=AIRFLOW
                )
            )

        yield start


class Searched:
    """All places where a secret may be found."""

    def __init__(self, site: AccessSite, caplog: Any, capfd: Any) -> None:
        self._site = site
        self._caplog = caplog
        self._capfd = capfd
        self.answers: list[str] = []

    def hear(self, response: requests.Response) -> requests.Response:
        self.answers.append(f"{response.status_code} {response.headers} {response.text}")
        return response

    def check(self, *secrets: str, evidence: str, in_logs: str) -> None:
        ledger = everything_in(self._site.ledger)
        printed = self._capfd.readouterr()
        logs = self._caplog.text + printed.out + printed.err
        assert evidence in ledger, "the dump shows what is there"
        assert in_logs in logs, "the logs were caught"
        answers = "\n".join(self.answers)
        assert answers
        password = urlsplit(self._site.ledger).password
        planted = [*OF_SETTINGS.values(), *OF_CATALOG.values(), *OF_REQUEST.values(), *secrets]
        for secret in [*planted, *([password] if password else [])]:
            assert secret not in ledger
            assert secret not in logs
            assert secret not in answers


def planted_purge(table: str) -> dict[str, Any]:
    body, name = OF_REQUEST["a body"], OF_REQUEST["a name in a body"]
    payload = purge(table)
    parameters = payload["operation_parameters"]
    parameters["config"] = {"s3.secret-access-key": body, name: "as a name"}
    parameters["storage-credentials"] = [{"prefix": "s3://", "config": {"token": body}}]
    parameters["table_identity"]["token"] = body
    payload["common_payload"]["authorization"] = body
    payload["credentials"] = {"password": OF_REQUEST["a password"]}
    return payload


def test_secrets_of_the_delegation_api_are_nowhere(
    start_site: StartSite, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    site = start_site(Catalog())
    found, token = Searched(site, caplog, capfd), site.token()
    api = Api(site.origin, token)
    query = {"token": OF_REQUEST["a query"]}
    for path in ("/v1/tasks", SYNC):
        headers = {**HEADERS, KEY: f"key-{uuid4()}"}
        for _ in range(2):  # the second is a replay
            found.hear(api.post(path, json=planted_purge("t"), headers=headers, params=query))
    for wrong in ({"x": OF_REQUEST["a body"]}, OF_REQUEST["a body"], [OF_REQUEST["a body"]]):
        response = found.hear(api.post("/v1/tasks", json=wrong, headers=HEADERS, params=query))
        assert response.status_code == 400
    bad = site.issuer.token(aud="other")
    foreign = site.token(sub="x", scope="openid")
    for given in (bad, foreign, OF_REQUEST["a password"]):
        headers = {**HEADERS, "Authorization": f"Bearer {given}"}
        refused = found.hear(api.post("/v1/tasks", json=planted_purge("t"), headers=headers))
        assert refused.status_code in (401, 403)
    for path in ("/v1/tasks", "/v1/audit", "/metrics", "/v1/tombstones", "/openapi.json"):
        assert found.hear(api.get(path, headers=HEADERS, params=query)).status_code == 200
    assert found.hear(api.get("/health/ready", headers=HEADERS)).status_code == 503
    signatures = [one.rpartition(".")[2] for one in (token, bad, foreign)]
    found.check(*signatures, evidence="demo.shop.t", in_logs="task.admitted")


def test_secrets_of_the_gateway_are_nowhere(
    start_site: StartSite, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """The one who asks for credentials gets them, and no other place does."""
    site = start_site(Catalog())
    found, key = Searched(site, caplog, capfd), f"key-{uuid4()}"
    caller = site.gateway()
    caller.headers |= {**HEADERS, "X-Iceberg-Access-Delegation": "vended-credentials"}
    properties = {"s3.secret-access-key": OF_REQUEST["a body"]}
    body = {"name": "orders", "schema": SCHEMA, "properties": properties}
    created = caller.post("namespaces/shop/tables", body, key=key)
    assert created.status_code == 200, created.text
    assert OF_CATALOG["a vended key"] in created.text
    again = caller.post("namespaces/shop/tables", body, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    # What is wrong, unknown or refused, has no use for a secret.
    found.hear(caller.post("namespaces/shop/tables", {**body, "name": "other"}, key=key))
    found.hear(caller.send("DELETE", "namespaces/shop/tables/gone?purgeRequested=true"))
    found.hear(caller.get(f"namespaces/none?token={OF_REQUEST['a query']}"))
    found.hear(caller.get("wrong-prefix/namespaces"))
    stranger = site.gateway(aud="other")
    found.hear(stranger.post("namespaces/shop/tables", body, key=key))
    assert [int(one.split()[0]) for one in found.answers] == [422, 404, 404, 400, 401]
    site.api().submit("evidence")
    sent = [one.headers["Authorization"].rpartition(".")[2] for one in (caller, stranger)]
    found.check(*sent, evidence=key, in_logs="task.admitted")


@pytest.mark.parametrize("refusing", ["/oauth/tokens", "/v1/config"])
def test_secrets_in_what_a_catalog_says_to_moraine_are_nowhere(
    start_site: StartSite,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    refusing: str,
) -> None:
    """A catalog that refuses Moraine, and quotes what Moraine sent."""
    catalog = Catalog()

    def refuse(request: Request) -> Answer:
        if not request.path.endswith(refusing):
            return catalog(request)
        quoted = f"{request.body.decode()} {dict(request.headers)}"
        error = {"message": quoted, "type": "NotAuthorizedException", "code": 401}
        return Answer(401, json.dumps({"error": error, "error_description": quoted}).encode())

    site = start_site(refuse)
    found, caller = Searched(site, caplog, capfd), site.gateway()
    for path in ("namespaces", "namespaces/shop/tables/orders"):
        response = found.hear(caller.get(path))
        assert response.status_code == 503
        assert "prod" in error_of(response)["message"]
    headers = {"Authorization": f"Bearer {site.token()}"}
    url = f"{site.origin}/ingest/v1/tables/shop/orders"
    assert found.hear(requests.get(url, headers=headers, timeout=30)).status_code >= 500
    quoted = [str(seen.headers) + seen.body.decode() for seen in site.catalog.seen]
    planted = {**OF_SETTINGS, **OF_CATALOG}
    sent = "client secret" if refusing == "/oauth/tokens" else "Moraine's own token"
    assert any(planted[sent] in one for one in quoted), "there was something to quote"
    site.api().submit("evidence")
    found.check(evidence="demo.shop.evidence", in_logs="gateway.config_unknown")


def test_secrets_of_ingest_are_nowhere(
    start_site: StartSite, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    site = start_site(Catalog())
    found, token = Searched(site, caplog, capfd), site.token()
    bad = site.issuer.token(aud="other")
    headers = {
        **HEADERS,
        "Authorization": f"Bearer {token}",
        "X-Database": "shop",
        "X-Table": "orders",
        "X-Idempotency-Key": f"key-{uuid4()}",
        "Content-Type": "application/x-ndjson",
    }
    query = {"token": OF_REQUEST["a query"]}
    url = f"{site.origin}/ingest/v1"

    def post(path: str, data: bytes, **changes: str) -> requests.Response:
        given = {**headers, **changes}
        return found.hear(
            requests.post(f"{url}{path}", data=data, headers=given, params=query, timeout=30)
        )

    assert post("/ingest", b'{"id": 1}\n').status_code == 503  # no writer runs
    assert post("/ingest", b"", Authorization=f"Bearer {bad}").status_code == 401
    wrong = json.dumps({"database": OF_REQUEST["a body"], "password": OF_REQUEST["a password"]})
    as_json = {"Content-Type": "application/json"}
    assert post("/tables", wrong.encode(), **as_json).status_code == 400
    assert post("/logs", OF_REQUEST["a body"].encode(), **as_json).status_code == 400
    refused = post("/logs", wrong.encode(), **as_json, Authorization=f"Bearer {bad}")
    assert refused.status_code == 401
    with (
        grpc.insecure_channel(f"127.0.0.1:{site.grpc_port}") as channel,
        pytest.raises(grpc.RpcError) as raised,
    ):
        channel.unary_unary("/opentelemetry.proto.collector.logs.v1.LogsService/Export")(
            b"", metadata=[("authorization", f"Bearer {bad}")], timeout=30
        )
    found.answers.append(str(raised.value))
    signatures = [one.rpartition(".")[2] for one in (token, bad)]
    site.api().submit("evidence")
    found.check(*signatures, evidence="shop", in_logs="task.admitted")
