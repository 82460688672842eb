"""Whose credentials are used, and what Spark is told."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from moraine.catalog.access import TableAccess, credentials_of, spark_options, vending_options
from moraine.catalog.client import LoadedTable
from moraine.settings import CatalogAuthSettings, CatalogSettings

CATALOG = CatalogSettings(
    uri="http://c/",
    warehouse="w",
    storage={
        "s3.endpoint": "http://s3",
        "client.region": "eu-1",
        "s3.access-key-id": "OWN",
        "s3.secret-access-key": "hunter2",
        "s3.session-token": "hunter3",
    },
)


def loaded(config: dict[str, str], *by_prefix: dict[str, Any]) -> LoadedTable:
    return LoadedTable("m.json", {"location": "s3://b/t"}, config, by_prefix)


def test_storage_access_prefers_vended_properties_and_fills_gaps_from_settings() -> None:
    vended = loaded(
        {"client.region": "us-1", "s3.access-key-id": "VENDED", "s3.secret-access-key": "x"}
    )
    found = credentials_of(vended, CATALOG)
    # The settings' session token belongs to the settings' key, and to no other.
    assert found.for_location("s3://b/t/x") == {
        "s3.endpoint": "http://s3",
        "client.region": "us-1",
        "s3.access-key-id": "VENDED",
        "s3.secret-access-key": "x",
    }


def test_storage_access_fills_gaps_of_a_vended_prefix_from_settings() -> None:
    secret = {"s3.secret-access-key": "x"}
    vended = loaded({}, {"prefix": "s3://b/t/", "config": secret})
    found = credentials_of(vended, CATALOG)
    assert found.prefixes == ["s3://b/t/"]
    assert found.for_location("s3://b/t/x") == {
        "s3.endpoint": "http://s3",
        "client.region": "eu-1",
        **secret,
    }


def test_storage_access_comes_from_settings_where_nothing_is_vended() -> None:
    without_secrets = {"prefix": "s3://b/t/", "config": {}}
    found = credentials_of(loaded({"s3.endpoint": "http://other"}, without_secrets), CATALOG)
    assert found.prefixes == ["s3://b/t/"]
    assert found.for_location("s3://b/t/x") == {
        **CATALOG.storage_properties,
        "s3.endpoint": "http://other",
    }
    assert "hunter" not in repr(found)


def test_storage_access_shows_no_secret() -> None:
    assert "hunter" not in repr(TableAccess(CATALOG, ("n",), "t"))


def test_spark_catalog_without_a_principal() -> None:
    assert spark_options(CatalogSettings(uri="http://c")) == {
        "type": "rest",
        "uri": "http://c",
        "header.X-Iceberg-Access-Delegation": "vended-credentials",
    }


def test_spark_catalog_as_an_oauth2_client_with_the_storage_of_the_settings() -> None:
    auth = CatalogAuthSettings(kind="oauth2", client_id="me", client_secret="hunter2", scope="all")
    options = spark_options(CATALOG.model_copy(update={"auth": auth}))
    assert options == {
        "type": "rest",
        "uri": "http://c/",
        "warehouse": "w",
        "rest.auth.type": "oauth2",
        "credential": "me:hunter2",
        "oauth2-server-uri": "http://c/v1/oauth/tokens",
        "scope": "all",
        "token-exchange-enabled": "false",
        **CATALOG.storage_properties,
    }


def test_spark_catalog_asks_for_vending_only_where_the_settings_have_no_keys() -> None:
    without = CATALOG.model_copy(update={"storage": {"s3.endpoint": SecretStr("http://s3")}})
    assert vending_options(without) == {"header.X-Iceberg-Access-Delegation": "vended-credentials"}
    assert vending_options(CATALOG) == {}


def test_spark_catalog_with_a_token() -> None:
    auth = CatalogAuthSettings(kind="bearer", token="hunter2")
    options = spark_options(CatalogSettings(uri="http://c", auth=auth))
    assert (options["rest.auth.type"], options["token"]) == ("oauth2", "hunter2")
    assert "credential" not in options
