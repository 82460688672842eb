"""A catalog's settings: what the environment adds to the file, and what the file may not have."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable

import pytest
from pydantic import ValidationError

from moraine.secret_names import is_secret_property
from moraine.settings import CatalogAuthSettings, CatalogSettings, Settings

Given = Callable[..., Settings]

FILE = """
[catalogs.prod]
uri = "https://catalog.example/api"
warehouse = "prod"
[catalogs.prod.auth]
kind = "oauth2"
client-id = "moraine"
token-uri = "https://idp.example/token"
[catalogs.prod.storage]
"s3.endpoint" = "https://s3.example"
client.region = "eu-1"
"s3.path-style-access" = true
"""


def test_a_catalog_needs_no_principal(given_settings: Given) -> None:
    catalog = given_settings("[catalogs.demo]\nuri = 'http://c'").catalogs["demo"]
    assert (catalog.auth, catalog.storage) == (CatalogAuthSettings(), {})
    assert catalog.auth.kind == "none"


def test_secrets_of_the_environment_join_the_file(given_settings: Given) -> None:
    prod = given_settings(
        FILE,
        MORAINE_CATALOGS__PROD__AUTH__CLIENT_SECRET="hunter2",
        MORAINE_CATALOGS__PROD__STORAGE='{"s3.secret-access-key": "hunter3"}',
    ).catalogs["prod"]
    assert prod.auth == CatalogAuthSettings(
        kind="oauth2",
        client_id="moraine",
        client_secret="hunter2",
        token_uri="https://idp.example/token",
    )
    assert prod.storage_properties == {
        "s3.endpoint": "https://s3.example",
        "client.region": "eu-1",
        "s3.path-style-access": "true",
        "s3.secret-access-key": "hunter3",
    }
    assert set(prod.plain_storage_properties) == set(prod.storage) - {"s3.secret-access-key"}
    assert "hunter" not in repr(prod) + prod.model_dump_json()


@pytest.mark.parametrize("name", ["Prod", "my-prod", "My_Prod"])
def test_the_environment_knows_neither_case_nor_hyphens(given_settings: Given, name: str) -> None:
    variable = f"MORAINE_CATALOGS__{name.upper().replace('-', '_')}__AUTH__TOKEN"
    toml = f'[catalogs.{name}]\nuri = "http://c"\nauth.kind = "bearer"'
    settings = given_settings(toml, **{variable: "hunter2"})
    assert list(settings.catalogs) == [name]
    assert settings.catalogs[name].auth.token.get_secret_value() == "hunter2"


def test_of_two_names_alike_the_environment_means_the_one_in_lower_case(
    given_settings: Given,
) -> None:
    toml = '[catalogs.Prod]\nuri = "http://upper"\n[catalogs.prod]\nuri = "http://lower"'
    settings = given_settings(toml, MORAINE_CATALOGS__PROD__WAREHOUSE="w")
    assert {name: one.warehouse for name, one in settings.catalogs.items()} == {
        "Prod": "",
        "prod": "w",
    }


def test_a_catalog_can_come_from_the_environment_alone(given_settings: Given) -> None:
    settings = given_settings("", MORAINE_CATALOGS__NEW__URI="http://c")
    assert settings.catalogs == {"new": CatalogSettings(uri="http://c")}


@pytest.mark.parametrize(
    ("toml", "key", "variable"),
    [
        (
            "[catalogs.prod]\nuri='http://c'\nauth.kind='oauth2'\nauth.client-secret='hunter2'",
            "catalogs.prod.auth.client-secret",
            "MORAINE_CATALOGS__PROD__AUTH__CLIENT_SECRET",
        ),
        (
            "[catalogs.my-prod]\nuri='http://c'\nauth.kind='bearer'\nauth.token='hunter2'",
            "catalogs.my-prod.auth.token",
            "MORAINE_CATALOGS__MY_PROD__AUTH__TOKEN",
        ),
        (
            "[catalogs.prod]\nuri='http://c'\nstorage.'s3.secret-access-key'='hunter2'",
            'catalogs.prod.storage."s3.secret-access-key"',
            "MORAINE_CATALOGS__PROD__STORAGE",
        ),
        (
            "[catalogs.prod.storage]\nadls.sas-token.account='hunter2'",
            'catalogs.prod.storage."adls.sas-token.account"',
            "MORAINE_CATALOGS__PROD__STORAGE",
        ),
        ("[ledger]\nurl='postgresql://u:hunter2@h/d'", "ledger.url", "MORAINE_LEDGER__URL"),
        ("[airflow]\npassword='hunter2'", "airflow.password", "MORAINE_AIRFLOW__PASSWORD"),
        (
            "[login]\nclient-secret='hunter2'",
            "login.client-secret",
            "MORAINE_LOGIN__CLIENT_SECRET",
        ),
    ],
    ids=["client secret", "token", "S3 key", "SAS token", "ledger", "password", "login"],
)
def test_a_secret_in_the_file_is_an_error_that_says_where_it_belongs(
    given_settings: Given, toml: str, key: str, variable: str
) -> None:
    with pytest.raises(ValueError, match="is a secret and must not be in") as caught:
        given_settings(toml)
    assert str(caught.value).startswith(f"{key} is a secret")
    assert f"variable {variable}," in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("s3.access-key-id", True),
        ("s3.secret-access-key", True),
        ("s3.session-token", True),
        ("client.credentials-provider.password", True),
        ("gcs.oauth2.token", True),
        ("gcs.service-account.key", True),
        ("gcs.encryption-key", True),
        ("adls.auth.shared-key.account.key", True),
        ("adls.sas-token.account.dfs.core.windows.net", True),
        ("adls.connection-string.account", True),
        ("s3.endpoint", False),
        ("s3.path-style-access", False),
        ("client.region", False),
        ("s3.delete.batch-size", False),
        ("s3.access-grants.enabled", False),
        ("client.credentials-provider", False),
        ("client.refresh-credentials-enabled", False),
        ("gcs.project-id", False),
        ("io-impl", False),
        ("sasl.password", True),
        ("sasl.jaas.config", True),
        ("ssl.key.pem", True),
        ("ssl.key.location", False),
        ("sasl.mechanism", False),
        ("sasl.username", False),
    ],
)
def test_which_properties_are_secret(name: str, secret: bool) -> None:
    assert is_secret_property(name) is secret


@pytest.mark.parametrize("key", ["uri", "auth.token-uri"])
def test_an_address_with_a_password_is_refused_and_not_repeated(
    given_settings: Given, key: str
) -> None:
    toml = f"[catalogs.prod]\nwarehouse = 'w'\n{key} = 'https://me:hunter2@example'"
    with pytest.raises(ValidationError, match="must not contain a user or password") as caught:
        given_settings(toml)
    assert "hunter2" not in str(caught.value)


def test_credentials_without_a_kind_are_not_overlooked(given_settings: Given) -> None:
    with pytest.raises(ValidationError, match="kind is none") as caught:
        given_settings(
            "[catalogs.prod]\nuri = 'http://c'", MORAINE_CATALOGS__PROD__AUTH__TOKEN="hunter2"
        )
    assert "hunter2" not in str(caught.value)


def test_a_misspelt_secret_is_not_repeated(given_settings: Given) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted") as caught:
        given_settings(FILE, MORAINE_CATALOGS__PROD__AUTH__CLIENT_SECRETT="hunter2")
    assert "hunter2" not in str(caught.value)


def test_what_one_process_reveals_another_reads(given_settings: Given) -> None:
    first = given_settings(
        FILE.replace("prod]", "My-Prod]").replace("prod.", "My-Prod."),
        MORAINE_CATALOGS__MY_PROD__AUTH__CLIENT_SECRET="hunter2",
        MORAINE_CATALOGS__MY_PROD__STORAGE='{"s3.session-token": "Hunter3"}',
    ).catalogs["My-Prod"]
    os.environ.pop("MORAINE_CATALOGS__MY_PROD__AUTH__CLIENT_SECRET")
    os.environ.pop("MORAINE_CATALOGS__MY_PROD__STORAGE")
    handed_over = json.dumps({"My-Prod": first.revealed()})
    assert given_settings("", MORAINE_CATALOGS=handed_over).catalogs == {"My-Prod": first}
    assert pickle.loads(pickle.dumps(first)) == first
