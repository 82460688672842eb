"""Commits that conflict, fail, or have an unknown outcome; and the files of lost ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from moraine.errors import LedgerUnavailable
from moraine.ingest.store import WriterStore
from moraine.ingest.tables.service import IngestTables
from support.gateway import Way
from support.ingest import CATALOG, DATABASE, Door, IngestSite, new_key, new_table
from support.keyed_catalog import Fault, answers, error, reset_after, reset_before
from support.waiting import wait_for

TROUBLE: dict[str, list[Fault]] = {
    "a conflict": [answers(error(409, kind="CommitFailedException"))],
    "three conflicts": [answers(error(409, kind="CommitFailedException"))] * 3,
    "a server error before": [answers(error(500))],
    "a server error after": [answers(error(500), executed=True)],
    "a bad gateway after": [answers(error(502), executed=True)],
    "unavailable after": [answers(error(503), executed=True)],
    "a time-out after": [answers(error(504), executed=True)],
    "a reset before": [reset_before],
    "a reset after": [reset_after],
    "one after the other": [answers(error(503)), reset_after],
}


@pytest.fixture(scope="module")
def way(site: IngestSite) -> Iterator[Way]:
    with Way(site.stack.catalog.url) as way:
        yield way


def behind(way: Way, site: IngestSite) -> IngestTables:
    settings = site.settings().catalog(CATALOG)
    return IngestTables(CATALOG, settings.model_copy(update={"uri": way.url}))


@pytest.mark.parametrize("trouble", TROUBLE)
def test_a_commit_in_trouble_is_made_once(
    site: IngestSite, running_door: Door, way: Way, trouble: str
) -> None:
    table, key = new_table(), new_key()
    site.tables().create(DATABASE, table)
    broken = behind(way, site)
    broken.load(DATABASE, table)  # so that its configuration is there
    with site.writer(broken):
        way.break_with(*TROUBLE[trouble])
        answer = running_door.send(table, [{"message": key}] * 7, key)
    assert answer.status_code == 200, answer.text
    assert not way.faults
    way.heal()
    found = site.select(f"SELECT count(*) AS n, count(DISTINCT message) AS m FROM {{db}}.{table}")
    assert found == [{"n": 7, "m": 1}]
    (snapshot,) = site.select(f"SELECT snapshot_id FROM {{db}}.{table}.snapshots")
    assert snapshot["snapshot_id"] == answer.json()["snapshot_id"]
    assert site.data_files(table) == site.committed_files(table)


@pytest.mark.parametrize("point", ["finalize", "count_commit", "lost_files"])
def test_a_ledger_that_is_away_after_the_commit_costs_no_row(
    site: IngestSite, running_door: Door, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The files belong to the table by then, although the ledger does not know it."""
    table, key = new_table(), new_key()
    whole = getattr(WriterStore, point)
    calls = itertools.count()

    def once_away(self: WriterStore, *given: Any) -> Any:
        if next(calls) == 0:
            raise LedgerUnavailable
        return whole(self, *given)

    monkeypatch.setattr(WriterStore, point, once_away)
    with site.writer():
        answer = running_door.send(table, [{"message": key}] * 7, key)
        assert answer.status_code == 200, answer.text
        assert running_door.send(table, [{"message": "next"}]).status_code == 200
    assert next(calls) > 1
    found = site.select(f"SELECT message, count(*) AS n FROM {{db}}.{table} GROUP BY message")
    assert {row["message"]: row["n"] for row in found} == {key: 7, "next": 1}
    assert site.data_files(table) == site.committed_files(table)


def test_writers_on_one_table_get_out_of_each_others_way(
    site: IngestSite, running_door: Door
) -> None:
    table = new_table()
    with site.writer(), site.writer(), ThreadPoolExecutor(12) as pool:
        keys = [new_key() for _ in range(36)]
        answers = list(
            pool.map(lambda key: running_door.send(table, [{"message": key}], key), keys)
        )
    assert {answer.status_code for answer in answers} == {200}
    found = site.select(f"SELECT message FROM {{db}}.{table}")
    assert sorted(row["message"] for row in found) == sorted(keys)


def test_a_catalog_that_is_away_for_a_while_delays_and_loses_nothing(
    site: IngestSite, running_door: Door, way: Way
) -> None:
    table = new_table()
    site.tables().create(DATABASE, table)
    broken = behind(way, site)
    with site.writer(broken), ThreadPoolExecutor(1) as pool:
        way.break_reads_with(*[answers(error(503))] * 4)
        answer = pool.submit(running_door.send, table, [{"message": "m"}])
        assert answer.result(60).status_code == 200
    way.heal()
    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table}") == [{"n": 1}]


def test_files_of_a_lost_batch_stay_until_another_commit(
    site: IngestSite, running_door: Door
) -> None:
    """The writer that lost it may be about to commit them."""
    table = new_table()
    with site.writer():
        running_door.send(table, [{"message": "first"}])
    stray = next(iter(site.data_files(table))).with_name("00000-0-stray.parquet")
    stray.write_bytes(b"not committed")
    batch = "00000000-0000-0000-0000-000000000001"
    site.rows_changed(
        "INSERT INTO ingest_batches (batch, owner, database_name, table_name, lease_expires_at, "
        "files) VALUES (%s, 'gone', %s, %s, now() - interval '1 s', %s::jsonb)",
        batch,
        DATABASE,
        table,
        f'["{_uri(site, table, stray)}"]',
    )
    with site.writer():
        wait_for(
            lambda: site.rows("SELECT 1 FROM ingest_batches WHERE lost AND batch = %s", batch),
            "it is not lost",
        )
        assert stray.exists()
        running_door.send(table, [{"message": "second"}])
        wait_for(lambda: not stray.exists() or None, "the stray file stays")
    assert site.rows("SELECT * FROM ingest_batches WHERE table_name = %s", table) == []


def _uri(site: IngestSite, table: str, file: Path) -> str:
    location: Any = site.tables().load(DATABASE, table).location()
    return f"{location}/data/{file.name}"
