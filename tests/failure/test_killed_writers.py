"""kill -9 of the writer of ingest, and of the API, at every point where something could be lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from support.ingest import (
    DATABASE,
    ApiProcess,
    Door,
    IngestSite,
    ndjson,
    new_key,
    new_table,
)
from support.waiting import PATIENCE, wait_for

POINTS = ["ingest.written", "ingest.committed", "ingest.before_finalize"]


@pytest.fixture(scope="module")
def site(ingest_site: IngestSite) -> IngestSite:
    return ingest_site


@pytest.fixture(scope="module")
def running_door(site: IngestSite) -> Iterator[Door]:
    with site.api() as door:
        yield door


@pytest.fixture
def door(site: IngestSite, running_door: Door) -> Iterator[Door]:
    yield running_door
    site.failpoints.clear()


def rows_of(key: str, rows: int) -> list[dict[str, str]]:
    return [{"message": key, "place": str(place)} for place in range(rows)]


def send_until_settled(
    door: Door, table: str, rows: list[dict[str, str]], key: str
) -> list[requests.Response]:
    """The answers to a caller that asks again with the same key until its rows are written."""
    answers: list[requests.Response] = []

    def is_settled() -> bool:
        answers.append(door.send(table, rows, key))
        return answers[-1].status_code not in (409, 503)

    wait_for(is_settled, "it is never settled")
    return answers


@pytest.mark.parametrize(("point", "size"), [(POINTS[0], "large"), *((p, "small") for p in POINTS)])
def test_writer_that_is_killed_neither_loses_nor_doubles(
    site: IngestSite, door: Door, point: str, size: str
) -> None:
    table, key = new_table(), new_key()
    rows = 20 if size == "small" else 3000
    with site.writer():
        first = send_until_settled(door, table, rows_of("first", 5), new_key())[-1]
        assert first.status_code == 200, first.text
    site.failpoints.kill_at(point)
    with ThreadPoolExecutor(1) as pool:
        with site.writer_process() as writer:
            sending = pool.submit(send_until_settled, door, table, rows_of(key, rows), key)
            assert writer.wait(PATIENCE) == -9
        with site.writer_process():
            *earlier, response = sending.result(PATIENCE)

    assert response.status_code == 200, response.text
    assert response.json()["rows_ingested"] == rows
    assert earlier or response.json()["replayed"] is False
    found = site.select(
        f"SELECT count(*) AS n, count(DISTINCT place) AS places FROM {{db}}.{table} "
        f"WHERE message = '{key}'"
    )
    assert found == [{"n": rows, "places": rows}]
    with site.writer():  # what was left behind goes with the next commit
        last = send_until_settled(door, table, rows_of("last", 5), new_key())[-1]
        assert last.status_code == 200, last.text
        wait_for(
            lambda: site.data_files(table) == site.committed_files(table) or None,
            "files are left that the table does not have",
        )
    assert site.rows("SELECT * FROM ingest_batches WHERE table_name = %s", table) == []


def test_writer_that_is_killed_in_an_expiry_leaves_a_whole_table(
    site: IngestSite, door: Door
) -> None:
    """The old snapshots are out of the table, and their files are still there."""
    table = new_table()
    with site.writer():
        for place in range(3):
            door.write(table, rows_of(f"before {place}", 1))
    site.failpoints.kill_at("ingest.expired")
    with site.writer_process(writer__snapshots_kept="2") as writer:
        door.write(table, rows_of("killed", 1))
        assert writer.wait(60) == -9
    assert len(site.tables().load(DATABASE, table).metadata.snapshots) == 2
    with site.writer_process(writer__snapshots_kept="2"):
        door.write(table, rows_of("after", 1))
        wait_for(
            lambda: site.rows("SELECT 1 FROM ingest_batches WHERE table_name = %s", table) == [],
            "the batch of the killed writer is still open",
        )
    assert site.tables().load(DATABASE, table).scan().to_arrow().num_rows == 5


def test_writer_that_is_held_and_comes_back_late_changes_nothing(
    site: IngestSite, door: Door
) -> None:
    """It stands right before its commit while another takes its work over."""
    table, key = new_table(), new_key()
    with site.writer():
        send_until_settled(door, table, rows_of("first", 5), new_key())
    site.failpoints.hold_at("ingest.written")
    with ThreadPoolExecutor(1) as pool, site.writer_process() as late:
        sending = pool.submit(send_until_settled, door, table, rows_of(key, 10), key)
        site.failpoints.wait_until_hit("ingest.written")
        late.send_signal(19)  # SIGSTOP: its heart does not beat either
        with site.writer_process():
            response = sending.result(PATIENCE)[-1]
            assert response.status_code == 200, response.text
            losses = site.logged("ingest.batch.lost")
            site.failpoints.release("ingest.written")
            late.send_signal(18)
            wait_for(
                lambda: site.logged("ingest.batch.lost") > losses,
                "the late writer has not noticed that it was replaced",
            )
    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table} WHERE message = '{key}'") == [
        {"n": 10}
    ]


@pytest.mark.parametrize("point", ["ingest.reserved", "ingest.staged"])
def test_ingest_api_that_is_killed_neither_loses_nor_doubles(
    site: IngestSite, door: Door, point: str
) -> None:
    table, key = new_table(), new_key()
    body = ndjson(rows_of(key, 3000))
    api = ApiProcess(site)
    site.failpoints.kill_at(point)
    with api.running() as process, site.writer():
        with pytest.raises(requests.ConnectionError):
            api.door.send(table, body, key)
        assert process.wait(PATIENCE) == -9
        if (
            point == "ingest.staged"
        ):  # it was stored, so it is written, though no caller waits for it
            wait_for(
                lambda: site.rows(
                    "SELECT 1 FROM ingest_ledger WHERE client_key = %s AND state = 'applied'", key
                ),
                "what was staged is not written",
            )
        site.rows_changed(
            "UPDATE ingest_ledger SET lease_expires_at = now() WHERE client_key = %s", key
        )  # a minute later
        with api.running():
            response = api.door.send(table, body, key)
    assert response.status_code == 200, response.text
    assert response.json()["replayed"] is (point == "ingest.staged")
    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table}") == [{"n": 3000}]


def test_ingest_keys_are_swept_after_their_time(site: IngestSite, door: Door) -> None:
    from moraine.ingest.processes import forget_ingested_keys
    from moraine.settings import get_settings

    table, key = new_table(), new_key()
    with site.writer():
        door.send(table, rows_of(key, 2), key)
    (row,) = site.rows(
        "SELECT applied_at, expires_at FROM ingest_ledger WHERE client_key = %s", key
    )
    assert (row["expires_at"] - row["applied_at"]).total_seconds() == 24 * 3600
    site.rows_changed(
        "UPDATE ingest_ledger SET expires_at = now() - interval '59 min' WHERE client_key = %s", key
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in site.environment().items():
            patch.setenv(name, value)
        get_settings.cache_clear()
        assert forget_ingested_keys(site.ledger_url) == 0
        assert door.call("GET", f"/v1/requests/{key}").status_code == 404
        site.rows_changed(
            "UPDATE ingest_ledger SET expires_at = now() - interval '61 min' WHERE client_key = %s",
            key,
        )
        assert forget_ingested_keys(site.ledger_url) == 1
    get_settings.cache_clear()
    with site.writer():  # outside its time the key is a new one
        assert door.send(table, rows_of(key, 2), key).json()["replayed"] is False
    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table}") == [{"n": 4}]


def test_ingest_without_a_writer_keeps_the_bytes_and_answers_503(site: IngestSite) -> None:
    table, key = new_table(), new_key()
    with site.api(rest__wait="1s") as door:
        refused(door.send(table, [{"message": "m"}], key), "writer_unavailable")
        assert door.call("GET", f"/v1/requests/{key}").json()["state"] == "staged"
        with site.writer():
            assert door.send(table, [{"message": "m"}], key).json()["rows_ingested"] == 1
    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table}") == [{"n": 1}]


def test_ingest_api_without_room_says_so(site: IngestSite) -> None:
    with site.api(rest__wait="0.1s", max_waiting_requests="1") as door:
        key = new_key()
        refused(door.send("full", b"{}\n", key), "writer_unavailable")
        answers: list[requests.Response] = []

        def is_full() -> bool:
            answers.append(door.send("full", b"{}\n"))
            return bool(answers[-1].json()["error"]["code"] == "overloaded")

        wait_for(is_full, "it takes more and more")
        refused(answers[-1], "overloaded")
        assert int(answers[-1].headers["Retry-After"]) > 0
        # What is known already needs no room.
        refused(door.send("full", b"{}\n", key), "writer_unavailable")
    with site.writer():
        site.await_empty_queue()


def refused(response: requests.Response, code: str) -> None:
    assert response.status_code == 503, response.text
    assert response.json()["error"]["code"] == code
