"""What the gateway makes of a catalog's configuration."""

from __future__ import annotations

import copy
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

from moraine.gateway.errors import WrongWarehouse
from moraine.gateway.upstream import Upstream
from moraine.iceberg.config import ServerConfig, with_lifetime, with_uri
from moraine.settings import CatalogSettings
from moraine.settings.limits import GatewayLimitSettings

OWN = "https://gateway.example/catalog/prod"
HALF_AN_HOUR = timedelta(minutes=30)


@pytest.mark.parametrize(
    ("duration", "words"),
    [
        (timedelta(minutes=30), "PT30M"),
        (timedelta(seconds=90), "PT1M30S"),
        (timedelta(days=1), "P1D"),
        (timedelta(hours=36), "P1DT12H"),
    ],
)
def test_durations_in_iso_8601(duration: timedelta, words: str) -> None:
    assert with_lifetime({}, duration)["idempotency-key-lifetime"] == words


def test_keys_are_advertised_in_both_places_and_all_else_is_kept() -> None:
    config: dict[str, Any] = {
        "defaults": {"clients": "4"},
        "overrides": {"prefix": "main%7Cw"},
        "endpoints": ["GET /v1/{prefix}/namespaces"],
        "properties": {"flavour": "vanilla"},
        "something-new": {"a": [1]},
    }
    before = copy.deepcopy(config)
    assert with_lifetime(config, HALF_AN_HOUR) == {
        **before,
        "idempotency-key-lifetime": "PT30M",
        "properties": {
            "flavour": "vanilla",
            "idempotency-key-supported": "true",
            "idempotency-key-lifetime": "PT30M",
        },
    }
    assert config == before


@pytest.mark.parametrize("config", [{}, {"properties": None}, {"properties": []}])
def test_properties_that_are_missing_or_none(config: dict[str, Any]) -> None:
    advertised = with_lifetime(config, HALF_AN_HOUR)
    assert advertised["idempotency-key-lifetime"] == "PT30M"
    assert advertised["properties"] == {
        "idempotency-key-supported": "true",
        "idempotency-key-lifetime": "PT30M",
    }


def test_a_catalogs_own_promise_does_not_survive() -> None:
    theirs = {
        "idempotency-key-lifetime": "P7D",
        "properties": {"idempotency-key-supported": "false", "idempotency-key-lifetime": "P7D"},
    }
    advertised = with_lifetime(theirs, HALF_AN_HOUR)
    assert advertised["idempotency-key-lifetime"] == "PT30M"
    assert advertised["properties"]["idempotency-key-supported"] == "true"
    assert advertised["properties"]["idempotency-key-lifetime"] == "PT30M"


def upstream(uri: str = "http://catalog:8181/api", warehouse: str = "") -> Upstream:
    unused = SimpleNamespace(limits=GatewayLimitSettings())
    settings = CatalogSettings(uri=uri, warehouse=warehouse)
    return Upstream("prod", settings, unused)  # type: ignore[arg-type]


def test_an_address_that_leads_past_the_gateway_is_replaced() -> None:
    config = {
        "defaults": {"uri": "http://catalog:8181/api/", "a": "b"},
        "overrides": {"uri": "http://catalog:8181/api", "prefix": "p"},
        "endpoints": ["x"],
    }
    assert with_uri(config, OWN, upstream().is_own_address) == {
        "defaults": {"uri": OWN, "a": "b"},
        "overrides": {"uri": OWN, "prefix": "p"},
        "endpoints": ["x"],
    }


@pytest.mark.parametrize(
    "uri",
    ["http://elsewhere:8181/api", "https://catalog:8181/api", "http://catalog:8181/other", ""],
)
def test_another_address_is_none_of_its_business(uri: str) -> None:
    config = {"overrides": {"uri": uri}}
    assert with_uri(config, OWN, upstream().is_own_address) == config


@pytest.mark.parametrize("config", [{}, {"overrides": None}, {"defaults": [], "overrides": {}}])
def test_a_config_without_layers(config: dict[str, Any]) -> None:
    assert with_uri(config, OWN, upstream().is_own_address) == config


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ("", "warehouse=s3://lake/w"),
        ("a=b", "a=b&warehouse=s3://lake/w"),
        ("a=b&warehouse=", "a=b&warehouse=s3://lake/w"),
        ("warehouse=s3%3A%2F%2Flake%2Fw&a=", "a=&warehouse=s3://lake/w"),
    ],
)
def test_the_warehouse_of_the_settings_is_asked_for(query: str, sent: str) -> None:
    asked = upstream(warehouse="s3://lake/w").config_query(query)
    assert unquote(asked) == sent
    assert upstream().config_query(query) == query


@pytest.mark.parametrize(
    "query", ["warehouse=mine", "%77arehouse=mine", "warehouse=s3://lake/w&warehouse=mine"]
)
def test_another_warehouse_is_refused(query: str) -> None:
    with pytest.raises(WrongWarehouse, match="s3://lake/w"):
        upstream(warehouse="s3://lake/w").config_query(query)
    assert upstream().config_query(query) == query


@pytest.mark.parametrize(
    ("config", "properties"),
    [
        ({}, {}),
        ({"overrides": {"prefix": "p"}}, {"prefix": "p"}),
        ({"defaults": {"prefix": "p", "a": 1}}, {"prefix": "p", "a": "1"}),
        ({"defaults": {"prefix": "a"}, "overrides": {"prefix": "b"}}, {"prefix": "b"}),
        ({"overrides": {"prefix": None}}, {}),
        ({"overrides": None, "defaults": []}, {}),
    ],
)
def test_what_a_client_takes_from_it(config: dict[str, Any], properties: dict[str, str]) -> None:
    assert ServerConfig.from_json(config).merged({}) == properties
