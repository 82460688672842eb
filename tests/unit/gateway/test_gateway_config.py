"""What the gateway makes of a catalog's configuration."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest

from moraine.gateway.config import advertise, iso_duration, keep_clients_here
from moraine.gateway.upstream import Upstream
from moraine.settings import CatalogSettings

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
    assert iso_duration(duration) == words


def test_keys_are_advertised_in_both_places_and_all_else_is_kept() -> None:
    config: dict[str, Any] = {
        "defaults": {"clients": "4"},
        "overrides": {"prefix": "main%7Cw"},
        "endpoints": ["GET /v1/{prefix}/namespaces"],
        "properties": {"flavour": "vanilla"},
        "something-new": {"a": [1]},
    }
    before = copy.deepcopy(config)
    assert advertise(config, HALF_AN_HOUR) == {
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
    advertised = advertise(config, HALF_AN_HOUR)
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
    advertised = advertise(theirs, HALF_AN_HOUR)
    assert advertised["idempotency-key-lifetime"] == "PT30M"
    assert advertised["properties"]["idempotency-key-supported"] == "true"
    assert advertised["properties"]["idempotency-key-lifetime"] == "PT30M"


def upstream(uri: str = "http://catalog:8181/api", warehouse: str = "") -> Upstream:
    return Upstream("prod", CatalogSettings(uri=uri, warehouse=warehouse), None)  # type: ignore[arg-type]


def test_an_address_that_leads_past_the_gateway_is_replaced() -> None:
    config = {
        "defaults": {"uri": "http://catalog:8181/api/", "a": "b"},
        "overrides": {"uri": "http://catalog:8181/api", "prefix": "p"},
        "endpoints": ["x"],
    }
    assert keep_clients_here(config, upstream().is_own_address, OWN) == {
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
    assert keep_clients_here(config, upstream().is_own_address, OWN) == config


@pytest.mark.parametrize("config", [{}, {"overrides": None}, {"defaults": [], "overrides": {}}])
def test_a_config_without_layers(config: dict[str, Any]) -> None:
    assert keep_clients_here(config, upstream().is_own_address, OWN) == config


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ("", "warehouse=s3://lake/w"),
        ("a=b", "a=b&warehouse=s3://lake/w"),
        ("warehouse=mine", "warehouse=mine"),
        ("a=b&warehouse=", "a=b&warehouse="),
    ],
)
def test_a_client_that_names_no_warehouse_gets_that_of_the_settings(query: str, sent: str) -> None:
    assert upstream(warehouse="s3://lake/w").config_query(query).replace("%3A", ":") == sent
    assert upstream().config_query(query) == query


@pytest.mark.parametrize(
    ("config", "separator"),
    [
        ({}, "%1F"),
        ({"overrides": {"namespace-separator": "%2E"}}, "%2E"),
        ({"defaults": {"namespace-separator": "%2E"}}, "%2E"),
        (
            {"defaults": {"namespace-separator": "a"}, "overrides": {"namespace-separator": "b"}},
            "b",
        ),
        ({"overrides": {"namespace-separator": None}}, "%1F"),
        ({"overrides": None}, "%1F"),
    ],
)
def test_the_separator_that_clients_are_told(config: dict[str, Any], separator: str) -> None:
    one = upstream()
    one.learn(config)
    assert one._separator == separator
