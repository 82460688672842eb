"""Where the contestants of the ingest benchmark meet: one stack, with tables of the same making.

The API, the writer and the load are processes of their own, as they are in use.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.error import URLError

import jwt
import psutil
import psycopg
from cryptography.hazmat.primitives.asymmetric import rsa
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from ingest_rows import COLUMNS
from moraine.ingest.app import INGEST_PATH
from moraine.ingest.tables import IngestTables
from moraine.local.stack import Stack
from moraine.migrations import upgrade
from moraine.settings import get_settings
from moraine.spark import connect

CATALOG, DATABASE = "demo", "bench"
_ISSUER, _KEY_ID = "https://issuer.example", "bench"
_BIN = Path(sys.executable).parent
_PARTS = ("postgres", "catalog", "spark")
_WRITER = """
from moraine import log, runtime
from moraine.settings import get_settings
from moraine.spark import connect

log.configure()
url = get_settings().ledger.url.get_secret_value()
runtime.write_ingested(lambda: connect({spark!r}), url)
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
    """Whoever takes a share of the cores, by name."""
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
        return {name: _cpu_seconds(process) for name, process in self.processes.items()}

    @contextlib.contextmanager
    def writer(self) -> Iterator[None]:
        script = _WRITER.format(spark=self.stack.spark.url)
        with self._running("writer", [sys.executable, "-c", script], self._has_writer):
            yield

    @contextlib.contextmanager
    def api(self) -> Iterator[psutil.Process]:
        command = [str(_BIN / "moraine"), "api", "--port", str(self.api_port)]
        with self._running("API", command, self._has_api) as process:
            yield process

    @cached_property
    def token(self) -> str:
        return self._issuer.token()

    @cached_property
    def _issuer(self) -> Issuer:
        return Issuer(self.folder)

    def environment(self) -> dict[str, str]:
        return {
            **self.stack.environment(),
            "MORAINE_API__JWT__ISSUER": _ISSUER,
            "MORAINE_API__JWT__JWKS_FILE": str(self._issuer.key_set),
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
    def _running(self, name: str, command: Sequence[str], is_there: Any) -> Iterator[Any]:
        log = self.folder / f"{name}.log"
        with log.open("wb") as file:
            env = {**os.environ, **self.environment()}
            process = subprocess.Popen(command, env=env, stdout=file, stderr=file)
            try:
                give_up_at = time.monotonic() + _PATIENCE
                while not is_there():
                    if process.poll() is not None or time.monotonic() > give_up_at:
                        raise RuntimeError(f"There is no {name}.\n{log.read_text()[-2000:]}")
                    time.sleep(0.05)
                self.processes[name] = psutil.Process(process.pid)
                yield self.processes[name]
            finally:
                self.processes.pop(name, None)
                process.terminate()
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _has_writer(self) -> bool:
        listening = (
            "SELECT FROM pg_stat_activity WHERE application_name = 'moraine-writer' "
            "AND starts_with(query, 'LISTEN') AND datname = current_database()"
        )
        return bool(self.query(listening))

    def _has_api(self) -> bool:
        url = f"http://127.0.0.1:{self.api_port}{INGEST_PATH}/v1/tables/none/none"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.token}"})
        try:
            with urllib.request.urlopen(request, timeout=5):
                return True
        except urllib.request.HTTPError as answer:
            return answer.code == 404
        except (URLError, OSError):
            return False


class Issuer:
    """Of the tokens that callers bring."""

    def __init__(self, folder: Path) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        self.key_set = folder / "keys.json"
        keys = [{**public, "kid": _KEY_ID, "use": "sig", "alg": "RS256"}]
        self.key_set.write_text(json.dumps({"keys": keys}))

    def token(self) -> str:
        claims = {
            "iss": _ISSUER,
            "aud": "moraine",
            "sub": "bench",
            "scope": "execute_tasks",
            "exp": int(time.time()) + 7200,
        }
        return jwt.encode(claims, self._key, "RS256", headers={"kid": _KEY_ID})


class PeakMemory:
    """The most that a process had in memory while this was on, in MiB."""

    def __init__(self, process: psutil.Process, interval: float = 0.02) -> None:
        self._process = process
        self._interval = interval
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory")
        self.before = self.most = self._now()

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._interval):
            self.most = max(self.most, self._now())

    def _now(self) -> float:
        return float(self._process.memory_info().rss) / (1 << 20)


def full_name(table: str) -> str:
    """As Spark calls it."""
    return f"{CATALOG}.{DATABASE}.{table}"


@contextlib.contextmanager
def open_site(folder: Path) -> Iterator[Site]:
    with Stack.ephemeral(folder / "stack") as stack:
        stack.up(set(_PARTS))
        upgrade(stack.postgres.ledger_url)
        os.environ.update(stack.environment())
        get_settings.cache_clear()
        tables = IngestTables(CATALOG, get_settings().catalog(CATALOG))
        names = dict(zip(_PARTS, ("PostgreSQL", "catalog", "Spark"), strict=True))
        processes = {
            names[part]: psutil.Process(pid) for part in _PARTS if (pid := stack.pid(part))
        }
        spark = connect(stack.spark.url)
        try:
            yield Site(folder, stack, spark, tables, processes)
        finally:
            spark.stop()


def _cpu_seconds(process: psutil.Process) -> float:
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total
