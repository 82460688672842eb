"""All four doors at once, while writers, readers and watchers are killed at every point.

It goes on until each of them was killed, and `INGEST_CHAOS_SECONDS=300 pytest
tests/failure/test_ingest_chaos.py` for longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
import requests
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from support.ingest import (
    CATALOG,
    DATABASE,
    ApiProcess,
    IngestSite,
    ndjson,
    new_table,
)
from support.kafka import Broker
from support.kafka_reading import Topic
from support.processes import running
from support.waiting import wait_for

SECONDS = float(os.environ.get("INGEST_CHAOS_SECONDS", "12"))
PATIENCE = 180.0
CLIENTS = 12
"""Of the REST door."""

WRITER_POINTS = ["ingest.written", "ingest.committed", "ingest.before_finalize"]
API_POINTS = ["ingest.reserved", "ingest.staged"]
READER_POINTS = ["kafka.written", "kafka.letters_committed", "kafka.committed"]
WATCHER_POINTS = ["filedrop.hashed", "filedrop.taken", "filedrop.settled"]
ALL_POINTS = [WRITER_POINTS, API_POINTS, READER_POINTS, WATCHER_POINTS]

_WATCHER = """
import asyncio
from moraine.ingest.processes import watch_once
from moraine.settings import get_settings

settings = get_settings()
while True:
    asyncio.run(watch_once(settings.ledger.url.get_secret_value(), settings, lambda _: {}))
"""

# Rows by key: of acknowledged requests, and of those whose caller gave up.
Sent = tuple[dict[str, int], dict[str, int]]
GoesOn = Callable[[], bool]
Start = Callable[[], contextlib.AbstractContextManager[Popen[bytes]]]


@pytest.fixture
def site(ingest_site: IngestSite) -> Iterator[IngestSite]:
    yield ingest_site
    ingest_site.failpoints.clear()


class Chaos:
    """Keeps processes alive that are killed again and again."""

    def __init__(self, site: IngestSite) -> None:
        self._site = site
        self._end = time.monotonic() + SECONDS
        self._over = threading.Event()
        self.kills: Counter[str] = Counter()

    def spared(self) -> list[list[str]]:
        """The points of those processes that were not killed yet."""
        return [points for points in ALL_POINTS if not any(map(self.kills.get, points))]

    def goes_on(self) -> bool:
        """Until every process was killed, however long that takes on a busy machine."""
        overdue = time.monotonic() - self._end
        return overdue < 0 or (overdue < PATIENCE and bool(self.spared()))

    def _may_kill(self, points: list[str]) -> bool:
        """After the end only processes that were not killed yet: they may wait for the others."""
        return time.monotonic() < self._end or (self.goes_on() and points in self.spared())

    def keep(self, start: Start, points: list[str]) -> None:
        turn = 0
        while not self._over.is_set():
            point = points[turn % len(points)]
            with start() as process:
                armed = False
                kill_at = time.monotonic() + 1 + turn % 3 * 4
                while not self._over.is_set() and process.poll() is None:
                    # Not at once: what is killed with every request never answers one.
                    if not armed and kill_at < time.monotonic() and self._may_kill(points):
                        self._site.failpoints.kill_at(point)
                        armed = True
                    time.sleep(0.05)
                if process.poll() == -9:
                    self.kills[point] += 1
                    turn += 1

    def end(self) -> None:
        self._over.set()


@pytest.mark.timeout(SECONDS + 6 * PATIENCE)
def test_ingest_writes_every_acknowledged_row_once(site: IngestSite, broker: Broker) -> None:
    tables = {door: f"{door}_{new_table()}" for door in ("rest", "drop", "kafka")}
    drop = site.folder / "drop"
    (drop / DATABASE / tables["drop"]).mkdir(parents=True)
    broker.create_topic(tables["kafka"], partitions=2)
    topic = Topic(site, broker, tables["kafka"], tables["kafka"])
    logs = f"otel_{new_table()}"
    api = ApiProcess(site, otlp__database=logs)
    chaos = Chaos(site)
    prefix = {"location": str(drop), "settle": "0s"}

    @contextlib.contextmanager
    def watcher() -> Iterator[Popen[bytes]]:
        given = {"filedrop__prefixes": json.dumps({"drop": prefix})}
        log = site.folder / "watcher.log"
        with running(
            [sys.executable, "-c", _WATCHER], site.folder, site.environment(**given), log
        ) as process:
            yield process

    with ThreadPoolExecutor(4 + CLIENTS + 3) as pool:
        kept = [
            pool.submit(chaos.keep, *one)
            for one in (
                (site.writer_process, WRITER_POINTS),
                (api.running, API_POINTS),
                (topic.reader_process, READER_POINTS),
                (watcher, WATCHER_POINTS),
            )
        ]
        try:
            senders = [
                *(
                    pool.submit(_send_over_rest, api, tables["rest"], n, chaos.goes_on)
                    for n in range(CLIENTS)
                ),
                pool.submit(_drop_files, drop / DATABASE / tables["drop"], chaos.goes_on),
                pool.submit(_produce, topic, chaos.goes_on),
                pool.submit(_export, api, chaos.goes_on),
            ]
            sent = [one.result(SECONDS + 2 * PATIENCE) for one in senders]
            site.failpoints.clear()
            for one in kept:
                assert not one.done(), one.exception()
            rest, abandoned = _together(sent[:CLIENTS])
            dropped, produced, exported = sent[CLIENTS:]
            _await_counts(site, tables["drop"], dropped)
            _await_counts(site, tables["kafka"], produced["good"])
            _await_counts(site, tables["rest"], rest, abandoned)
            _await_counts(site, "otel_logs", exported, database=f"{CATALOG}.{logs}", column="body")
        finally:
            chaos.end()
        for one in kept:
            one.result(60)

    letters = [bytes(letter["value"]) for letter in topic.letters()]
    assert sorted(letters) == sorted(produced["bad"])
    assert chaos.spared() == [], chaos.kills
    print(
        f"kills {dict(chaos.kills)}: {len(rest)} REST requests and "
        f"{len(abandoned)} abandoned ones, {len(dropped)} files, "
        f"{sum(produced['good'].values())} messages and "
        f"{len(produced['bad'])} bad ones, {sum(exported.values())} records"
    )


def _await_counts(
    site: IngestSite,
    table: str,
    expected: dict[str, int],
    unsure: dict[str, int] | None = None,
    *,
    database: str = f"{CATALOG}.{DATABASE}",
    column: str = "message",
) -> None:
    """Exactly these rows: as soon as all are there, no more may be.

    Args:
        unsure: what may be there whole, or not at all.
    """

    def count() -> dict[str, int]:
        found = everything()
        for key, rows in (unsure or {}).items():
            assert found.pop(key, rows) == rows, f"{key} is there in part"
        return found

    def everything() -> dict[str, int]:
        if not site.spark.catalog.tableExists(f"{database}.{table}"):
            return {}
        found = site.spark.table(f"{database}.{table}").groupBy(column).count().collect()
        return {row[0]: row[1] for row in found}

    wait_for(
        lambda: sum(count().values()) >= sum(expected.values()) or None,
        lambda: f"{table}: {_difference(count(), expected)}",
        PATIENCE,
        pause=1,
    )
    assert count() == expected, _difference(count(), expected)


def _difference(found: dict[str, int], expected: dict[str, int]) -> list[Any]:
    keys = [key for key in {*found, *expected} if found.get(key) != expected.get(key)]
    return [(key, found.get(key), expected.get(key)) for key in keys[:10]]


def _send_over_rest(api: ApiProcess, table: str, client: int, goes_on: GoesOn) -> Sent:
    """Repeat each request until it is answered, but for some: those are sent only once."""
    acknowledged: dict[str, int] = {}
    abandoned: dict[str, int] = {}
    turn = 0
    while goes_on():
        key, rows = f"{table}-{client}-{turn}", (7, 1500)[turn % 2]
        bad, only_once = turn % 5 == 3, turn % 5 == 2
        body = ndjson([{"message": key, "place": place} for place in range(rows)])
        if bad:
            body += b'{"message": 5}\n'
        settled = False
        while not settled:
            with contextlib.suppress(requests.ConnectionError):
                answer = api.door.send(table, body, key)
                assert answer.status_code in (400 if bad else 200, 409, 503), answer.text
                settled = answer.status_code in (200, 400)
            if only_once:
                break
            time.sleep(0.1)
        if settled and not bad:
            acknowledged[key] = rows
        elif not settled:
            abandoned[key] = rows
        turn += 1
    return acknowledged, abandoned


def _together(sent: list[Sent]) -> Sent:
    acknowledged, abandoned = zip(*sent, strict=True)
    return dict(ChainMap(*acknowledged)), dict(ChainMap(*abandoned))


def _drop_files(folder: Path, goes_on: GoesOn) -> dict[str, int]:
    dropped: dict[str, int] = {}
    turn = 0
    while goes_on():
        name = f"{folder.name}-{turn}"
        body = ndjson([{"message": name, "place": place} for place in range(50)])
        bad = turn % 5 == 3
        if bad:
            body += b'{"message": 5}\n'
        draft = folder / f".{name}"
        draft.write_bytes(body)
        draft.rename(folder / f"{name}.ndjson")
        if not bad:
            dropped[name] = 50
        turn += 1
        time.sleep(0.7)
    return dropped


def _produce(topic: Topic, goes_on: GoesOn) -> dict[str, Any]:
    good: dict[str, int] = {}
    bad: list[bytes] = []
    turn = 0
    while goes_on():
        messages = [json.dumps({"message": f"m{turn}-{n}"}).encode() for n in range(40)]
        broken = f'{{"message": {turn}}}'.encode()
        topic.send(*messages, broken)
        good |= {f"m{turn}-{n}": 1 for n in range(40)}
        bad.append(broken)
        turn += 1
        time.sleep(0.7)
    return {"good": good, "bad": bad}


def _export(api: ApiProcess, goes_on: GoesOn) -> dict[str, int]:
    exported: dict[str, int] = {}
    turn = 0
    while goes_on():
        records = [
            LogRecord(time_unix_nano=time.time_ns(), body=AnyValue(string_value=f"log{turn}-{n}"))
            for n in range(20)
        ]
        request = ExportLogsServiceRequest(
            resource_logs=[ResourceLogs(scope_logs=[ScopeLogs(log_records=records)])]
        )
        while True:
            with contextlib.suppress(requests.ConnectionError):
                answer = requests.post(
                    f"{api.door.url}/v1/logs",
                    data=request.SerializeToString(),
                    headers={
                        "Content-Type": "application/x-protobuf",
                        "Authorization": f"Bearer {api.door.token}",
                    },
                    timeout=30,
                )
                if answer.status_code == 200:
                    break
                assert answer.status_code == 503, answer.text
            time.sleep(0.1)
        exported |= {f"log{turn}-{n}": 1 for n in range(20)}
        turn += 1
        time.sleep(0.3)
    return exported
