"""The catalog that vends: who may ask, what the keys are good for, and how it can fail."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import requests
from botocore.exceptions import ClientError

from support.fault_proxy import FaultProxy
from support.rest_client import RestClient, ask_for_token
from support.s3_catalog import write_table
from support.s3_client import code_of, delete, open_client
from support.seaweedfs import SeaweedFS
from support.stores import BUCKET
from support.vending import VendingCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "shop.vended_orders"


@pytest.fixture(scope="module", autouse=True)
def _orders(spark: SparkSession, lake: str) -> None:
    """One table with its data elsewhere, for every test here."""
    elsewhere = {"write.data.path": f"s3://{BUCKET}/elsewhere/vended_orders"}
    write_table(spark, f"{lake}.{TABLE}", snapshots=1, **elsewhere)


@pytest.fixture
def client(vending_catalog: VendingCatalog) -> RestClient:
    return RestClient(vending_catalog.url, token=token_of(vending_catalog))


def token_of(catalog: VendingCatalog) -> str:
    answer = ask_for_token(catalog.url, catalog.client_id, catalog.client_secret)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["access_token"])


def load(client: RestClient) -> dict[str, Any]:
    return client.loaded(*TABLE.split("."))


def status_of(client: RestClient) -> int:
    return client.load(*TABLE.split(".")).status_code


class TestTokens:
    def test_vending_catalog_loads_nothing_without_a_token(
        self, vending_catalog: VendingCatalog
    ) -> None:
        assert status_of(RestClient(vending_catalog.url)) == 401
        assert status_of(RestClient(vending_catalog.url, token="guessed")) == 401
        assert requests.get(f"{vending_catalog.url}/v1/config", timeout=5).status_code == 401
        assert vending_catalog.vends == []

    @pytest.mark.parametrize(
        ("changes", "status", "error"),
        [
            ({"client_secret": "guessed"}, 401, "invalid_client"),
            ({"client_id": "other"}, 401, "invalid_client"),
            ({"scope": "other"}, 400, "invalid_scope"),
        ],
    )
    def test_vending_catalog_gives_tokens_only_to_the_principal(
        self, vending_catalog: VendingCatalog, changes: dict[str, str], status: int, error: str
    ) -> None:
        right = {
            "client_id": vending_catalog.client_id,
            "client_secret": vending_catalog.client_secret,
        }
        answer = ask_for_token(vending_catalog.url, **{**right, **changes})
        assert (answer.status_code, answer.json()["error"]) == (status, error)
        assert vending_catalog.tokens_issued == 0

    def test_vending_catalog_tokens_expire(self, vending_catalog: VendingCatalog) -> None:
        vending_catalog.token_seconds = 0.5
        client = RestClient(vending_catalog.url, token=token_of(vending_catalog))
        assert status_of(client) == 200
        time.sleep(0.5)
        assert status_of(client) == 401
        assert status_of(replace(client, token=token_of(vending_catalog))) == 200
        assert vending_catalog.tokens_issued == 2

    def test_vending_catalog_tokens_can_be_revoked(
        self, vending_catalog: VendingCatalog, client: RestClient
    ) -> None:
        vending_catalog.revoke_tokens()
        assert status_of(client) == 401


class TestKeys:
    def test_vending_catalog_keys_are_valid_for_their_prefix_alone(
        self, vending_catalog: VendingCatalog, client: RestClient, seaweedfs: SeaweedFS
    ) -> None:
        loaded = load(client)
        vended = {entry["prefix"]: entry["config"] for entry in loaded["storage-credentials"]}
        home, elsewhere = f"s3://{BUCKET}/warehouse/shop/vended_orders", "elsewhere/vended_orders"
        assert set(vended) == {home, f"s3://{BUCKET}/{elsewhere}"}
        metadata_file = loaded["metadata-location"].removeprefix(f"s3://{BUCKET}/")
        [data_file, *_] = sorted(seaweedfs.keys_in(BUCKET, f"{elsewhere}/"))

        at_home = open_client(vended[home])
        at_home.get_object(Bucket=BUCKET, Key=metadata_file)
        seaweedfs.client().put_object(Bucket=BUCKET, Key=f"{elsewhere}/extra", Body=b"x")
        assert delete(at_home, BUCKET, f"{elsewhere}/extra") == {
            f"{elsewhere}/extra": "AccessDenied"
        }
        with pytest.raises(ClientError) as refused:
            at_home.get_object(Bucket=BUCKET, Key=data_file)
        assert code_of(refused.value) == (403, "AccessDenied")

        away = open_client(vended[f"s3://{BUCKET}/{elsewhere}"])
        away.get_object(Bucket=BUCKET, Key=data_file)
        assert delete(away, BUCKET, f"{elsewhere}/extra") == {}
        assert data_file in seaweedfs.keys_in(BUCKET, f"{elsewhere}/")
        assert f"{elsewhere}/extra" not in seaweedfs.keys_in(BUCKET, f"{elsewhere}/")
        assert vending_catalog.loads == {TABLE: 1}
        assert {vend.prefixes for vend in vending_catalog.vends} == {(p,) for p in vended}

    def test_vending_catalog_keys_in_the_configuration_are_valid_for_all(
        self, vending_catalog: VendingCatalog, client: RestClient, seaweedfs: SeaweedFS
    ) -> None:
        vending_catalog.vends_in = {"config"}
        loaded = load(client)
        assert "storage-credentials" not in loaded
        keys = open_client(loaded["config"])
        keys.get_object(
            Bucket=BUCKET, Key=loaded["metadata-location"].removeprefix(f"s3://{BUCKET}/")
        )
        [data_file, *_] = seaweedfs.keys_in(BUCKET, "elsewhere/vended_orders/")
        keys.get_object(Bucket=BUCKET, Key=data_file)

    def test_vending_catalog_never_shows_the_stores_own_keys(
        self, vending_catalog: VendingCatalog, client: RestClient, seaweedfs: SeaweedFS
    ) -> None:
        headers = {"Authorization": f"Bearer {client.token}"}
        config = requests.get(f"{client.url}/v1/config", headers=headers, timeout=5)
        plain = client.load(*TABLE.split("."), delegated=False)
        vended = client.load(*TABLE.split("."))
        for answer in (config, plain, vended):
            assert answer.status_code == 200
            assert seaweedfs.secret_key not in answer.text
        assert "storage-credentials" not in plain.json()
        assert len(vending_catalog.vends) == 2  # a prefix each, of the last one

    def test_vending_catalog_keys_end_when_they_say(
        self, vending_catalog: VendingCatalog, client: RestClient, fault_proxy: FaultProxy
    ) -> None:
        vending_catalog.credential_seconds = 1.5
        entry = load(client)["storage-credentials"][0]["config"]
        expires_at = int(entry["s3.session-token-expires-at-ms"]) / 1000
        assert 0 < expires_at - time.time() <= 1.5
        keys = open_client(entry)
        listing = {"Bucket": BUCKET, "Prefix": "warehouse/shop/vended_orders/"}
        assert keys.list_objects_v2(**listing)["KeyCount"] > 0
        time.sleep(expires_at - time.time() + 0.01)
        with pytest.raises(ClientError) as refused:
            keys.list_objects_v2(**listing)
        assert code_of(refused.value) == (400, "ExpiredToken")
        renewed = open_client(load(client)["storage-credentials"][0]["config"])
        assert renewed.list_objects_v2(**listing)["KeyCount"] > 0
        assert len(fault_proxy.access_keys()) == 2


class TestTroubles:
    @pytest.mark.parametrize("status", [401, 403, 500])
    def test_vending_catalog_fails_loads_as_often_as_told(
        self, vending_catalog: VendingCatalog, client: RestClient, status: int
    ) -> None:
        vending_catalog.fail("load", status, times=2, after=1)
        assert [status_of(client) for _ in range(4)] == [200, status, status, 200]
        assert vending_catalog.loads == {TABLE: 4}

    def test_vending_catalog_fails_tokens_as_told(self, vending_catalog: VendingCatalog) -> None:
        vending_catalog.fail("token", 500, times=1)
        answer = ask_for_token(
            vending_catalog.url, vending_catalog.client_id, vending_catalog.client_secret
        )
        assert answer.status_code == 500
        assert token_of(vending_catalog)

    def test_vending_catalog_vends_nothing_if_told(
        self, vending_catalog: VendingCatalog, client: RestClient
    ) -> None:
        vending_catalog.vend_nothing()
        loaded = load(client)
        assert "storage-credentials" not in loaded
        assert not [name for name in loaded["config"] if name.startswith("s3.")]

    def test_vending_catalog_hangs_until_healed(
        self, vending_catalog: VendingCatalog, client: RestClient
    ) -> None:
        vending_catalog.hang("load")
        headers = {"Authorization": f"Bearer {client.token}"}
        url = f"{client.url}/v1/namespaces/shop/tables/vended_orders"
        with pytest.raises(requests.ReadTimeout):
            requests.get(url, headers=headers, timeout=0.5)
        vending_catalog.heal()
        assert status_of(client) == 200

    def test_vending_catalog_refuses_connections_and_comes_back(
        self, vending_catalog: VendingCatalog, client: RestClient
    ) -> None:
        with vending_catalog.refusing(), pytest.raises(requests.ConnectionError, match="refused"):
            load(client)
        assert status_of(client) == 200

    def test_vending_catalog_replaces_a_table_by_another(
        self, vending_catalog: VendingCatalog, client: RestClient
    ) -> None:
        first = load(client)
        other = "00000000-0000-4000-8000-000000000001"
        vending_catalog.disguise(TABLE, uuid=other, after=1)
        assert load(client)["metadata"] == first["metadata"]
        assert load(client)["metadata"]["table-uuid"] == other
        vending_catalog.disguise(TABLE, metadata_location="s3://lake/other.metadata.json")
        assert load(client)["metadata-location"] == "s3://lake/other.metadata.json"
        assert load(client)["metadata"]["table-uuid"] == first["metadata"]["table-uuid"]
