"""Who brings the same rows to a committed snapshot, each in its own way.

Everybody finds the files on disk and warm, and writes to an empty table of the same making. A time
is from the word go to the snapshot that has all rows.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.json
from psycopg_pool import AsyncConnectionPool

from ingest_rows import RowFile, rows_schema, sql_columns
from ingest_site import DATABASE, Site, full_name
from moraine.ingest.model import Arrival, StagedBody
from moraine.ingest.staging import StagedFile, measure, staging_folder
from moraine.ingest.store import SETTLED, STAGED, DoorStore

_CHUNK = 1 << 20
_PATIENCE = 300.0
_MAKE_CLAIMABLE = f"""
WITH given AS (
    SELECT * FROM jsonb_to_recordset(%s) AS one
        (id bigint, fingerprint text, location text, size bigint, lines bigint)
), staged AS (
    UPDATE ingest_ledger AS row SET state = 'staged', fingerprint = given.fingerprint,
        location = given.location, body_bytes = given.size, body_lines = given.lines
    FROM given WHERE row.id = given.id AND row.state = 'receiving' RETURNING row.id
)
SELECT id, pg_notify('{STAGED}', '') FROM staged
"""
_STATES = "SELECT state, count(*) FROM ingest_ledger WHERE id = ANY(%s) GROUP BY state"


class Contestant(Protocol):
    name: str

    def write(self, files: Sequence[RowFile], table: str) -> float:
        """How many seconds it took."""
        ...


class SparkJson:
    """Spark's own reader of JSON, which checks little."""

    name = "spark_json"

    def __init__(self, site: Site) -> None:
        self._spark = site.spark

    def write(self, files: Sequence[RowFile], table: str) -> float:
        paths = [str(file.path) for file in files]
        began = time.perf_counter()
        rows = self._spark.read.schema(sql_columns()).json(paths)
        rows.writeTo(full_name(table)).append()
        return time.perf_counter() - began


class ParquetFloor:
    """The rows are Parquet already, as files for each of those of JSON; Spark rewrites them."""

    name = "parquet_floor"

    def __init__(self, site: Site) -> None:
        self._spark = site.spark

    def prepare(self, files: Sequence[RowFile]) -> None:
        for file in files:
            rows = self._spark.read.schema(sql_columns()).json(str(file.path))
            rows.write.parquet(str(_parquet_of(file)))

    def write(self, files: Sequence[RowFile], table: str) -> float:
        paths = [str(_parquet_of(file)) for file in files]
        began = time.perf_counter()
        self._spark.read.parquet(*paths).writeTo(full_name(table)).append()
        return time.perf_counter() - began


class PyIceberg:
    """One process: pyarrow reads, pyiceberg writes and commits; both with all cores."""

    name = "pyiceberg_append"

    def __init__(self, site: Site) -> None:
        self._tables = site.tables

    def write(self, files: Sequence[RowFile], table: str) -> float:
        options = pyarrow.json.ParseOptions(explicit_schema=rows_schema())
        began = time.perf_counter()
        loaded = self._tables.load(DATABASE, table)
        read = [pyarrow.json.read_json(file.path, parse_options=options) for file in files]
        loaded.append(pa.concat_tables(read))
        return time.perf_counter() - began


class Moraine:
    """A writer in its own process, warm and waiting. The bodies are staged as a door does it; the
    clock runs from the moment they may be claimed until the last of them is settled."""

    name = "moraine"

    def __init__(self, site: Site, stager: Stager) -> None:
        self._site = site
        self._stager = stager
        self.committing: list[float] = []
        """Of each write, how long its commits took."""

    def write(self, files: Sequence[RowFile], table: str) -> float:
        staged = [self._stager.reserve_file(file, table) for file in files]
        given = json.dumps(
            [
                {
                    "id": id,
                    "fingerprint": body.fingerprint,
                    "location": body.location,
                    "size": body.size,
                    "lines": body.lines,
                }
                for id, body in staged
            ]
        )
        before = self._commit_seconds()
        with psycopg.connect(self._site.ledger_url, autocommit=True) as connection:
            connection.execute(f"LISTEN {SETTLED}")
            began = time.perf_counter()
            connection.execute(_MAKE_CLAIMABLE, [given])
            self._await_settled(connection, [id for id, _ in staged])
            seconds = time.perf_counter() - began
        self.committing.append(self._commit_seconds() - before)
        return seconds

    def _await_settled(self, connection: psycopg.Connection[Any], ids: list[int]) -> None:
        give_up_at = time.monotonic() + _PATIENCE
        while True:
            states = dict(connection.execute(_STATES, [ids]).fetchall())
            if states == {"applied": len(ids)}:
                return
            if "rejected" in states or time.monotonic() > give_up_at:
                raise RuntimeError(f"The bodies are {states}.")
            for _ in connection.notifies(timeout=0.5, stop_after=1):
                pass

    def _commit_seconds(self) -> float:
        rows = self._site.query("SELECT seconds FROM ingest_commits WHERE door = 'writer'")
        return float(rows[0]["seconds"]) if rows else 0.0


class Stager:
    """Puts bodies into the ledger as a door does, from a program that is not asynchronous."""

    def __init__(self, site: Site, runner: asyncio.Runner, ledger: DoorStore) -> None:
        self._folder = staging_folder(site.environment()["MORAINE_WORKSPACE"])
        self._runner = runner
        self._ledger = ledger

    def reserve_file(self, file: RowFile, table: str) -> tuple[int, StagedBody]:
        """Reserved, and on disk, but not for the writer to take yet."""
        with StagedFile(self._folder) as staged, file.path.open("rb") as source:
            while chunk := source.read(_CHUNK):
                staged.write(chunk)
            body = staged.finish()
        return self._reserve(table, None), body

    def stage_small(self, lines: bytes, table: str) -> None:
        self._reserve(table, measure(lines))

    def _reserve(self, table: str, body: StagedBody | None) -> int:
        arrival = Arrival(f"bench:{uuid4()}", "rest", DATABASE, table, False, True)
        reserved = self._runner.run(self._ledger.reserve(arrival, body))
        assert isinstance(reserved, int)
        return reserved


@contextmanager
def open_stager(site: Site) -> Iterator[Stager]:
    with asyncio.Runner() as runner:
        pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
            site.ledger_url, min_size=1, max_size=1, open=False, kwargs={"autocommit": True}
        )
        runner.run(pool.open())
        try:
            yield Stager(site, runner, DoorStore(pool))
        finally:
            runner.run(pool.close())


def _parquet_of(file: RowFile) -> Path:
    return file.path.with_suffix(".parquet")
