"""The last part of the demo: JSON lines become rows, once."""

from __future__ import annotations

import json
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.console import Console

from moraine.ingest.rest.client import DoorError, IngestClient
from moraine.local.commands import short_path
from moraine.local.stack import Stack
from moraine.settings import get_settings
from moraine.spark.session import connect
from moraine.words import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG, DATABASE = "demo", "shop"
_FILE_SECONDS = 90
_WRITER_SECONDS = 180
_POLL_SECONDS = 0.5
_FIRST = [
    {"timestamp": "2026-11-16T08:00:00Z", "message": "basket opened", "customer": "ada"},
    {"timestamp": "2026-11-16T08:00:03Z", "message": "item added", "customer": "ada"},
]
_WIDER = [{"timestamp": "2026-11-16T08:00:09Z", "message": "paid", "amount": 12.5}]
_BAD: list[dict[str, Any]] = [{"message": "fine"}, {"message": 42}]
_DROPPED = [{"timestamp": "2026-11-16T08:01:00Z", "message": "delivered", "customer": "ada"}]


def say(console: Console, words: str) -> None:
    """A line of the demo. It is not wrapped: its ids and paths are there to be copied."""
    console.print(f"   {words}", highlight=False, markup=False, soft_wrap=True)


class IngestDemo:
    def __init__(self, console: Console, stack: Stack) -> None:
        self._console = console
        self._stack = stack
        self._client = IngestClient(get_settings())
        self._table = f"events_{int(time.time())}"

    @cached_property
    def _spark(self) -> SparkSession:
        return connect(self._stack.spark.client_url)

    def run(self) -> None:
        key = f"demo-{self._table}"
        with self._console.status("waiting for the writer, a Dag that is always on"):
            first = self._send_patiently(_FIRST, key)
        self._tell("2 lines", _short(first))
        again = self._send(_FIRST, key)
        self._tell("the same with the same key", _short(again))
        self._tell("1 line with a new field", _short(self._send(_WIDER)))
        try:
            self._send(_BAD)
            raise SystemExit("A bad line was accepted: this is a bug.")
        except DoorError as error:
            self._tell("2 lines, one of them bad", f"none is written. {error}")
        self._drop_a_file()
        rows = self._query()
        self._spark.stop()
        if len(rows) != 4 or again != {**first, "replayed": True}:
            raise SystemExit("That is not as it should be: this is a bug.")

    def _tell(self, sent: str, answer: str) -> None:
        say(self._console, f"{sent:<28}{answer}")

    def _send_patiently(self, rows: list[dict[str, Any]], key: str) -> dict[str, Any]:
        """The writer may not run yet. Until it does the server keeps the bytes, and a retry with
        the same key is harmless."""
        give_up_at = time.monotonic() + _WRITER_SECONDS
        while True:
            try:
                return self._send(rows, key)
            except DoorError as error:
                if error.status not in (409, 503) or time.monotonic() > give_up_at:
                    raise

    def _send(self, rows: list[dict[str, Any]], key: str | None = None) -> dict[str, Any]:
        body = _lines(rows)
        return self._client.send(DATABASE, self._table, body, key=key, create=True)

    def _drop_a_file(self) -> None:
        folder = self._stack.drop_folder / DATABASE / self._table
        folder.mkdir(parents=True)
        # Complete from its first moment, though a file that still grows would be left alone.
        draft = folder / ".deliveries.ndjson"
        draft.write_bytes(_lines(_DROPPED))
        draft.rename(folder / "deliveries.ndjson")
        started = time.monotonic()
        with self._console.status("waiting until its rows are in the table"):
            while self._count() < 4 and time.monotonic() < started + _FILE_SECONDS:
                time.sleep(_POLL_SECONDS)
        found = f"in the table after {time.monotonic() - started:.0f} s"
        self._tell("a file with 1 line", f"{short_path(folder)}: {found}")

    def _count(self) -> int:
        return self._spark.table(f"{CATALOG}.{DATABASE}.{self._table}").count()

    def _query(self) -> list[Any]:
        table = f"{CATALOG}.{DATABASE}.{self._table}"
        query = f"SELECT message, customer, amount FROM {table} ORDER BY timestamp"  # noqa: S608
        rows = self._spark.sql(query).collect()
        say(self._console, query)
        for row in rows:
            message, customer, amount = ("" if value is None else str(value) for value in row)
            say(self._console, f"  {message:<15}{customer:<6}{amount}".rstrip())
        return rows


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _short(answer: dict[str, Any]) -> str:
    again = ", a replay" if answer["replayed"] else ""
    return f"{counted(answer['rows_ingested'], 'row')} in snapshot {answer['snapshot_id']}{again}"
