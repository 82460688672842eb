"""Ingest into tables on S3: with keys of its own, and with keys that the catalog vends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from moraine.ingest.batches import BatchWriter
from moraine.ingest.ledger import WriterLedger
from moraine.ingest.staging import measure
from moraine.ingest.tables import IngestTables
from moraine.ingest.writer import Writer
from moraine.settings import CatalogAuthSettings, CatalogSettings
from moraine.settings.ingest import IngestSettings
from moraine.tasks.store import open_pool
from support.ingest import ndjson, new_key, new_table
from support.seaweedfs import SeaweedFS
from support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def writing(tables: IngestTables, spark: SparkSession, url: str) -> Iterator[None]:
    settings = IngestSettings()
    with open_pool(url, size=8) as pool:
        ledger = WriterLedger(pool, "test", lease=settings.writer.lease, lifetime=settings.lifetime)
        batches = BatchWriter(settings, ledger, tables, lambda: spark)
        writer = Writer(settings.writer, ledger, batches, url)
        thread = threading.Thread(target=writer.run, args=[600.0])
        thread.start()
        try:
            yield
        finally:
            writer.stop()
            thread.join(60)


def hand_in(url: str, table: str, key: str, body: bytes) -> None:
    import asyncio

    from moraine.idempotency.store import open_async_pool
    from moraine.ingest.ledger import DoorLedger
    from moraine.ingest.model import Arrival

    async def run() -> None:
        async with open_async_pool(url, size=1) as pool:
            arrival = Arrival(key, "rest", "drops", table, True, True)
            assert isinstance(await DoorLedger(pool).reserve(arrival, measure(body)), int)

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["own keys", "vended keys"])
def test_rows_are_written_to_s3(
    request: pytest.FixtureRequest,
    kind: str,
    ledger_url: str,
    seaweedfs: SeaweedFS,
    s3_catalog: str,
    spark: SparkSession,
    lake: str,
) -> None:
    if kind == "own keys":
        storage = {name: SecretStr(value) for name, value in seaweedfs.properties().items()}
        tables = IngestTables("lake", CatalogSettings(uri=s3_catalog, storage=storage))
    else:
        vending = request.getfixturevalue("vending_catalog")
        auth = CatalogAuthSettings(
            kind="oauth2",
            client_id=vending.client_id,
            client_secret=SecretStr(vending.client_secret),
        )
        tables = IngestTables("lake", CatalogSettings(uri=vending.url, auth=auth))
    table = new_table()
    keys = [new_key() for _ in range(3)]
    import psycopg

    with writing(tables, spark, ledger_url):
        for key in keys:
            hand_in(ledger_url, table, key, ndjson([{"message": key, "colour": "red"}] * 5))

        def settled() -> bool:
            with psycopg.connect(ledger_url) as connection:
                states = connection.execute("SELECT state FROM ingest_ledger").fetchall()
            return all(state == "applied" for (state,) in states)

        wait_for(lambda: settled() or None, "not all is applied")
    rows = spark.sql(f"SELECT message, colour FROM {lake}.drops.{table}").collect()
    assert sorted(row.message for row in rows) == sorted(keys * 5)
    assert tables.load("drops", table).scan().to_arrow().num_rows == 15
