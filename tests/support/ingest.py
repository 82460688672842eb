"""Ingest with all it needs: a ledger, a catalog, Spark, the API, and a writer."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import requests
from psycopg.rows import dict_row

from moraine.ingest.rest.app import INGEST_PATH
from moraine.ingest.store import TableStore, WriterStore
from moraine.ingest.tables.service import IngestTables
from moraine.ingest.writing.service import BatchWriter
from moraine.ingest.writing.writer import Writer
from moraine.ledger.pools import open_pool
from moraine.local.stack import Stack
from moraine.settings import Settings
from support.api_server import running_api
from support.issuer import URL as ISSUER
from support.issuer import Issuer
from support.platform import Failpoints
from support.processes import await_answer, running
from support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG, DATABASE = "demo", "lake"
CALLER = f"{ISSUER} polaris"
"""The name of the doors' caller in the ledger."""
_names = itertools.count(1)

Json = dict[str, Any]


@dataclass
class IngestSite:
    stack: Stack
    folder: Path
    failpoints: Failpoints
    issuer: Issuer
    spark: SparkSession

    def environment(self, **changes: str) -> dict[str, str]:
        """Of every process here. `changes` are settings: rest__wait="1s"."""
        jwt = {
            "MORAINE_API__JWT__ISSUER": ISSUER,
            "MORAINE_API__JWT__JWKS_FILE": str(self.issuer.write_key_set(self.folder)),
            "MORAINE_API__ACCEPT_AIRFLOW_TOKENS": "false",
        }
        return {
            **self.stack.environment(),
            **jwt,
            "MORAINE_INGEST__OTLP__GRPC_PORT": "0",
            "MORAINE_WORKSPACE": (self.folder / "workspace").as_uri(),
            "MORAINE_INGEST__WRITER__LEASE": "3s",
            "MORAINE_FAILPOINTS": str(self.failpoints.folder),
            **{f"MORAINE_INGEST__{name.upper()}": value for name, value in changes.items()},
        }

    def settings(self, **changes: str) -> Settings:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.environment(**changes).items():
                if name.startswith("MORAINE_"):
                    patch.setenv(name, value)
            return Settings()

    @property
    def ledger_url(self) -> str:
        return self.stack.environment()["MORAINE_LEDGER__URL"]

    @contextlib.contextmanager
    def api(self, **changes: str) -> Iterator[Door]:
        with running_api(self.settings(**changes)) as origin:
            yield Door(origin, self.issuer.token(scope="ingest:write otlp:write"))

    @contextlib.contextmanager
    def writer(self, tables: IngestTables | None = None, **changes: str) -> Iterator[Writer]:
        """A writer in this process."""
        settings = self.settings(**changes)
        with open_pool(self.ledger_url, size=8) as pool:
            ingest = settings.ingest
            ledger = WriterStore(pool, "test", lease=ingest.writer.lease, lifetime=ingest.lifetime)
            tables = tables or IngestTables(CATALOG, settings.catalog(CATALOG), TableStore(pool))
            batches = BatchWriter(ingest, ledger, tables, lambda: self.spark)
            writer = Writer(ingest.writer, ledger, batches, self.ledger_url)
            thread = threading.Thread(target=writer.run, args=[3600.0], name="writer")
            thread.start()
            try:
                yield writer
            finally:
                writer.stop()
                thread.join(60)
                assert not thread.is_alive()

    @contextlib.contextmanager
    def writer_process(self, **changes: str) -> Iterator[Any]:
        """A writer that can be killed: ended by kill -9, it is started again."""
        script = (
            "from moraine import log\n"
            "from moraine.ingest.processes import write_ingested\n"
            "from moraine.spark.session import connect\n"
            "from moraine.settings import get_settings\n"
            "log.configure()\n"
            f"write_ingested(lambda: connect({self.stack.spark.client_url!r}), "
            "get_settings().ledger.url.get_secret_value())\n"
        )
        log = self.folder / f"writer-{next(_names)}.log"
        argv = [sys.executable, "-c", script]
        with running(argv, self.folder, self.environment(**changes), log) as process:
            wait_for(lambda: "LISTEN" in self._writers() or None, f"no writer; see {log}")
            yield process

    def logged(self, event: str) -> int:
        """How often the processes of writers have said so."""
        return sum(log.read_text().count(event) for log in self.folder.glob("writer-*.log"))

    def _writers(self) -> str:
        query = (
            "SELECT query FROM pg_stat_activity WHERE application_name = 'moraine-writer' "
            "AND datname = current_database()"
        )
        return " ".join(row["query"] for row in self.rows(query))

    def tables(self) -> IngestTables:
        """Which leave no word in the ledger."""
        return IngestTables(CATALOG, self.settings().catalogs[CATALOG])

    @contextlib.contextmanager
    def noted_tables(self, **changes: Any) -> Iterator[IngestTables]:
        """As a writer has them. `changes` are of the catalog's settings."""
        settings = self.settings().catalog(CATALOG).model_copy(update=changes)
        with open_pool(self.ledger_url, size=2) as pool:
            yield IngestTables(CATALOG, settings, TableStore(pool))

    def rows(self, query: str, *parameters: Any) -> list[Json]:
        """What the ledger has."""
        with psycopg.connect(self.ledger_url, row_factory=dict_row) as connection:
            return connection.execute(query, parameters).fetchall()  # type: ignore[arg-type]

    def rows_changed(self, statement: str, *parameters: Any) -> None:
        with psycopg.connect(self.ledger_url) as connection:
            connection.execute(statement, parameters)  # type: ignore[arg-type]

    def select(self, query: str) -> list[Json]:
        """What Spark reads. `{db}` is the database."""
        found = self.spark.sql(query.format(db=f"{CATALOG}.{DATABASE}"))
        return [row.asDict() for row in found.collect()]

    def count_rows(self, table: str) -> int:
        """As the table's newest snapshot says: quicker than a scan."""
        snapshot = self.tables().load(DATABASE, table).current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        return int(snapshot.summary["total-records"] or 0)

    def await_empty_queue(self) -> None:
        waiting = "SELECT 1 FROM ingest_ledger WHERE state IN ('staged', 'writing')"
        wait_for(lambda: not self.rows(waiting) or None, "something still waits")

    def data_files(self, table: str) -> set[Path]:
        return set((self.stack.catalog.warehouse / DATABASE / table).rglob("data/**/*.parquet"))

    def committed_files(self, table: str) -> set[Path]:
        found = self.tables().load(DATABASE, table).inspect.files()["file_path"].to_pylist()
        return {Path(path.removeprefix("file://").removeprefix("file:")) for path in found}


class Door:
    """A caller of the REST door."""

    def __init__(self, origin: str, token: str) -> None:
        self.origin = origin
        self.url = f"{origin}{INGEST_PATH}"
        self.token = token
        self._session = requests.Session()

    def send(
        self,
        table: str,
        lines: Any,
        key: str | None = None,
        *,
        create: bool = True,
        evolve: bool | None = None,
        timeout: float = 60,
        **headers: str,
    ) -> requests.Response:
        """`lines` are rows, or bytes as they are."""
        given = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/x-ndjson",
            "X-Database": DATABASE,
            "X-Table": table,
            "X-Auto-Create": str(create).lower(),
        }
        if key is not None:
            given["X-Idempotency-Key"] = key
        if evolve is not None:
            given["X-Schema-Evolve"] = str(evolve).lower()
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = lines if not isinstance(lines, list) else ndjson(lines)
        return requests.post(f"{self.url}/v1/ingest", data=body, headers=given, timeout=timeout)

    def write(self, table: str, lines: Any, key: str | None = None, **options: Any) -> Json:
        """Send until it is written, however long Spark takes for it; the answer."""
        key = key or new_key()
        while (answer := self.send(table, lines, key, **options)).status_code == 409:
            assert answer.json()["error"]["code"] == "request_in_progress", answer.text
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return requests.request(method, f"{self.url}{path}", headers=headers, timeout=30, **options)


class ApiProcess:
    """The API in a process of its own, at one port however often it is started."""

    def __init__(self, site: IngestSite, **changes: str) -> None:
        self._site = site
        self._changes = changes
        self._port = free_port()
        self._log = site.folder / "api.log"
        self.door = Door(
            f"http://127.0.0.1:{self._port}", site.issuer.token(scope="ingest:write otlp:write")
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        main = "from moraine.cli import main; main()"
        argv = [sys.executable, "-c", main, "api", "--port", str(self._port)]
        environment = self._site.environment(**self._changes)
        with running(argv, self._site.folder, environment, self._log) as process:
            await_answer(f"{self.door.url}/v1/x", process, self._log, 60, lambda _: True)
            yield process


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ndjson(rows: list[Json]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def new_table() -> str:
    return f"t{next(_names)}_{os.getpid()}"


def new_key() -> str:
    return f"key-{next(_names)}-{time.time_ns()}"


@contextlib.contextmanager
def running_site(folder: Path) -> Iterator[IngestSite]:
    """`INGEST_HOME=/some/folder pytest tests/integration/ingest` keeps the stack running."""
    from pyspark.sql import SparkSession

    kept = os.environ.get("INGEST_HOME")
    home = Path(kept) if kept else folder / "stack"
    stack = Stack.open(home) if (home / "stack.json").exists() else Stack.ephemeral(home)
    failpoints = Failpoints(home / "failpoints")
    failpoints.folder.mkdir(parents=True, exist_ok=True)
    failpoints.clear()
    try:
        stack.up({"postgres", "catalog", "spark"})
        spark = SparkSession.builder.remote(stack.spark.client_url).create()
        yield IngestSite(stack, folder, failpoints, Issuer(), spark)
        spark.stop()
    finally:
        if not kept:
            stack.down()
