"""Nessie vends keys of the store's STS, and the store enforces their policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import requests
from botocore.exceptions import ClientError

from support.nessie import Nessie
from support.rest_client import RestClient
from support.s3_catalog import add_catalog, write_table
from support.s3_client import code_of, delete, open_client
from support.seaweedfs import SeaweedFS
from support.stores import BUCKET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def client(nessie: Nessie) -> RestClient:
    config = requests.get(f"{nessie.url}/v1/config", timeout=20).json()
    prefix = {**config["defaults"], **config["overrides"]}["prefix"]
    return RestClient(nessie.url, prefix)


@pytest.fixture(scope="module", autouse=True)
def _tables(spark: SparkSession, nessie: Nessie) -> None:
    add_catalog(spark, "nessie", nessie.url, nessie.spark_properties())
    write_table(spark, "nessie.shop.orders", snapshots=1, **{"gc.enabled": "true"})
    write_table(spark, "nessie.shop.others", snapshots=1)


def keys_below(store: SeaweedFS, location: str) -> set[str]:
    return store.keys_in(BUCKET, location.removeprefix(f"s3://{BUCKET}/") + "/")


def test_nessie_vends_keys_that_delete_the_table_and_nothing_else(
    client: RestClient, seaweedfs: SeaweedFS
) -> None:
    loaded = client.loaded("shop", "orders")
    other = client.loaded("shop", "others")
    config = loaded["config"]
    assert config["s3.access-key-id"] != seaweedfs.access_key
    assert config["s3.session-token"]
    keys = open_client(config)
    mine = keys_below(seaweedfs, loaded["metadata"]["location"])
    foreign = keys_below(seaweedfs, other["metadata"]["location"])
    assert len(mine) == len(foreign) >= 7

    for key in mine:
        keys.get_object(Bucket=BUCKET, Key=key)
    with pytest.raises(ClientError) as refused:
        keys.get_object(Bucket=BUCKET, Key=min(foreign))
    assert code_of(refused.value) == (403, "AccessDenied")

    assert delete(keys, BUCKET, *mine, *foreign) == dict.fromkeys(foreign, "AccessDenied")
    assert keys_below(seaweedfs, loaded["metadata"]["location"]) == set()
    assert keys_below(seaweedfs, other["metadata"]["location"]) == foreign


def test_nessie_differs_from_other_catalogs(client: RestClient, seaweedfs: SeaweedFS) -> None:
    loaded = client.loaded("shop", "others")
    assert "storage-credentials" not in loaded
    assert "s3.session-token-expires-at-ms" not in loaded["config"]
    metadata = loaded["metadata"]
    assert metadata["location"].startswith(f"s3://{BUCKET}/nessie/shop/others_")
    assert metadata["properties"]["gc.enabled"] == "false"
    assert client.loaded("shop", "orders")["metadata"]["properties"]["gc.enabled"] == "true"
    files = keys_below(seaweedfs, metadata["location"])
    assert sum(key.endswith(".metadata.json") for key in files) == 3
    assert metadata["metadata-log"] == []
