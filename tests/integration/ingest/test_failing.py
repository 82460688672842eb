"""A request on which Spark fails does not hold up others, and is not given up."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from moraine.ingest.model import Arrival, StagedBody
from moraine.ingest.store import DoorStore
from moraine.ledger.pools import open_async_pool
from support.ingest import CALLER, DATABASE, Door, IngestSite, ndjson, new_key, new_table
from support.waiting import wait_for

ROWS = ndjson([{"message": str(number)} for number in range(30)])


def test_a_body_that_cannot_be_read_waits_until_it_can(
    site: IngestSite, door: Door, tmp_path: Path
) -> None:
    table, key = new_table(), new_key()
    site.tables().create(DATABASE, table)
    lost = tmp_path / "lost.ndjson"  # as after a disk of the workspace went away
    assert door.send(table, ndjson([{"message": "one"}])).status_code == 200
    asyncio.run(_stage(site, table, key, lost))
    assert door.send(table, ndjson([{"message": "another"}])).status_code == 200

    failed = wait_for(lambda: _failed_often(site, key), "it was not tried again", 90)
    assert failed["state"] == "staged"
    assert failed["pause"] <= 4 ** (failed["failures"] - 1)
    status = door.call("GET", f"/v1/requests/{key}").json()
    assert (status["state"], status["failures"]) == ("staged", failed["failures"])
    assert door.send(table, ndjson([{"message": "and one more"}])).status_code == 200
    assert site.count_rows(table) == 3

    lost.write_bytes(ROWS)
    site.rows_changed("UPDATE ingest_ledger SET paused_until = now() WHERE key = %s", key)
    wait_for(
        lambda: door.call("GET", f"/v1/requests/{key}").json()["state"] == "applied",
        "it was not written",
        120,  # it may just be failing once more
    )
    assert site.count_rows(table) == 33
    assert not site.data_files(table) - site.committed_files(table)


async def _stage(site: IngestSite, table: str, key: str, location: Path) -> None:
    arrival = Arrival(key, "rest", DATABASE, table, False, False, CALLER, key)
    fingerprint = hashlib.sha256(ROWS).hexdigest()
    body = StagedBody(fingerprint, len(ROWS), ROWS.count(b"\n"), location=str(location))
    async with open_async_pool(site.ledger_url, size=1) as pool:
        assert isinstance(await DoorStore(pool).reserve(arrival, body), int)


def _failed_often(site: IngestSite, key: str) -> dict[str, Any] | None:
    [row] = site.rows(
        "SELECT state, failures, extract(epoch FROM paused_until - now())::float8 AS pause "
        "FROM ingest_ledger WHERE key = %s",
        key,
    )
    return row if row["failures"] >= 3 and row["pause"] else None
