"""The configuration that a catalog gives, and what the gateway says in it of itself."""

from __future__ import annotations

from support.gateway import Caller, Scene, Way, error_of
from support.gateway_fixtures import StartGateway
from support.keyed_catalog import error
from support.relay import Scripted


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


def test_an_address_that_leads_past_the_gateway(way: Way, start_gateway: StartGateway) -> None:
    overrides = {"prefix": "p", "namespace-separator": "%2E"}
    way.config = {"overrides": {**overrides, "uri": f"{way.url}/"}, "defaults": {"uri": "x"}}
    caller = start_gateway()
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
    for query in ("", "?warehouse=s3%3A%2F%2Flake%2Fw"):
        assert caller.get(f"config{query}").status_code == 200
    asked = [request.query for request in way.configs_asked_for]
    assert asked == len(asked) * [{"warehouse": "s3://lake/w"}]
    way.seen.clear()
    for query in ("warehouse=mine", "%77arehouse=mine", "warehouse=s3://lake/w&warehouse=mine"):
        refused = caller.get(f"config?{query}")
        assert (refused.status_code, error_of(refused)["type"]) == (400, "BadRequestException")
        assert "s3://lake/w" in error_of(refused)["message"]
    assert way.seen == []


def test_without_a_warehouse_in_the_settings_it_is_the_clients_to_name(
    start_gateway: StartGateway, way: Way
) -> None:
    assert start_gateway().get("config?warehouse=mine").status_code == 200
    assert way.configs_asked_for[0].query == {"warehouse": "mine"}


def test_a_refusal_of_the_configuration_is_passed_on(start_gateway: StartGateway) -> None:
    refusal = error(401, kind="NotAuthorizedException")
    with Scripted(lambda _: refusal) as catalog:
        response = start_gateway({"prod": catalog.url}).get("config")
        assert (response.status_code, response.content) == (401, refusal.body)
