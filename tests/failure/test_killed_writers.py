"""kill -9 of the writer of ingest, and of the API, at every point where something could be lost."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import requests

from support.ingest import Door, IngestSite, free_port, ndjson, new_key, new_table, running_site
from support.platform import wait_for
from support.processes import await_answer, running

POINTS = ["ingest.written", "ingest.committed", "ingest.before_finalize"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestSite]:
    with running_site(tmp_path_factory.mktemp("ingest")) as site:
        yield site


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


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("point", POINTS)
def test_a_writer_that_is_killed_neither_loses_nor_doubles(
    site: IngestSite, door: Door, point: str, size: str
) -> None:
    table, key = new_table(), new_key()
    rows = 20 if size == "small" else 3000
    with site.writer():
        first = door.send(table, rows_of("first", 5))
        assert first.status_code == 200, first.text
    site.failpoints.kill_at(point)
    with ThreadPoolExecutor(1) as pool:
        answer: Future[requests.Response]
        with site.writer_process() as writer:
            answer = pool.submit(door.send, table, rows_of(key, rows), key)
            assert writer.wait(60) == -9
        with site.writer_process():
            response = answer.result(60)

    assert response.status_code == 200, response.text
    assert response.json()["rows_ingested"] == rows
    assert response.json()["replayed"] is False
    found = site.select(
        f"SELECT count(*) AS n, count(DISTINCT place) AS places FROM {{db}}.{table} "
        f"WHERE message = '{key}'"
    )
    assert found == [{"n": rows, "places": rows}]
    with site.writer():  # what was left behind goes with the next commit
        assert door.send(table, rows_of("last", 5)).status_code == 200
        wait_for(
            lambda: site.data_files(table) == site.committed_files(table) or None,
            "files are left that the table does not have",
        )
    assert site.rows("SELECT * FROM ingest_batches") == []


def test_a_held_writer_that_comes_back_late_changes_nothing(site: IngestSite, door: Door) -> None:
    """It stands right before its commit while another takes its work over."""
    table, key = new_table(), new_key()
    with site.writer():
        door.send(table, rows_of("first", 5))
    site.failpoints.hold_at("ingest.written")
    with ThreadPoolExecutor(1) as pool, site.writer_process() as late:
        answer = pool.submit(door.send, table, rows_of(key, 10), key)
        site.failpoints.wait_until_hit("ingest.written")
        late.send_signal(19)  # SIGSTOP: its heart does not beat either
        with site.writer_process():
            response = answer.result(60)
            assert response.status_code == 200, response.text
            site.failpoints.release("ingest.written")
            late.send_signal(18)
            time.sleep(3)
    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table} WHERE message = '{key}'") == [
        {"n": 10}
    ]


class ApiProcess:
    """The API in a process of its own, at one port however often it is started."""

    def __init__(self, site: IngestSite) -> None:
        self._site = site
        self._port = free_port()
        self._log = site.folder / "api.log"
        self.door = Door(f"http://127.0.0.1:{self._port}", site.issuer.token())

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        main = "from moraine.cli import main; main()"
        argv = [sys.executable, "-c", main, "api", "--port", str(self._port)]
        environment = self._site.environment()
        with running(argv, self._site.folder, environment, self._log) as process:
            await_answer(f"{self.door.url}/v1/x", process, self._log, 60, lambda _: True)
            yield process


@pytest.mark.parametrize("point", ["ingest.reserved", "ingest.staged"])
def test_an_api_process_that_is_killed_neither_loses_nor_doubles(
    site: IngestSite, door: Door, point: str
) -> None:
    table, key = new_table(), new_key()
    body = ndjson(rows_of(key, 3000))
    api = ApiProcess(site)
    site.failpoints.kill_at(point)
    with api.running() as process, site.writer():
        with pytest.raises(requests.ConnectionError):
            api.door.send(table, body, key)
        assert process.wait(10) == -9
        if point == "ingest.staged":  # it was kept, so it is written, though nobody waits for it
            wait_for(
                lambda: site.rows(
                    "SELECT 1 FROM ingest_ledger WHERE key = %s AND state = 'applied'", key
                ),
                "what was staged is not written",
            )
        site.rows_changed(
            "UPDATE ingest_ledger SET lease_expires_at = now() WHERE key = %s", key
        )  # a minute later
        with api.running():
            response = api.door.send(table, body, key)
    assert response.status_code == 200, response.text
    assert response.json()["replayed"] is (point == "ingest.staged")
    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table}") == [{"n": 3000}]


def test_under_load_from_many_clients_with_kills_every_row_is_there_once(
    site: IngestSite, door: Door
) -> None:
    """Writers are killed at changing points, again and again, while clients send and retry."""
    table = new_table()
    clients, requests_each = 8, 6
    done = threading.Event()

    def client(number: int) -> list[str]:
        keys = []
        for turn in range(requests_each):
            key = f"{table}-{number}-{turn}"
            bad = turn == 3
            body = ndjson(rows_of(key, 10 if turn % 2 else 1200))
            if bad:
                body += b'{"message": 5}\n'
            while True:
                response = door.send(table, body, key)
                if response.status_code == (400 if bad else 200):
                    break
                assert response.status_code in (409, 503), response.text
            if not bad:
                keys.append(key)
        return keys

    def kill_writers() -> int:
        kills = 0
        while not done.is_set():
            site.failpoints.kill_at(POINTS[kills % len(POINTS)])
            with site.writer_process() as writer:
                while not done.is_set() and writer.poll() is None:
                    time.sleep(0.05)
                kills += writer.poll() == -9
        return kills

    with ThreadPoolExecutor(clients + 1) as pool:
        killer = pool.submit(kill_writers)
        acknowledged = [key for keys in pool.map(client, range(clients)) for key in keys]
        done.set()
        kills = killer.result()
    site.failpoints.clear()

    assert kills >= 3
    found = site.select(
        f"SELECT message, count(*) AS n, count(DISTINCT place) AS places FROM {{db}}.{table} "
        "GROUP BY message"
    )
    counted = {row["message"]: (row["n"], row["places"]) for row in found}
    expected = {
        key: (1200, 1200) if int(key.rsplit("-", 1)[1]) % 2 == 0 else (10, 10)
        for key in acknowledged
    }
    assert counted == expected
    assert len(acknowledged) == clients * (requests_each - 1)


def test_keys_are_swept_after_their_time(site: IngestSite, door: Door) -> None:
    from moraine import runtime

    table, key = new_table(), new_key()
    with site.writer():
        door.send(table, rows_of(key, 2), key)
    (row,) = site.rows("SELECT applied_at, expires_at FROM ingest_ledger WHERE key = %s", key)
    assert (row["expires_at"] - row["applied_at"]).total_seconds() == 24 * 3600
    site.rows_changed(
        "UPDATE ingest_ledger SET expires_at = now() - interval '59 min' WHERE key = %s", key
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in site.environment().items():
            patch.setenv(name, value)
        runtime.get_settings.cache_clear()
        assert runtime.forget_ingested_keys(site.ledger_url) == 0
        assert door.call("GET", f"/v1/requests/{key}").status_code == 404
        site.rows_changed(
            "UPDATE ingest_ledger SET expires_at = now() - interval '61 min' WHERE key = %s", key
        )
        assert runtime.forget_ingested_keys(site.ledger_url) == 1
    runtime.get_settings.cache_clear()
    with site.writer():  # outside its time the key is a new one
        assert door.send(table, rows_of(key, 2), key).json()["replayed"] is False
    assert site.select(f"SELECT count(*) AS n FROM {{db}}.{table}") == [{"n": 4}]
