"""Spark writes real tables on the store; and its server hides secrets and knows failpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import requests

from moraine.local.stack import Stack
from support.fault_proxy import FaultProxy
from support.rest_client import RestClient
from support.s3_catalog import add_catalog, write_table
from support.seaweedfs import SeaweedFS
from support.stores import BUCKET, new_name
from support.vending import VendingCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_on_s3_puts_a_table_in_the_bucket(
    spark: SparkSession, lake: str, s3_catalog: str, seaweedfs: SeaweedFS
) -> None:
    name = new_name()
    write_table(spark, f"{lake}.shop.{name}", snapshots=2, files_each=3)
    loaded = RestClient(s3_catalog).loaded("shop", name)
    assert loaded["metadata"]["location"] == f"s3://{BUCKET}/warehouse/shop/{name}"
    keys = seaweedfs.keys_in(BUCKET, f"warehouse/shop/{name}/")
    assert loaded["metadata-location"].removeprefix(f"s3://{BUCKET}/") in keys
    data = {key for key in keys if "/data/" in key}
    assert len(data) == 7  # two appends of three files, and one of deleted positions
    assert sum("-deletes" in key for key in data) == 1
    assert sum(key.endswith(".metadata.json") for key in keys) == 4
    assert spark.table(f"{lake}.shop.{name}").count() == 199


def test_spark_on_s3_writes_with_vended_keys(
    spark: SparkSession,
    vending_catalog: VendingCatalog,
    fault_proxy: FaultProxy,
    seaweedfs: SeaweedFS,
) -> None:
    name = new_name()
    add_catalog(spark, "vended", vending_catalog.url, vending_catalog.spark_properties())
    write_table(spark, f"vended.shop.{name}")
    assert spark.table(f"vended.shop.{name}").count() == 199
    assert seaweedfs.keys_in(BUCKET, f"warehouse/shop/{name}/data/")
    writers = fault_proxy.access_keys("PutObject")
    assert writers
    assert set(writers) <= {vend.access_key for vend in vending_catalog.vends}


def test_spark_on_s3_server_shows_no_secret_of_a_catalog(
    spark: SparkSession, spark_stack: Stack
) -> None:
    settings = {
        "credential": "id:hidden-1",
        "s3.secret-access-key": "hidden-2",
        "token": "hidden-3",
    }
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.redacted.{key}", value)
    shown = {row.key: row.value for row in spark.sql("SET").collect()}
    for key in settings:
        assert "redacted" in shown[f"spark.sql.catalog.redacted.{key}"]
    assert "hidden" not in str(shown)
    assert spark.conf.get("spark.sql.catalog.redacted.credential") == "id:hidden-1"
    ui = f"http://127.0.0.1:{spark_stack.settings.ports.spark_ui}"
    assert "redaction.regex" in requests.get(f"{ui}/environment/", timeout=30).text


def test_spark_on_s3_python_workers_know_the_failpoints_and_nothing_else(
    spark: SparkSession, spark_stack: Stack
) -> None:
    names = ["MORAINE_FAILPOINTS", "NOT_FOR_SPARK", "MORAINE_LEDGER__URL"]

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            found = [os.environ.get(name, "") for name in names]
            yield pa.RecordBatch.from_pydict({"value": found})

    rows = spark.range(1).mapInArrow(look, "value string").collect()
    assert [row.value for row in rows] == [str(spark_stack.home / "failpoints"), "", ""]
