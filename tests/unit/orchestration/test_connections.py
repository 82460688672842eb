"""Airflow's connections in the words of the settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from moraine.errors import CatalogNotConfigured
from moraine.orchestration.connections import auth_of, storage_properties_of, with_connections
from moraine.settings import CatalogAuthSettings, CatalogSettings


@dataclass
class Connection:
    conn_type: str | None = "http"
    login: str | None = None
    password: str | None = None
    host: str | None = None
    extra_dejson: dict[str, Any] = field(default_factory=dict)
    conn_id: str = "moraine_storage_prod"


def test_airflow_connection_with_login_and_password_is_a_client() -> None:
    extra = {"token_uri": "https://idp/t", "scope": "all", "client_auth": "basic", "other": 1}
    connection = Connection(login="me", password="hunter2", extra_dejson=extra)
    assert auth_of(connection, CatalogAuthSettings()) == CatalogAuthSettings(
        kind="oauth2",
        client_id="me",
        client_secret="hunter2",
        token_uri="https://idp/t",
        scope="all",
        client_auth="basic",
    )


def test_airflow_connection_with_only_a_password_is_a_token() -> None:
    found = auth_of(Connection(password="hunter2"), CatalogAuthSettings())
    assert found == CatalogAuthSettings(kind="bearer", token="hunter2")


def test_airflow_connection_password_is_the_secret_of_the_client_in_the_settings() -> None:
    settings = CatalogAuthSettings(kind="oauth2", client_id="me", scope="all")
    found = auth_of(Connection(password="hunter2"), settings)
    assert found == CatalogAuthSettings(
        kind="oauth2", client_id="me", client_secret="hunter2", scope="all"
    )


def test_airflow_connection_login_alone_is_a_client_with_a_key_or_a_certificate() -> None:
    extra = {"client_auth": "private_key_jwt", "private_key": "/k.pem", "key_id": "k1"}
    found = auth_of(Connection(login="me", extra_dejson=extra), CatalogAuthSettings())
    assert found == CatalogAuthSettings(
        kind="oauth2",
        client_id="me",
        client_auth="private_key_jwt",
        private_key=Path("/k.pem"),
        key_id="k1",
    )
    settings = CatalogAuthSettings(kind="oauth2", client_id="it", client_auth="tls_client_auth")
    assert auth_of(Connection(login="me"), settings).client_id == "me"


def test_airflow_connection_without_a_password_changes_no_principal() -> None:
    settings = CatalogAuthSettings(kind="bearer", token="t")
    assert auth_of(Connection(host="somewhere"), settings) == settings


def test_airflow_connection_with_invalid_extras_is_an_error_without_its_secrets() -> None:
    wrong = Connection(login="me", password="hunter2", extra_dejson={"client_auth": "card"})
    with pytest.raises(ValidationError, match="client_auth") as caught:
        auth_of(wrong, CatalogAuthSettings())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("connection", "properties"),
    [
        (
            Connection(
                "aws",
                "AK",
                "hunter2",
                extra_dejson={
                    "aws_session_token": "hunter3",
                    "region_name": "eu-1",
                    "endpoint_url": "http://s3",
                    "path_style": True,
                },
            ),
            {
                "s3.access-key-id": "AK",
                "s3.secret-access-key": "hunter2",
                "s3.session-token": "hunter3",
                "client.region": "eu-1",
                "s3.endpoint": "http://s3",
                "s3.path-style-access": "true",
            },
        ),
        (
            # As Airflow's own S3 hook has them.
            Connection(
                "aws",
                extra_dejson={
                    "service_config": {"s3": {"endpoint_url": "http://s3"}},
                    "config_kwargs": {"s3": {"addressing_style": "path"}},
                },
            ),
            {"s3.endpoint": "http://s3", "s3.path-style-access": "true"},
        ),
        (
            Connection("aws", "AK", "hunter2", extra_dejson={"path_style": "False"}),
            {
                "s3.access-key-id": "AK",
                "s3.secret-access-key": "hunter2",
                "s3.path-style-access": "false",
            },
        ),
        (
            Connection("google_cloud_platform", extra_dejson={"token": "t", "project": "p"}),
            {"gcs.oauth2.token": "t", "gcs.project-id": "p"},
        ),
        (
            Connection("google_cloud_platform", extra_dejson={"keyfile_dict": {"type": "x"}}),
            {"gcs.service-account.key": json.dumps({"type": "x"})},
        ),
        (
            Connection("wasb", "account", "hunter2"),
            {
                "adls.auth.shared-key.account.name": "account",
                "adls.auth.shared-key.account.key": "hunter2",
            },
        ),
        (
            Connection(
                "adls",
                host="https://account.blob.core.windows.net",
                extra_dejson={"sas_token": "?sv=1&sig=x"},
            ),
            {"adls.sas-token.account.dfs.core.windows.net": "sv=1&sig=x"},
        ),
    ],
)
def test_airflow_connection_has_storage_properties(
    connection: Connection, properties: dict[str, str]
) -> None:
    assert storage_properties_of(connection) == properties


def test_airflow_connection_key_file_is_read_where_the_connection_is(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    connection = Connection("google_cloud_platform", extra_dejson={"key_path": str(file)})
    with pytest.raises(CatalogNotConfigured, match=r"key\.json of the Airflow connection"):
        storage_properties_of(connection)
    file.write_text('{"type": "x"}')
    assert storage_properties_of(connection) == {"gcs.service-account.key": '{"type": "x"}'}


@pytest.mark.parametrize("kind", ["postgres", "", None])
def test_airflow_connection_of_another_kind_is_refused(kind: str | None) -> None:
    with pytest.raises(CatalogNotConfigured, match=r"moraine_storage_prod.*one of aws, google"):
        storage_properties_of(Connection(kind, "me", "hunter2"))


def test_airflow_connection_comes_before_settings() -> None:
    settings = CatalogSettings(
        uri="http://c",
        auth=CatalogAuthSettings(kind="bearer", token="old"),
        storage={"s3.endpoint": "http://s3", "s3.secret-access-key": "old"},
    )
    assert with_connections(settings, None, None) == settings
    found = with_connections(settings, Connection(password="new"), Connection("aws", "AK", "new"))
    assert found.auth.token.get_secret_value() == "new"
    assert found.storage_properties == {
        "s3.endpoint": "http://s3",
        "s3.access-key-id": "AK",
        "s3.secret-access-key": "new",
    }
    assert "new" not in repr(found)
