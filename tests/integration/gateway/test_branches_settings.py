"""What each setting makes of a key, and requests that have no use for one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from support.gateway import REPLAYED, Caller, Scene, Way, error_of, new_key
from support.gateway_fixtures import Rows, StartGateway
from support.keyed_catalog import Held
from support.tcp_proxy import proxied
from support.waiting import wait_for


def test_with_check_payload_off_the_key_alone_counts(
    start_gateway: StartGateway, way: Way, scene: Scene
) -> None:
    caller = start_gateway(idempotency={"check_payload": False})
    key = new_key()
    first = caller.send(*scene.create_table("t"), key=key)
    other = caller.send(*scene.create_table("u"), key=key)
    assert (other.status_code, other.headers[REPLAYED]) == (200, "true")
    assert other.json() == first.json()
    assert scene.tables() == ["t"]
    assert len(way.mutations) == 1


def test_after_lifetime_and_grace_a_key_is_unknown(
    start_gateway: StartGateway, way: Way, scene: Scene, rows: Rows
) -> None:
    caller = start_gateway(idempotency={"lifetime": "1s", "grace": "1s"})
    key, ask = new_key(), scene.create_table("t")
    assert caller.send(*ask, key=key).status_code == 200
    wait_for(lambda: time.time() > rows(key)[0]["expires_at"].timestamp())
    late = caller.send(*ask, key=key)
    assert late.status_code == 409
    assert REPLAYED not in late.headers
    assert len(way.mutations) == 2
    [row] = rows(key)
    assert (row["http_status"], row["attempts"]) == (409, 1)


def test_who_is_later_than_the_lifetime_of_its_key_writes_down_nothing(
    caller: Caller,
    other_caller: Caller,
    way: Way,
    scene: Scene,
    rows: Rows,
    ledger: str,
    pool: ThreadPoolExecutor,
) -> None:
    """By then the key may belong to another caller."""
    key, late, new = new_key(), Held(), Held()
    way.break_with(late, new)
    first = pool.submit(caller.send, *scene.create_table("t"), key=key)
    assert late.arrived.wait(60)
    with psycopg.connect(ledger, autocommit=True) as connection:
        connection.execute(
            "UPDATE idempotency_records SET expires_at = now() WHERE idempotency_key = %s", [key]
        )
    second = pool.submit(other_caller.send, *scene.create_table("u"), key=key)
    assert new.arrived.wait(60)
    [row] = rows(key)
    late.go_on.set()
    assert first.result().status_code == 200
    assert rows(key) == [row]
    new.go_on.set()
    assert second.result().status_code == 200
    assert other_caller.send(*scene.create_table("u"), key=key).headers[REPLAYED] == "true"
    assert scene.tables() == ["t", "u"]


def test_grace_is_on_top_of_what_is_advertised(
    start_gateway: StartGateway, scene: Scene, rows: Rows
) -> None:
    caller = start_gateway(idempotency={"lifetime": "30m", "grace": "5m"})
    assert caller.get("config").json()["idempotency-key-lifetime"] == "PT30M"
    key = new_key()
    assert caller.send(*scene.create_table("t"), key=key).status_code == 200
    [row] = rows(key)
    assert (row["expires_at"] - row["created_at"]).total_seconds() == 35 * 60


@pytest.mark.parametrize("key", ["", "-", "a b", "x" * 256, "a,b"])
def test_a_malformed_key_is_refused(caller: Caller, way: Way, scene: Scene, key: str) -> None:
    response = caller.send(*scene.create_table("t"), key=key)
    assert (response.status_code, error_of(response)["type"]) == (400, "BadRequestException")
    assert way.mutations == []


def test_the_key_format_can_be_narrowed(start_gateway: StartGateway, scene: Scene) -> None:
    caller = start_gateway(idempotency={"key_format": "uuid7"})
    v4, v7 = "550e8400-e29b-41d4-a716-446655440000", "01980a5c-0000-7000-8000-0000000000ab"
    ask = scene.create_table("t")
    assert caller.send(*ask, key="abc").status_code == 400
    assert caller.send(*ask, key=v4).status_code == 400
    assert caller.send(*ask, key=v7).status_code == 200
    assert caller.send(*ask, key=v7.upper()).headers[REPLAYED] == "true"


def test_with_the_layer_off_the_header_is_the_catalogs_affair(
    start_gateway: StartGateway, way: Way, scene: Scene, rows: Rows
) -> None:
    caller = start_gateway(idempotency={"enabled": False})
    config = caller.get("config").json()
    assert config == scene.direct.get("config").json()
    assert not any("idempotency" in name for name in config)
    key = new_key()
    response = caller.send(*scene.create_table("t"), key=key)
    assert response.status_code == 200
    assert [request.header("Idempotency-Key") for request in way.mutations] == [key]
    assert rows(key) == []
    # Nor does it look at what is in it.
    assert caller.send(*scene.create_view("v"), key="?").status_code == 200


def test_while_the_ledger_is_away(
    start_gateway: StartGateway, ledger: str, way: Way, scene: Scene
) -> None:
    with proxied(ledger) as proxy:
        caller = start_gateway(url=proxy.url)
        assert caller.get("config").json()["idempotency-key-lifetime"] == "PT30M"
        proxy.cut()
        # What is not promised is not asked for.
        config = caller.get("config").json()
        assert config == scene.direct.get("config").json()
        refused = caller.send(*scene.create_table("t"), key=new_key())
        assert refused.status_code == 503
        assert error_of(refused)["type"] == "ServiceUnavailableException"
        assert way.mutations == []
        # Everything else goes on.
        assert caller.send(*scene.create_table("u")).status_code == 200
        assert caller.get(scene.path("tables", "u")).status_code == 200
        assert caller.get(scene.path("tables")).status_code == 200
        proxy.restore()
        wait_for(lambda: "idempotency-key-lifetime" in caller.get("config").json())
        assert caller.send(*scene.create_table("t"), key=new_key()).status_code == 200


def test_a_staged_create_makes_nothing_and_has_no_use_for_a_key(
    caller: Caller, scene: Scene, rows: Rows
) -> None:
    key = new_key()
    ask = scene.create_table("t", **{"stage-create": True})
    for _ in range(2):
        response = caller.send(*ask, key=key)
        assert response.status_code == 200
        assert REPLAYED not in response.headers
    assert rows(key) == []
    assert scene.tables() == []


def test_without_a_key_nothing_is_as_if_there_were_keys(
    caller: Caller, way: Way, scene: Scene
) -> None:
    ask = scene.create_table("t")
    assert [caller.send(*ask).status_code for _ in range(2)] == [200, 409]
    assert len(way.mutations) == 2


def test_only_a_create_can_be_staged(caller: Caller, way: Way, scene: Scene) -> None:
    scene.direct.done(scene.create_table("t"))
    ask, key = scene.commit("t", {"action": "set-properties", "updates": {"a": "1"}}), new_key()
    ask.body["stage-create"] = True
    assert [caller.send(*ask, key=key).status_code for _ in range(2)] == [200, 200]
    assert len(way.mutations) == 1
