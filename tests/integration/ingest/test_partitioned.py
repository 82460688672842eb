"""Ingest into tables whose partitions pyiceberg computes with its core."""

from __future__ import annotations

from support.ingest import CATALOG, DATABASE, Door, IngestSite, new_key, new_table
from support.waiting import wait_for


def test_rows_go_to_the_buckets_of_their_table(site: IngestSite, door: Door) -> None:
    table, key = new_table(), new_key()
    name = f"{CATALOG}.{DATABASE}.{table}"
    site.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{DATABASE}")
    site.spark.sql(
        f"CREATE TABLE {name} (message STRING) USING iceberg PARTITIONED BY (bucket(4, message))"
    )
    rows = [{"message": f"m{number}"} for number in range(40)]
    wait_for(lambda: door.send(table, rows, key).status_code == 200, "the rows are not written")
    found = site.select(f"SELECT count(*) AS n, count(DISTINCT message) AS m FROM {{db}}.{table}")
    assert found == [{"n": 40, "m": 40}]
    (partitions,) = site.select(f"SELECT count(*) AS n FROM {{db}}.{table}.partitions")
    assert partitions["n"] == 4
