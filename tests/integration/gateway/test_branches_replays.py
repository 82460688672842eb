"""A key whose request has its result: that is answered again, or why it cannot be."""

from __future__ import annotations

import json

import pytest

from support.gateway import KEY, REPLAYED, Caller, Scene, Way, error_of, new_key, raw_request
from support.gateway_fixtures import Rows, StartGateway

# --- [A] Finalized: replay ------------------------------------------------------------------


def test_a_finalized_key_is_replayed(caller: Caller, way: Way, scene: Scene) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    ask = scene.append("t", 1001)
    first = caller.send(*ask, key=key)
    again = caller.send(*ask, key=key)

    assert first.status_code == again.status_code == 200
    assert first.content == again.content
    assert REPLAYED not in first.headers
    assert again.headers[REPLAYED] == "true"
    for name in ("content-type", "etag"):
        assert again.headers[name] == first.headers[name]
    assert len(way.mutations) == 1
    assert scene.snapshots("t") == [1001]


def test_a_replay_is_of_what_was_answered_then(caller: Caller, scene: Scene) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    ask = scene.append("t", 1001)
    first = caller.send(*ask, key=key)
    scene.direct.done(scene.append("t", 1002))
    assert caller.send(*ask, key=key).content == first.content


def test_a_key_is_another_elsewhere(caller: Caller, way: Way, scene: Scene) -> None:
    """It belongs to a method and a path."""
    key = new_key()
    for ask in (
        scene.create_table("t"),
        scene.create_view("v"),
        scene.drop_view("v"),
    ):
        response = caller.send(*ask, key=key)
        assert response.status_code in (200, 204), response.text
        assert REPLAYED not in response.headers
    assert len(way.mutations) == 3


def test_two_spellings_of_a_path_share_a_key(caller: Caller, way: Way, scene: Scene) -> None:
    key = new_key()
    ask = scene.create_table("t")
    assert caller.send(*ask, key=key).status_code == 200
    for path in (
        ask.path.replace("namespaces", "%6Eamespaces").replace("tables", "%74ables"),
        f"{ask.path}/",
    ):
        headers = {KEY: key}
        with raw_request(caller.url, "POST", f"/v1/{path}", headers, ask.body) as response:
            assert (response.status, response.getheader(REPLAYED)) == (200, "true")
    # The default catalog by its name is the same one.
    named = Caller(f"{caller.url}/prod").send(*ask, key=key)
    assert (named.status_code, named.headers[REPLAYED]) == (200, "true")
    assert len(way.mutations) == 1


def test_another_spelling_of_a_body_is_the_same_request(
    caller: Caller, way: Way, scene: Scene
) -> None:
    key = new_key()
    ask = scene.create_table("t", properties={"a": "1", "b": "2"})
    assert caller.send(*ask, key=key).status_code == 200
    spelled = json.dumps(dict(reversed(ask.body.items())), indent=2).encode()
    again = caller.post(ask.path, spelled, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    assert len(way.mutations) == 1


# --- Replays that cannot be given -----------------------------------------------------------


def test_a_result_too_large_to_be_kept_is_made_again(
    start_gateway: StartGateway, way: Way, scene: Scene, rows: Rows
) -> None:
    caller = start_gateway(idempotency={"max_stored_bytes": 100})
    key, ask = new_key(), scene.create_table("t", properties={"note": "x"})
    first = caller.send(*ask, key=key)
    [row] = rows(key)
    assert (row["http_status"], row["response_body"]) == (200, None)
    again = caller.send(*ask, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    assert again.json() == first.json()
    # A small one is kept all the same.
    key, ask = new_key(), scene.drop_table("t")
    assert [caller.send(*ask, key=key).status_code for _ in range(2)] == [204, 204]
    assert rows(key)[0]["response_body"] is not None
    assert len(way.mutations) == 2


@pytest.mark.parametrize("kept", [4 << 20, 0], ids=["kept", "too large"])
def test_a_result_that_is_gone_is_not_made_again(
    start_gateway: StartGateway, way: Way, scene: Scene, kept: int
) -> None:
    caller = start_gateway(idempotency={"max_stored_bytes": kept})
    key, ask = new_key(), scene.create_table("t")
    assert caller.send(*ask, key=key).status_code == 200
    scene.direct.done(scene.drop_table("t"))
    again = caller.send(*ask, key=key)
    assert again.status_code == 500
    assert error_of(again)["subtype"] == "idempotency_replay_failed"
    assert scene.tables() == []
    assert len(way.mutations) == 1


@pytest.mark.parametrize("prepare", ["create", "commit"])
def test_a_result_is_gone_even_if_another_table_has_its_name(
    caller: Caller, way: Way, scene: Scene, prepare: str
) -> None:
    if prepare == "commit":
        scene.direct.done(scene.create_table("t"))
    ask = scene.create_table("t") if prepare == "create" else scene.append("t", 1001)
    key = new_key()
    assert caller.send(*ask, key=key).status_code == 200
    scene.direct.done(scene.drop_table("t"))
    scene.direct.done(scene.create_table("t"))
    again = caller.send(*ask, key=key)
    assert again.status_code == 500
    assert error_of(again)["subtype"] == "idempotency_replay_failed"
    assert scene.snapshots("t") == []
    assert len(way.mutations) == 1
