"""What a server says of itself, and for how long it is believed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from moraine.iceberg.config import ConfigCache, ServerConfig, is_suspect, read_lifetime

HALF_AN_HOUR = timedelta(minutes=30)
LIFETIME = "idempotency-key-lifetime"
SUPPORTED = "idempotency-key-supported"
PLACE = ("http://c", "")


@pytest.mark.parametrize(
    ("body", "lifetime"),
    [
        ({LIFETIME: "PT30M"}, HALF_AN_HOUR),
        ({LIFETIME: "PT24H"}, timedelta(days=1)),
        ({LIFETIME: "P1DT12H"}, timedelta(days=1.5)),
        ({LIFETIME: "PT0.5S"}, timedelta(seconds=0.5)),
        ({"properties": {SUPPORTED: "true", LIFETIME: "PT30M"}}, HALF_AN_HOUR),
        # Both forms: Iceberg's own decides.
        ({LIFETIME: "PT30M", "properties": {SUPPORTED: "true", LIFETIME: "PT1H"}}, HALF_AN_HOUR),
        ({LIFETIME: "PT30M", "properties": {SUPPORTED: "false"}}, HALF_AN_HOUR),
        ({LIFETIME: "soon", "properties": {SUPPORTED: "true", LIFETIME: "PT30M"}}, None),
        ({LIFETIME: None, "properties": {SUPPORTED: "true", LIFETIME: "PT30M"}}, HALF_AN_HOUR),
        # Not, or not in a way that can be relied on.
        ({}, None),
        ({"properties": None}, None),
        ({"properties": "true"}, None),
        ({"properties": {SUPPORTED: "true"}}, None),
        ({"properties": {LIFETIME: "PT30M"}}, None),
        ({"properties": {SUPPORTED: "false", LIFETIME: "PT30M"}}, None),
        ({"properties": {SUPPORTED: "TRUE", LIFETIME: "PT30M"}}, None),
        ({"properties": {SUPPORTED: True, LIFETIME: "PT30M"}}, None),
        ({"properties": {SUPPORTED: "true", LIFETIME: "PT0S"}}, None),
        ({"defaults": {LIFETIME: "PT30M"}, "overrides": {LIFETIME: "PT30M"}}, None),
    ],
)
def test_catalog_config_supports_keys_if_a_lifetime_is_advertised(
    body: dict[str, Any], lifetime: timedelta | None
) -> None:
    assert read_lifetime(body) == lifetime
    assert ServerConfig.from_json(body).key_lifetime == lifetime


@pytest.mark.parametrize(
    "text",
    [
        *("", "P", "PT", "PT0S", "-PT30M", "PT-30M", "P99999999999D"),
        *("30m", "1800", "00:30:00", "PT30M "),
        *(1800, True, ["PT30M"], {}),
    ],
)
def test_catalog_config_key_lifetime_must_be_a_positive_duration(text: Any) -> None:
    assert read_lifetime({LIFETIME: text}) is None


def test_catalog_config_applies_defaults_then_the_clients_own_then_overrides() -> None:
    config = ServerConfig.from_json(
        {
            "defaults": {"clients": "4", "a": "server", "gone": None},
            "overrides": {"warehouse": "s3://server/", "size": 3, "on": True},
        }
    )
    assert config.merged({"clients": "8", "warehouse": "s3://mine/"}) == {
        "a": "server",
        "clients": "8",
        "warehouse": "s3://server/",
        "size": "3",
        "on": "true",
    }


def test_catalog_config_shows_no_secret() -> None:
    config = ServerConfig.from_json({"defaults": {"token": "hunter2"}})
    assert "hunter2" not in repr(config)


class Source:
    """Fetches a new configuration every time, unless it is down."""

    def __init__(self) -> None:
        self.fetched = 0
        self.down = False

    def fetch(self) -> ServerConfig | None:
        self.fetched += 1
        return None if self.down else ServerConfig(defaults={"n": str(self.fetched)})


def test_catalog_config_is_fetched_once_an_hour() -> None:
    now, source = [0.0], Source()
    cache = ConfigCache(lambda: now[0])
    first = cache.get(PLACE, source.fetch)
    now[0] = 3599
    assert cache.get(PLACE, source.fetch) is first
    now[0] = 3600
    assert cache.get(PLACE, source.fetch) is not first
    assert source.fetched == 2


def test_catalog_config_is_kept_for_each_warehouse() -> None:
    cache, source = ConfigCache(), Source()
    assert cache.get(("http://c", "dev"), source.fetch) != cache.get(PLACE, source.fetch)


def test_catalog_config_that_could_not_be_fetched_is_fetched_again() -> None:
    cache, source = ConfigCache(), Source()
    source.down = True
    assert cache.get(PLACE, source.fetch) is None
    source.down = False
    assert cache.get(PLACE, source.fetch) is not None


def test_catalog_config_is_not_used_after_its_time_if_a_new_fetch_fails() -> None:
    now, source = [0.0], Source()
    cache = ConfigCache(lambda: now[0])
    cache.get(PLACE, source.fetch)
    now[0], source.down = 3601, True
    assert cache.get(PLACE, source.fetch) is None


def test_catalog_config_is_fetched_again_after_it_was_forgotten() -> None:
    cache, source = ConfigCache(), Source()
    cache.get(PLACE, source.fetch)
    cache.forget(PLACE)
    cache.forget(("http://other", ""))
    cache.get(PLACE, source.fetch)
    assert source.fetched == 2


@pytest.mark.parametrize(
    ("status", "named", "suspect"),
    [
        (404, "", True),
        (404, "NotFoundException", True),
        (404, "NoSuchTableException", False),
        (400, "BadRequestException", True),
        (405, "", True),
        (409, "CommitFailedException", False),
        (503, "", False),
    ],
)
def test_catalog_config_is_in_doubt_after_some_answers(
    status: int, named: str, suspect: bool
) -> None:
    assert is_suspect(status, named) is suspect
