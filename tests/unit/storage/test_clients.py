"""From Iceberg's properties to the clients that they open: no real store is asked."""

from typing import Any

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from moraine.storage.clients import Client, StorageLimits, Target, aim, open_client
from moraine.storage.files import UnsupportedStorage
from moraine.storage.locations import parse_location
from support.relay import NOWHERE, Answer, Forward, Relay, Request


def opened(location: str, config: dict[str, str]) -> Client:
    aimed = aim(parse_location(location))
    assert aimed is not None
    return open_client(aimed[0], config, StorageLimits(request_timeout=7, connect_timeout=3))


def secret_of(client: Client) -> Any:
    provider = client.credential_provider
    return provider() if provider else None


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)


def test_clients_have_no_retries_of_their_own() -> None:
    for location in ("s3://b/k", "gs://b/k", "abfss://c@a.dfs.core.windows.net/k"):
        client = opened(location, {})
        assert client.retry_config is not None
        assert client.retry_config["max_retries"] == 0
        options: Any = client.client_options
        assert options["timeout"] == "7s"
        assert options["connect_timeout"] == "3s"


def test_s3_keys_come_with_their_own_token_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of another principal")
    config = {"s3.access-key-id": "id", "s3.secret-access-key": "secret", "s3.region": "eu-1"}

    assert secret_of(opened("s3a://b/k", config)) == {
        "access_key_id": "id",
        "secret_access_key": "secret",
        "token": None,
        "expires_at": None,
    }
    with_token = opened("s3://b/k", config | {"s3.session-token": "token"})
    assert secret_of(with_token)["token"] == "token"
    assert with_token.config == {"bucket": "b", "region": "eu-1"}


def test_without_keys_the_environment_decides() -> None:
    assert secret_of(opened("s3://b/k", {"client.region": "eu-1"})) is None
    assert secret_of(opened("gs://b/k", {})) is None
    assert secret_of(opened("abfss://c@a.dfs.core.windows.net/k", {})) is None


@pytest.mark.parametrize(
    ("config", "endpoint", "virtual"),
    [
        ({"s3.endpoint": "http://127.0.0.1:9/"}, "http://127.0.0.1:9", False),
        (
            {"s3.endpoint": "http://127.0.0.1:9", "s3.path-style-access": "false"},
            "http://127.0.0.1:9",
            False,
        ),
        (
            {"s3.endpoint": "https://s3.example.org", "s3.path-style-access": "true"},
            "https://s3.example.org",
            False,
        ),
        (
            {"s3.endpoint": "https://s3.example.org", "s3.path-style-access": "false"},
            "https://b.s3.example.org",
            True,
        ),
        (
            {"s3.endpoint": "https://b.s3.example.org", "s3.path-style-access": "false"},
            "https://b.s3.example.org",
            True,
        ),
    ],
)
def test_s3_endpoints_and_styles(config: dict[str, str], endpoint: str, virtual: bool) -> None:
    client: Any = opened("s3://b/k", config)
    assert client.config["endpoint"] == endpoint
    assert str(client.config["virtual_hosted_style_request"]).lower() == str(virtual).lower()
    assert ("allow_http" in client.client_options) is endpoint.startswith("http:")


@pytest.mark.parametrize(
    ("location", "config", "endpoint", "key"),
    [
        ("s3://b/a//k", {"s3.endpoint": "http://h:9"}, "http://h:9/b/a/", "k"),
        ("s3://b//k", {"s3.endpoint": "http://h:9"}, "http://h:9/b/", "k"),
        ("s3://b/a b%//c/k d", {"s3.endpoint": "http://h:9"}, "http://h:9/b/a%20b%25/", "c/k d"),
        ("s3://b/a//k", {"s3.region": "eu-1"}, "https://s3.eu-1.amazonaws.com/b/a/", "k"),
        (
            "s3://b/a//k",
            {"s3.endpoint": "https://h", "s3.path-style-access": "false"},
            "https://b.h/a/",
            "k",
        ),
    ],
)
def test_keys_with_empty_parts_are_reached_through_their_folder(
    location: str, config: dict[str, str], endpoint: str, key: str
) -> None:
    aimed = aim(parse_location(location))
    assert aimed is not None
    assert aimed[1] == key
    client: Any = open_client(aimed[0], config, StorageLimits())
    assert client.config["endpoint"] == endpoint
    assert str(client.config["disable_bulk_delete"]).lower() == "true"


@pytest.mark.parametrize(
    "location",
    [
        "s3://b/k/",
        "s3://b/a/../k",
        "s3://b/a/./k",
        "s3://b/a//../k",
        "s3://b/..//k",
        "s3://b/a\nb",
        "s3://b/",
        "gs://b/a//k",
        "gs://b//k",
        "abfss://c@a.dfs.core.windows.net/a//k",
    ],
)
def test_keys_that_a_client_would_change_are_not_addressed(location: str) -> None:
    assert aim(parse_location(location)) is None


@pytest.mark.parametrize("key", ["a b", "%20", "a+b#c?d", "ü", ".hidden", "a/.b/c..", "a\u00a0b"])
def test_other_keys_are_addressed_as_they_are(key: str) -> None:
    assert aim(parse_location(f"s3://b/{key}")) == (Target("s3", "b"), key)


def test_gcs_takes_a_token_a_host_or_nothing() -> None:
    client = opened("gs://b/k", {"gcs.oauth2.token": "t", "gcs.service.host": "http://h:9/"})
    assert isinstance(client, GCSStore)
    assert secret_of(client) == {"token": "t", "expires_at": None}
    assert client.config["base_url"] == "http://h:9"


def test_gcs_without_a_login_is_asked_at_once_also_to_delete() -> None:
    class Gcs(Relay):
        seen: list[Request]

        def answer(self, request: Request, forward: Forward) -> Answer:
            self.seen.append(request)
            return Answer(204)

    with Gcs(NOWHERE) as server:
        server.seen = []
        config = {"gcs.service.host": server.url, "gcs.no-auth": "true"}
        client = opened("gs://b/k", config)
        obstore.delete(client, ["k"])
        with pytest.raises(BaseError):  # an empty answer has no size
            obstore.head(client, "k")
    assert [(asked.method, asked.path) for asked in server.seen] == [
        ("DELETE", "/b/k"),
        ("HEAD", "/b/k"),
    ]
    assert [asked.header("Authorization") for asked in server.seen] == ["Bearer ", ""]


ACCOUNT = "abfss://c@acc.dfs.core.windows.net/k"


@pytest.mark.parametrize(
    ("config", "secret"),
    [
        ({"adls.sas-token.acc.dfs.core.windows.net": "?sig=1"}, {"sas_token": "sig=1"}),
        ({"adls.sas-token.acc.blob.core.windows.net": "sig=1"}, {"sas_token": "sig=1"}),
        ({"adls.sas-token.acc": "sig=1"}, {"sas_token": "sig=1"}),
        ({"adls.sas-token": "sig=1"}, {"sas_token": "sig=1"}),
        ({"adls.sas-token.other": "sig=1"}, None),
        (
            {
                "adls.auth.shared-key.account.name": "acc",
                "adls.auth.shared-key.account.key": "a2V5",
            },
            {"access_key": "a2V5"},
        ),
        (
            {"adls.connection-string.acc": "AccountName=acc;AccountKey=a2V5PT0=;X=Y"},
            {"access_key": "a2V5PT0="},
        ),
        (
            {"adls.connection-string.acc": "https://acc.dfs.core.windows.net?sig=1"},
            {"sas_token": "sig=1"},
        ),
        ({"adls.token": "bearer"}, {"token": "bearer"}),
    ],
)
def test_azure_takes_what_catalogs_call_its_secrets(
    config: dict[str, str], secret: dict[str, str] | None
) -> None:
    client = opened(ACCOUNT, config)
    assert isinstance(client, AzureStore)
    assert secret_of(client) == (secret and secret | {"expires_at": None})
    assert client.config["account_name"] == "acc"
    assert client.config["container_name"] == "c"


def test_azure_clouds_and_principals() -> None:
    client: Any = opened(
        "wasbs://c@acc.blob.core.chinacloudapi.cn/k",
        {"adls.tenant-id": "t", "adls.client-id": "i", "adls.client-secret": "s"},
    )
    assert client.config["endpoint"] == "https://acc.blob.core.chinacloudapi.cn"
    assert client.config["client_secret"] == "s"
    named: Any = opened("az://c/k", {"adls.account-name": "acc"})
    assert named.config["account_name"] == "acc"


def test_properties_that_open_nothing_are_named_without_their_values() -> None:
    config = {"adls.connection-string": "AccountKey=hush", "adls.account-key": "hush"}
    with pytest.raises(UnsupportedStorage) as raised:
        opened("az://c/k", config)
    assert "hush" not in str(raised.value)
    assert "adls.account-key" in str(raised.value)


def test_each_kind_of_store_has_its_client() -> None:
    assert isinstance(opened("s3n://b/k", {}), S3Store)
    assert isinstance(opened("gcs://b/k", {}), GCSStore)
    assert isinstance(opened(ACCOUNT, {}), AzureStore)
