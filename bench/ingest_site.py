"""The site of the ingest benchmark: one stack, with equal tables for all contestants.

The API, the writer and the load are processes of their own, as they are in use.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import psycopg
import requests
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from ingest_rows import COLUMNS
from moraine.ingest.rest.app import INGEST_PATH
from moraine.ingest.store import TableStore
from moraine.ingest.tables.service import IngestTables
from moraine.ledger.pools import open_pool
from moraine.local.stack import Stack
from moraine.migrations import upgrade
from moraine.settings import get_settings
from moraine.spark.session import connect
from resources import cpu_seconds
from support import issuer
from support.processes import await_ready, running

CATALOG, DATABASE = "demo", "bench"
_BIN = Path(sys.executable).parent
_PARTS = ("postgres", "catalog", "spark")
_WRITER = """
from moraine import log
from moraine.ingest import processes
from moraine.settings import get_settings
from moraine.spark.session import connect

log.configure()
url = get_settings().ledger.url.get_secret_value()
processes.write_ingested(lambda: connect({spark!r}), url)
"""
# How long anything that was started may take until it answers.
_PATIENCE = 60.0


@dataclass
class Site:
    folder: Path
    stack: Stack
    spark: SparkSession
    tables: IngestTables
    processes: dict[str, psutil.Process]
    """The processes that use the cores, by name."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def ledger_url(self) -> str:
        return self.stack.postgres.ledger_url

    @property
    def api_port(self) -> int:
        return self.stack.settings.ports.airflow

    @contextlib.contextmanager
    def table(self, owner: str) -> Iterator[str]:
        """An empty table with typed columns; gone with all its files afterwards."""
        name = f"{owner}_{next(self._numbers)}"
        self.tables.create(DATABASE, name, COLUMNS)
        try:
            yield name
        finally:
            self.spark.sql(f"DROP TABLE {full_name(name)} PURGE")

    def rows_in(self, table: str) -> int:
        snapshot = self.tables.load(DATABASE, table).current_snapshot()
        return int(snapshot.summary["total-records"]) if snapshot and snapshot.summary else 0

    def query(self, text: str, *parameters: Any) -> list[dict[str, Any]]:
        """Of the ledger."""
        with psycopg.connect(self.ledger_url, row_factory=dict_row) as connection:
            return connection.execute(text, parameters).fetchall()  # type: ignore[arg-type]

    def cpu_seconds(self) -> dict[str, float]:
        """What each part has used so far, its children included."""
        return {name: cpu_seconds(process) for name, process in self.processes.items()}

    @contextlib.contextmanager
    def writer(self) -> Iterator[None]:
        script = _WRITER.format(spark=self.stack.spark.client_url)
        with self._running("writer", [sys.executable, "-c", script], self._has_writer):
            yield

    @contextlib.contextmanager
    def api(self) -> Iterator[psutil.Process]:
        command = [str(_BIN / "moraine"), "api", "--port", str(self.api_port)]
        with self._running("API", command, self._has_api) as process:
            yield process

    @cached_property
    def token(self) -> str:
        return self._issuer.token(exp=int(time.time()) + 7200)

    @cached_property
    def _issuer(self) -> issuer.Issuer:
        return issuer.Issuer()

    def environment(self) -> dict[str, str]:
        return {
            **self.stack.environment(),
            "MORAINE_API__JWT__ISSUER": issuer.URL,
            "MORAINE_API__JWT__JWKS_FILE": str(self._issuer.write_key_set(self.folder)),
            "MORAINE_API__ACCEPT_AIRFLOW_TOKENS": "false",
            "MORAINE_INGEST__OTLP__GRPC_PORT": "0",
            "MORAINE_WORKSPACE": (self.folder / "workspace").as_uri(),
            # Of 16 large bodies at once the last is to be told as well.
            "MORAINE_INGEST__REST__WAIT": "300s",
        }

    def http_head(self, table: str, length: int, key: str) -> str:
        """What a caller of the REST door sends before the body."""
        lines = [
            f"POST {INGEST_PATH}/v1/ingest HTTP/1.1",
            f"Host: 127.0.0.1:{self.api_port}",
            f"Authorization: Bearer {self.token}",
            "Content-Type: application/x-ndjson",
            f"Content-Length: {length}",
            f"X-Database: {DATABASE}",
            f"X-Table: {table}",
            f"X-Idempotency-Key: {key}",
        ]
        return "\r\n".join([*lines, "", ""])

    @contextlib.contextmanager
    def _running(self, name: str, command: Sequence[str], is_ready: Any) -> Iterator[Any]:
        log = self.folder / f"{name}.log"
        with running(command, self.folder, self.environment(), log, grace=60) as process:
            await_ready(is_ready, process, log, _PATIENCE, f"There is no {name}.")
            self.processes[name] = psutil.Process(process.pid)
            try:
                yield self.processes[name]
            finally:
                self.processes.pop(name, None)

    def _has_writer(self) -> bool:
        listening = (
            "SELECT FROM pg_stat_activity WHERE application_name = 'moraine-writer' "
            "AND starts_with(query, 'LISTEN') AND datname = current_database()"
        )
        return bool(self.query(listening))

    def _has_api(self) -> bool:
        url = f"http://127.0.0.1:{self.api_port}{INGEST_PATH}/v1/tables/none/none"
        headers = {"Authorization": f"Bearer {self.token}"}
        with contextlib.suppress(requests.RequestException):
            return requests.get(url, headers=headers, timeout=5).status_code in (200, 404)
        return False


def full_name(table: str) -> str:
    """As Spark calls it."""
    return f"{CATALOG}.{DATABASE}.{table}"


@contextlib.contextmanager
def open_site(folder: Path) -> Iterator[Site]:
    with Stack.ephemeral(folder / "stack") as stack, contextlib.ExitStack() as contexts:
        stack.up(set(_PARTS))
        upgrade(stack.postgres.ledger_url)
        os.environ.update(stack.environment())
        get_settings.cache_clear()
        pool = contexts.enter_context(open_pool(stack.postgres.ledger_url, size=2))
        tables = IngestTables(CATALOG, get_settings().catalog(CATALOG), TableStore(pool))
        names = dict(zip(_PARTS, ("PostgreSQL", "catalog", "Spark"), strict=True))
        processes = {
            names[part]: psutil.Process(pid) for part in _PARTS if (pid := stack.pid(part))
        }
        spark = connect(stack.spark.client_url)
        try:
            yield Site(folder, stack, spark, tables, processes)
        finally:
            spark.stop()
