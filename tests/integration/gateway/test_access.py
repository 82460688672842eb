"""Only callers whom the catalog lets in get through, and no credential is stored or logged."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.gateway import REPLAYED, Caller, Scene, Way, error_of, new_key
from support.keyed_catalog import answers, error, reset_after
from support.oauth_server import Realm, running_realm
from support.rest_client import ask_for_token
from support.vending import VendingCatalog

StartGateway = Callable[..., Caller]
Rows = Callable[[str], list[dict[str, Any]]]

DELEGATION = {"X-Iceberg-Access-Delegation": "vended-credentials"}


@pytest.fixture
def realm(direct: Caller) -> Iterator[Realm]:
    """A gate before the catalog."""
    with running_realm(direct.url, Realm()) as realm:
        yield realm


def principal(guard: Realm | VendingCatalog, uri: str) -> dict[str, Any]:
    """A catalog whose configuration Moraine's own principal may read."""
    client = {"client_id": guard.client_id, "client_secret": guard.client_secret}
    return {"uri": uri, "auth": {"kind": "oauth2", **client, "scope": guard.scope}}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def token_of(realm: Realm, caller: Caller) -> dict[str, str]:
    """Fetched through the gateway, as clients do."""
    response = ask_for_token(caller.url, realm.client_id, realm.client_secret)
    assert response.status_code == 200, response.text
    return bearer(response.json()["access_token"])


# --- Who may ----------------------------------------------------------------------------------


def test_the_gateway_lets_in_no_caller_whom_the_catalog_does_not(
    start_gateway: StartGateway, realm: Realm, scene: Scene, rows: Rows
) -> None:
    caller = start_gateway({"prod": principal(realm, realm.catalog_uri)})
    ask, key = scene.create_table("t"), new_key()
    for headers in ({}, bearer("made-up")):
        for response in (
            caller.get("namespaces", headers=headers),
            caller.get("config", headers=headers),
            caller.send(*ask, headers=headers),
            caller.send(*ask, headers=headers, key=key),
        ):
            assert response.status_code == 401
            assert error_of(response)["type"] == "NotAuthorizedException"
    assert rows(key) == []
    assert scene.tables() == []
    # The same key, by a caller who may.
    headers = token_of(realm, caller)
    assert caller.send(*ask, headers=headers, key=key).status_code == 200
    assert caller.get("config", headers=headers).json()["idempotency-key-lifetime"] == "PT30M"


def create(scene: Scene) -> Any:
    return scene.create_table("t")


def commit(scene: Scene) -> Any:
    scene.direct.done(scene.create_table("t"))
    return scene.append("t", 1001)


def drop(scene: Scene) -> Any:
    scene.direct.done(scene.create_table("t"))
    return scene.drop_table("t")


def drop_nothing(scene: Scene) -> Any:
    return scene.drop_table("t")


@pytest.mark.parametrize("prepare", [create, commit, drop, drop_nothing])
def test_a_replay_is_for_those_who_may_read(
    start_gateway: StartGateway, realm: Realm, scene: Scene, rows: Rows, prepare: Any
) -> None:
    caller = start_gateway({"prod": principal(realm, realm.catalog_uri)})
    ask, key = prepare(scene), new_key()
    mine = token_of(realm, caller)
    first = caller.send(*ask, key=key, headers=mine)
    assert first.status_code in (200, 204, 404)
    [kept] = rows(key)
    assert kept["http_status"] == first.status_code
    refused = 503 if prepare is commit else 401
    # A caller without a token is another one, and its key a different key. An opaque token may be a
    # new one of the same caller.
    for headers, status in (({}, 401), (bearer("made-up"), refused)):
        stranger = caller.send(*ask, key=key, headers=headers)
        assert stranger.status_code == status
        assert REPLAYED not in stranger.headers
        assert "metadata-location" not in stranger.text
    realm.revoke()
    assert caller.send(*ask, key=key, headers=mine).status_code == refused
    # Whoever was refused has not spoiled it for the others.
    assert rows(key) == [kept]
    again = caller.send(*ask, key=key, headers=token_of(realm, caller))
    assert (again.status_code, again.headers[REPLAYED]) == (first.status_code, "true")
    assert again.content == first.content or again.json() == first.json()


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("prepare", [create, drop])
def test_the_catalogs_own_words_are_the_answer(
    caller: Caller, way: Way, scene: Scene, prepare: Any, status: int
) -> None:
    ask, key = prepare(scene), new_key()
    assert caller.send(*ask, key=key).status_code in (200, 204)
    refusal = error(status, kind="ForbiddenException")
    way.break_reads_with(answers(refusal))
    refused = caller.send(*ask, key=key)
    assert (refused.status_code, refused.content) == (status, refusal.body)
    assert caller.send(*ask, key=key).headers[REPLAYED] == "true"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_does_not_make_a_commit_that_is_there_a_failed_one(
    caller: Caller, way: Way, scene: Scene, status: int
) -> None:
    """Say, its token has expired since: after a 401 or 403 a client deletes what it committed."""
    ask, key = commit(scene), new_key()
    assert caller.send(*ask, key=key).status_code == 200
    way.break_reads_with(answers(error(status)))
    refused = caller.send(*ask, key=key)
    assert refused.status_code == 503
    assert str(status) in error_of(refused)["message"]
    assert caller.send(*ask, key=key).headers[REPLAYED] == "true"


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("prepare", [create, commit, drop])
def test_who_may_not_look_finds_out_nothing_and_changes_nothing(
    caller: Caller, way: Way, scene: Scene, rows: Rows, prepare: Any, status: int
) -> None:
    """An abandoned key, and a caller whom the catalog does not let see how it ended."""
    ask, key = prepare(scene), new_key()
    way.break_with(answers(error(503)))
    assert caller.send(*ask, key=key).status_code == 503
    state = scene.state()
    way.break_reads_with(answers(error(status)))
    refused = caller.send(*ask, key=key)
    assert refused.status_code == 503
    assert str(status) in error_of(refused)["message"]
    assert scene.state() == state
    assert rows(key)[0]["abandoned"]
    assert caller.send(*ask, key=key).status_code in (200, 204)


@pytest.mark.parametrize("status", [401, 403, 419])
def test_nor_does_a_refusal_of_the_second_attempt(
    caller: Caller, way: Way, scene: Scene, rows: Rows, status: int
) -> None:
    """The first may still be on its way through the catalog."""
    ask, key = commit(scene), new_key()
    way.break_with(answers(error(503)), answers(error(status)))
    assert caller.send(*ask, key=key).status_code == 503
    refused = caller.send(*ask, key=key)
    assert refused.status_code == 503
    assert str(status) in error_of(refused)["message"]
    assert rows(key)[0]["abandoned"]
    assert caller.send(*ask, key=key).status_code == 200


@pytest.mark.parametrize("status", [401, 403, 419])
@pytest.mark.parametrize("prepare", [create, drop])
def test_nothing_is_written_down_for_a_caller_who_may_not_look(
    caller: Caller, way: Way, scene: Scene, rows: Rows, prepare: Any, status: int
) -> None:
    """Of these it is looked before what is there."""
    ask, key = prepare(scene), new_key()
    refusal = error(status, kind="ForbiddenException")
    way.break_reads_with(answers(refusal))
    refused = caller.send(*ask, key=key)
    assert (refused.status_code, refused.content) == (status, refusal.body)
    assert rows(key) == []
    assert way.mutations == []
    assert caller.send(*ask, key=key).status_code in (200, 204)


# --- Credentials ------------------------------------------------------------------------------


def vended_keys(body: Any) -> set[str]:
    found = [body.get("config", {})]
    found += [one["config"] for one in body.get("storage-credentials", [])]
    return {one["s3.access-key-id"] for one in found if "s3.access-key-id" in one}


def secrets_of(body: Any) -> list[str]:
    found = [body.get("config", {})]
    found += [one["config"] for one in body.get("storage-credentials", [])]
    names = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
    return [one[name] for one in found for name in names if name in one]


def written_down(row: dict[str, Any]) -> str:
    body = zlib.decompress(row["response_body"]).decode() if row["response_body"] else ""
    return json.dumps({**row, "response_body": body}, default=str)


@pytest.mark.parametrize("place", ["storage-credentials", "config"])
def test_credentials_are_in_no_row_and_fresh_in_a_replay(
    start_gateway: StartGateway, vending_catalog: VendingCatalog, rows: Rows, place: Any
) -> None:
    vending_catalog.vends_in = {place}
    caller = start_gateway({"prod": principal(vending_catalog, vending_catalog.url)})
    token = ask_for_token(
        caller.url, vending_catalog.client_id, vending_catalog.client_secret
    ).json()["access_token"]
    caller.headers = {**bearer(token), **DELEGATION}
    scene = Scene(caller)
    ask, key = scene.create_table("t"), new_key()

    first = caller.send(*ask, key=key)
    assert first.status_code == 200, first.text
    given = secrets_of(first.json())
    assert len(given) >= 3
    [row] = rows(key)
    assert row["http_status"] == 200
    assert row["response_body"]
    for secret in [*given, token]:
        assert secret not in written_down(row)

    vended_before = len(vending_catalog.vends)
    again = caller.send(*ask, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    fresh = vended_keys(again.json())
    assert fresh
    assert not fresh & vended_keys(first.json())
    assert fresh <= {vend.access_key for vend in vending_catalog.vends[vended_before:]}
    assert again.json()["metadata"] == first.json()["metadata"]

    # A caller who does not ask for any gets none.
    plain = Caller(caller.url, bearer(token)).send(*ask, key=key)
    assert (plain.status_code, plain.headers[REPLAYED]) == (200, "true")
    assert secrets_of(plain.json()) == []


def test_nor_are_they_in_what_is_kept_after_a_lost_answer(
    start_gateway: StartGateway, vending_catalog: VendingCatalog, rows: Rows
) -> None:
    """The answer is made from a load, which vends."""
    with Way(vending_catalog.url) as way:
        caller = start_gateway({"prod": way.url})
        token = ask_for_token(
            caller.url, vending_catalog.client_id, vending_catalog.client_secret
        ).json()["access_token"]
        caller.headers = {**bearer(token), **DELEGATION}
        scene = Scene(caller)
        ask = scene.create_table("t", properties={"s3.secret-access-key": "in-a-property"})
        key = new_key()
        way.break_with(reset_after)
        assert caller.send(*ask, key=key).status_code == 502
        assert "in-a-property" not in written_down(rows(key)[0])
        again = caller.send(*ask, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    assert vended_keys(again.json())
    for secret in secrets_of(again.json()):
        assert secret not in written_down(rows(key)[0])
