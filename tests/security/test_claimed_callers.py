"""A gateway that leaves tokens to the catalog: whom it takes a caller for, and what that is worth.

The catalog here knows two tokens. Whoever has neither is refused by it, whatever name the token
claims.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import requests

from moraine.local.stack import Stack
from support.access import CATALOG, AccessSite, has_nothing, running_site
from support.gateway import REPLAYED
from support.issuer import Issuer
from support.relay import Answer, Request

ISSUER = Issuer()
ALICE, MALLORY = ISSUER.token(sub="alice"), ISSUER.token(sub="mallory")
FORGED = Issuer().token(sub="alice")
POLICY = """
[[rules]]
actions = ["*"]

[[rules]]
effect = "deny"
issuers = ["catalog:prod"]
subjects = ["mallory"]
actions = ["tasks:execute"]
"""
TABLE = "namespaces/shop/tables/orders"
LOADED = {
    "metadata-location": "s3://bucket/orders/metadata/1.json",
    "metadata": {
        "format-version": 2,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "s3://bucket/orders",
        "properties": {},
        "snapshots": [],
    },
}


def say(request: Request) -> Answer:
    """It takes the first token, as many servers do."""
    if request.path.endswith("/v1/config"):
        return has_nothing(request)
    if request.header("Authorization") not in (f"Bearer {ALICE}", f"Bearer {MALLORY}"):
        model = {"message": "Who are you?", "type": "NotAuthorizedException", "code": 401}
        return Answer(401, json.dumps({"error": model}).encode())
    if request.path.endswith("/tables/orders"):
        return Answer(200, json.dumps(LOADED).encode())
    return has_nothing(request)


@pytest.fixture(scope="module")
def site(postgres: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccessSite]:
    folder = tmp_path_factory.mktemp("site")
    gateway = {"require_token": False, "purge": {"mode": "fire-and-forget"}}
    with running_site(postgres, folder, POLICY, issuer=ISSUER, say=say, gateway=gateway) as site:
        yield site


def send(site: AccessSite, token: str, method: str, path: str, **options: Any) -> requests.Response:
    caller = site.gateway()
    caller.headers = {"Authorization": f"Bearer {token}"}
    return caller.send(method, path, **options)


def raw(site: AccessSite, method: str, path: str, *tokens: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(site.origin).netloc, timeout=30)
    connection.putrequest(method, f"/catalog/{CATALOG}/v1/{path}")
    for token in tokens:
        connection.putheader("Authorization", f"Bearer {token}")
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def tasks(site: AccessSite) -> int:
    return site.state().count("\ntasks: ") + site.state().startswith("tasks: ")


def test_a_drop_is_refused_by_the_name_that_the_catalog_accepted(site: AccessSite) -> None:
    before = tasks(site)
    refused = send(site, MALLORY, "DELETE", f"{TABLE}?purgeRequested=true")
    assert refused.status_code == 403, refused.text
    assert refused.json()["error"]["type"] == "ForbiddenException"
    assert tasks(site) == before
    [row] = site.audited(issuer="catalog:prod", subject="mallory")
    assert (row["act"], row["outcome"], row["object"]) == ("drop", "refused", "prod.shop.orders")


def test_a_second_token_is_no_way_around_a_denial(site: AccessSite) -> None:
    """Moraine would know neither caller, and the catalog the first."""
    before, asked = tasks(site), len(site.catalog.seen)
    for tokens in ((MALLORY, ALICE), (MALLORY, MALLORY), (MALLORY, "x")):
        assert raw(site, "DELETE", f"{TABLE}?purgeRequested=true", *tokens) == 400
        assert raw(site, "GET", TABLE, *tokens) == 400
    assert tasks(site) == before
    assert len(site.catalog.seen) == asked


def test_a_forged_name_is_worth_nothing(site: AccessSite) -> None:
    before = tasks(site)
    refused = send(site, FORGED, "DELETE", f"{TABLE}?purgeRequested=true")
    assert (refused.status_code, refused.json()["error"]["message"]) == (401, "Who are you?")
    assert tasks(site) == before
    assert site.audited(subject="alice", act="drop") == [], "alice asked for nothing"


def test_a_forged_name_does_not_get_the_answer_kept_for_a_key(site: AccessSite) -> None:
    """Nor does it use up the key. It is the catalog's word, not Moraine's, that refuses it."""
    key = f"key-{uuid4()}"
    path, body = "namespaces/shop/properties", {"removals": [], "updates": {"a": "1"}}
    first = send(site, ALICE, "POST", path, body=body, key=key)
    assert first.status_code == 404
    kept = site.state()
    for token in (FORGED, "made-up"):
        for asked in (body, {**body, "updates": {"a": "2"}}):
            stranger = send(site, token, "POST", path, body=asked, key=key)
            assert stranger.status_code == 401
            assert REPLAYED not in stranger.headers
            assert "Not there" not in stranger.text
    assert site.state() == kept
    assert send(site, ALICE, "POST", path, body=body, key=key).headers[REPLAYED] == "true"


def test_one_key_of_two_callers_is_two_requests(site: AccessSite) -> None:
    key = f"key-{uuid4()}"
    path = "namespaces/shop/properties"
    for number, token in enumerate((ALICE, MALLORY)):
        body = {"removals": [], "updates": {"a": str(number)}}
        answer = send(site, token, "POST", path, body=body, key=key)
        assert answer.status_code == 404
        assert REPLAYED not in answer.headers
        assert send(site, token, "POST", path, body=body, key=key).headers[REPLAYED] == "true"


def test_the_one_who_may_drops_and_is_named(site: AccessSite) -> None:
    dropped = send(site, ALICE, "DELETE", f"{TABLE}?purgeRequested=true")
    assert dropped.status_code == 204, dropped.text
    [row] = site.audited(subject="alice", act="drop")
    assert (row["outcome"], row["object"]) == ("allowed", "prod.shop.orders")
    found = site.api().get("/v1/tombstones").json()["tombstones"]
    assert [one["requested_by"] for one in found] == ["catalog:prod alice"]
    task = site.api().task(found[0]["delegation_task_id"])
    assert task["requested_by"] == "catalog:prod alice"
