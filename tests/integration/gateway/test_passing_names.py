"""Catalogs by their names, and names of every kind in them."""

from __future__ import annotations

from urllib.parse import quote

import pytest
import requests

from support.gateway import REPLAYED, Ask, Caller, Scene, Way, error_of, new_key
from support.gateway_fixtures import StartGateway
from support.keyed_catalog import reset_after

OWNER = {"action": "set-properties", "updates": {"owner": "ana"}}


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
    assert [request.path for request in way.seen] == ["/v1/config", "/v1/namespaces"]

    gateway = {"default_catalog": "prod", "purge": {"task_type": "local"}}
    assert start_gateway(both, gateway=gateway).get("namespaces").status_code == 200
    assert [request.path for request in way.seen] == 2 * ["/v1/config", "/v1/namespaces"]


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
