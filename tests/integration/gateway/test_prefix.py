"""An address of the gateway stands for one catalog of a server, whatever a path says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from support.gateway import REPLAYED, Caller, Scene, error_of, new_key, raw_request
from support.gateway_fixtures import Rows, StartGateway
from support.guarded_catalog import GuardedCatalog
from support.keyed_catalog import error
from support.relay import Scripted

DELEGATED = {"purge": {"task_type": "delegated", "mode": "fire-and-forget"}}
PURGE = {"params": {"purgeRequested": "true"}}


@pytest.fixture
def guarded(direct: Caller) -> Iterator[GuardedCatalog]:
    """Alice owns `other`, and may look into `prod`."""
    every = {"prod": "write", "other": "write"}
    with GuardedCatalog(
        direct.url, moraine=every, olga={"prod": "write"}, alice={"prod": "read", "other": "write"}
    ) as guarded:
        yield guarded


def settings_of(guarded: GuardedCatalog, token: str = "moraine") -> dict[str, Any]:
    auth = {"kind": "bearer", "token": token}
    return {"prod": {"uri": guarded.url, "warehouse": "prod", "auth": auth}}


def caller_of(base: Caller, token: str) -> Caller:
    return Caller(base.url, {"Authorization": f"Bearer {token}"})


def tombstones(ledger: str, namespace: str) -> int:
    with psycopg.connect(ledger) as connection:
        query = "SELECT count(*) FROM tombstones WHERE namespace = %s"
        [(count,)] = connection.execute(query, [[namespace]]).fetchall()
    return int(count)


def test_a_table_of_another_catalog_is_no_way_to_this_ones(
    start_gateway: StartGateway, guarded: GuardedCatalog, scene: Scene, ledger: str
) -> None:
    scene.direct.done(scene.create_table("t"))
    base = start_gateway(settings_of(guarded), gateway=DELEGATED)
    alice, olga = caller_of(base, "alice"), caller_of(base, "olga")
    path = scene.path("tables", "t")
    assert alice.get(f"prod/{path}").status_code == 200
    assert alice.delete(f"prod/{path}", **PURGE).status_code == 403

    refused = alice.delete(f"other/{path}", **PURGE)

    assert (refused.status_code, error_of(refused)["type"]) == (400, "BadRequestException")
    assert "/v1/prod/" in error_of(refused)["message"]
    assert tombstones(ledger, scene.namespace) == 0
    assert olga.get(f"prod/{path}").status_code == 200
    assert not any("/other/" in request.target for request in guarded.seen)


@pytest.mark.parametrize("prefix", ["other/", "", "pro%64/other/", "Prod/", "prod%2Fother/"])
def test_no_other_prefix_is_served(
    start_gateway: StartGateway, guarded: GuardedCatalog, scene: Scene, rows: Rows, prefix: str
) -> None:
    alice = caller_of(start_gateway(settings_of(guarded)), "alice")
    key = new_key()
    for ask in (scene.create_table("t"), scene.transaction(), scene.rename_table("a", "b")):
        assert alice.send(ask.method, prefix + ask.path, ask.body, key=key).status_code == 400
    for path in (scene.path("tables"), scene.path("tables", "t"), "namespaces"):
        assert alice.get(prefix + path).status_code == 400
    assert rows(key) == []
    assert guarded.asked_by("alice") == []


def test_its_own_prefix_is_served(
    start_gateway: StartGateway, guarded: GuardedCatalog, scene: Scene
) -> None:
    base = start_gateway(settings_of(guarded))
    olga, key = caller_of(base, "olga"), new_key()
    config = olga.get("config").json()
    assert config["overrides"]["prefix"] == "prod"
    ask = scene.create_table("t")
    for replayed in (None, "true"):
        made = olga.post(f"{config['overrides']['prefix']}/{ask.path}", ask.body, key=key)
        assert (made.status_code, made.headers.get(REPLAYED)) == (200, replayed)
    # However it is written.
    with raw_request(
        base.url, "GET", f"/v1/%70rod/{scene.path('tables', 't')}", olga.headers
    ) as got:
        assert got.status == 200


def test_a_catalog_without_a_prefix(caller: Caller, scene: Scene, rows: Rows) -> None:
    ask, key = scene.create_table("t"), new_key()
    refused = caller.post(f"other/{ask.path}", ask.body, key=key)
    assert refused.status_code == 400
    assert "/v1/," in error_of(refused)["message"]
    assert rows(key) == []
    assert caller.get(f"v1/{scene.path('tables')}").status_code == 400


def test_no_caller_teaches_the_gateway(
    start_gateway: StartGateway, guarded: GuardedCatalog, scene: Scene
) -> None:
    """Two warehouses separate levels in two ways, and it is not in the settings which one it is."""
    guarded.principals = {"moraine": {"": "write", "odd": "write"}, "alice": {"odd": "write"}}
    guarded.separators["odd"] = "-"
    settings = settings_of(guarded)
    settings["prod"]["warehouse"] = ""
    alice = caller_of(start_gateway(settings), "alice")
    refused = alice.get("config?warehouse=odd")
    assert refused.status_code == 400, "its paths would be refused"
    assert "/v1/," in error_of(refused)["message"]
    alice.get("namespaces/a.b-c")
    assert guarded.asked_by("alice")[-1].target == "/v1/namespaces/a%2Eb-c"


def test_both_ways_to_write_a_separator_are_one(caller: Caller, way: Any, scene: Scene) -> None:
    scene.direct.done(scene.create_namespace("below"))
    key, body = new_key(), scene.create_table("t").body
    for mark, replayed in ((".", None), ("%2E", "true"), ("%2e", "true")):
        path = f"/v1/namespaces/{scene.namespace}{mark}below/tables"
        with raw_request(caller.url, "POST", path, {"Idempotency-Key": key}, body) as response:
            assert response.status == 200
            assert response.getheader(REPLAYED) == replayed
    [made] = way.mutations
    assert made.target == f"/v1/namespaces/{scene.namespace}%2Ebelow/tables"


def test_a_catalog_that_does_not_tell_moraine(
    start_gateway: StartGateway, guarded: GuardedCatalog, scene: Scene
) -> None:
    base = start_gateway(settings_of(guarded, token="no-such-principal"))
    olga = caller_of(base, "olga")
    refused = olga.get("prod/namespaces")
    assert (refused.status_code, error_of(refused)["type"]) == (503, "ServiceUnavailableException")
    assert "catalogs.prod.uri, .warehouse and .auth" in error_of(refused)["message"]
    assert "no-such-principal" not in refused.text
    # Mended at the catalog, it needs no restart here.
    guarded.principals["no-such-principal"] = {}
    assert olga.get("prod/namespaces").status_code == 200


def test_a_catalog_that_cannot_be_asked_now(start_gateway: StartGateway) -> None:
    answers = [error(503), error(503)]
    with Scripted(lambda _: answers.pop() if answers else error(404)) as catalog:
        caller = start_gateway({"prod": catalog.url})
        away = caller.get("namespaces")
        assert (away.status_code, away.headers["Retry-After"]) == (503, "1")
        assert "Ask again later" in error_of(away)["message"]
    gone = caller.get("namespaces")
    assert gone.status_code == 503
