"""Ingest into tables on S3: with keys of its own, and with keys that the catalog vends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from pydantic import SecretStr

from moraine.ingest.staging import measure
from moraine.ingest.store import WriterStore
from moraine.ingest.tables.service import IngestTables
from moraine.ingest.writing.service import BatchWriter
from moraine.ingest.writing.writer import Writer
from moraine.ledger.pools import open_pool
from moraine.settings import CatalogAuthSettings, CatalogSettings
from moraine.settings.ingest import IngestSettings
from support.ingest import ndjson, new_key, new_table
from support.relay import Answer, Scripted
from support.seaweedfs import SeaweedFS
from support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def writing(tables: IngestTables, spark: SparkSession, url: str) -> Iterator[None]:
    settings = IngestSettings()
    with open_pool(url, size=8) as pool:
        ledger = WriterStore(pool, "test", lease=settings.writer.lease, lifetime=settings.lifetime)
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

    from moraine.ingest.model import Arrival
    from moraine.ingest.store import DoorStore
    from moraine.ledger.pools import open_async_pool

    async def run() -> None:
        async with open_async_pool(url, size=1) as pool:
            arrival = Arrival(key, "rest", "drops", table, True, True, "test", key)
            assert isinstance(await DoorStore(pool).reserve(arrival, measure(body)), int)

    asyncio.run(run())


def settled(url: str) -> dict[str, str]:
    """The states by key, once nothing waits any more."""

    def look() -> dict[str, str] | None:
        with psycopg.connect(url) as connection:
            states = dict(connection.execute("SELECT key, state FROM ingest_ledger").fetchall())
        return states if set(states.values()) <= {"applied", "rejected"} else None

    return wait_for(look, "not all is settled")


def own_keys(seaweedfs: SeaweedFS, uri: str) -> IngestTables:
    storage = {name: SecretStr(value) for name, value in seaweedfs.properties().items()}
    return IngestTables("lake", CatalogSettings(uri=uri, storage=storage))


@pytest.mark.parametrize("kind", ["own keys", "vended keys", "own keys, none vended"])
def test_rows_are_written_to_s3(
    request: pytest.FixtureRequest,
    kind: str,
    ledger_url: str,
    seaweedfs: SeaweedFS,
    s3_catalog: str,
    spark: SparkSession,
    lake: str,
) -> None:
    own = {name: SecretStr(value) for name, value in seaweedfs.properties().items()}
    if kind == "own keys":
        tables = own_keys(seaweedfs, s3_catalog)
    else:
        vending = request.getfixturevalue("vending_catalog")
        vending.refuses_to_vend = kind != "vended keys"
        auth = CatalogAuthSettings(
            kind="oauth2",
            client_id=vending.client_id,
            client_secret=SecretStr(vending.client_secret),
        )
        storage = own if vending.refuses_to_vend else {}
        tables = IngestTables("lake", CatalogSettings(uri=vending.url, auth=auth, storage=storage))
    table = new_table()
    keys = [new_key() for _ in range(3)]
    with writing(tables, spark, ledger_url):
        for key in keys:
            hand_in(ledger_url, table, key, ndjson([{"message": key, "colour": "red"}] * 5))
        assert set(settled(ledger_url).values()) == {"applied"}
    rows = spark.sql(f"SELECT message, colour FROM {lake}.drops.{table}").collect()
    assert sorted(row.message for row in rows) == sorted(keys * 5)
    assert tables.load("drops", table).scan().to_arrow().num_rows == 15


def test_a_table_sends_its_rows_to_no_other_endpoint_and_to_no_disk(
    ledger_url: str, seaweedfs: SeaweedFS, s3_catalog: str, spark: SparkSession, tmp_path: Path
) -> None:
    tables = own_keys(seaweedfs, s3_catalog)
    remote, local = new_table(), new_table()
    for table in (remote, local):
        tables.create("drops", table)
    with Scripted(lambda _: Answer(500)) as elsewhere, writing(tables, spark, ledger_url):
        hostile = {"s3.endpoint": elsewhere.url, "s3.proxy-uri": elsewhere.url}
        with tables.load("drops", remote).transaction() as transaction:
            transaction.set_properties(hostile)
        with tables.load("drops", local).transaction() as transaction:
            transaction.set_properties({"write.data.path": tmp_path.as_uri()})
        hand_in(ledger_url, remote, "remote", ndjson([{"message": "m"}]))
        hand_in(ledger_url, local, "local", ndjson([{"message": "m"}]))
        assert settled(ledger_url) == {"remote": "applied", "local": "rejected"}
        assert elsewhere.seen == []
    assert list(tmp_path.iterdir()) == []
    assert tables.load("drops", remote).scan().to_arrow().num_rows == 1
