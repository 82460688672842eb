"""What cannot be written yet says why, and holds up nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psycopg

from moraine.ingest.model import Arrival
from moraine.ingest.staging import measure
from moraine.ingest.store import WRITER, DoorStore
from moraine.ingest.tables.service import IngestTables
from moraine.ledger.pools import open_async_pool
from support.gateway import Way
from support.ingest import CALLER, CATALOG, DATABASE, Door, IngestSite, ndjson, new_key, new_table
from support.keyed_catalog import answers, error
from support.waiting import wait_for


def test_the_caller_gets_the_failure_of_the_writer(site: IngestSite) -> None:
    table, key = new_table(), new_key()
    rows = [{"message": "a row of the caller"}]
    with site.api(rest__wait="1s") as door, site.writer():
        _write(door, table)
        snapshot = site.tables().load(DATABASE, table).current_snapshot()
        assert snapshot is not None
        lost = Path(snapshot.manifest_list.removeprefix("file:"))
        kept = lost.rename(lost.with_suffix(".away"))  # as after a mistake of a cleaner

        refusal = wait_for(
            lambda: _refusal(door, table, rows, key, "write_failing"), "not reported", 60
        )
        assert "storage" in refusal["message"]
        status = _status(door, key)
        assert status["state"] in ("staged", "writing")
        assert status["failures"] >= 1
        assert status["error"]["code"] == "storage_failed"
        assert str(lost) not in str(status) + refusal["message"]
        _write(door, new_table())  # which the other does not hold up

        kept.rename(lost)
        wait_for(lambda: _status(door, key)["state"] == "applied" or None, "not written", 60)
        assert _status(door, key)["error"] is None
    assert site.count_rows(table) == 2


def test_a_catalog_that_refuses_is_reported_in_our_own_words(site: IngestSite) -> None:
    table, key = new_table(), new_key()
    site.tables().create(DATABASE, table)
    settings = site.settings().catalog(CATALOG)
    rows = [{"message": "m"}]
    with Way(site.stack.catalog.url) as way, site.api(rest__wait="1s") as door:
        behind = IngestTables(CATALOG, settings.model_copy(update={"uri": way.url}))
        with site.writer(behind):
            way.break_reads_with(*[answers(error(403, kind="a secret of the catalog"))] * 1000)
            refusal = wait_for(
                lambda: _refusal(door, table, rows, key, "write_failing"), "not reported", 60
            )
            status = _status(door, key)
            assert status["error"]["code"] == "catalog_refused"
            assert "secret" not in str(status) + refusal["message"]
            way.heal()
            wait_for(lambda: _status(door, key)["state"] == "applied" or None, "not written", 60)


def test_a_writer_that_is_only_busy_is_not_called_away(site: IngestSite) -> None:
    table, key = new_table(), new_key()
    with (
        site.api(rest__wait="0.1s") as door,
        psycopg.connect(site.ledger_url, application_name=WRITER),
    ):
        answer = door.send(table, [{"message": "m"}], key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "request_in_progress")
    with site.writer():
        site.await_empty_queue()


def test_acknowledged_records_wait_until_the_table_is_repaired(site: IngestSite) -> None:
    """Their sender is gone by now: nothing but the table can change."""
    table, key = new_table(), new_key()
    loaded = site.tables().create(DATABASE, table)
    with loaded.transaction() as transaction:
        transaction.set_properties({"write.format.default": "orc"})
    asyncio.run(_hand_in(site, table, key, "otlp"))
    with site.api(rest__wait="1s") as door, site.writer():
        rows, other = [{"message": "from a sender that waits"}], new_key()
        wait_for(lambda: _refusal(door, table, rows, other, "table_unsupported"), "not refused", 60)
        wait_for(lambda: _status(door, key)["failures"] or None, "it did not fail")
        assert _status(door, key)["error"]["code"] == "table_unsupported"
        loaded = site.tables().load(DATABASE, table)
        with loaded.transaction() as transaction:
            transaction.remove_properties("write.format.default")
        wait_for(lambda: _status(door, key)["state"] == "applied" or None, "not written", 60)


def _write(door: Door, table: str) -> None:
    """Whatever the first Spark job takes."""
    key = new_key()
    rows = [{"message": "m"}]
    wait_for(lambda: door.send(table, rows, key).status_code == 200 or None, "not written", 120)


def _refusal(door: Door, table: str, rows: Any, key: str, code: str) -> dict[str, Any] | None:
    error = door.send(table, rows, key).json()["error"]
    return error if error["code"] == code else None


def _status(door: Door, key: str) -> dict[str, Any]:
    return dict(door.call("GET", f"/v1/requests/{key}").json())


async def _hand_in(site: IngestSite, table: str, key: str, through: str) -> None:
    arrival = Arrival(key, through, DATABASE, table, False, False, CALLER, key)
    async with open_async_pool(site.ledger_url, size=1) as pool:
        body = measure(ndjson([{"message": "m"}]))
        assert isinstance(await DoorStore(pool).reserve(arrival, body), int)
