"""The demo's last part: lines become rows, once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from moraine.ingest.client import DoorError, IngestClient
from moraine.local.stack import Stack
from moraine.settings import get_settings
from moraine.spark import connect

CATALOG, DATABASE = "demo", "shop"
_PATIENCE_SECONDS = 90
_WRITER_SECONDS = 180
_POLL_SECONDS = 0.5
_FIRST = [
    {"timestamp": "2026-11-16T08:00:00Z", "message": "basket opened", "customer": "ada"},
    {"timestamp": "2026-11-16T08:00:03Z", "message": "item added", "customer": "ada"},
]
_WIDER = [{"timestamp": "2026-11-16T08:00:09Z", "message": "paid", "amount": 12.5}]
_BAD: list[dict[str, Any]] = [{"message": "fine"}, {"message": 42}]
_DROPPED = [{"timestamp": "2026-11-16T08:01:00Z", "message": "delivered", "customer": "ada"}]


class IngestDemo:
    def __init__(self, console: Console, stack: Stack) -> None:
        self._console = console
        self._stack = stack
        self._client = IngestClient(get_settings())
        self._table = f"events_{int(time.time())}"

    def run(self) -> None:
        key = f"demo-{self._table}"
        with self._console.status("waiting for the writer, a Dag that is always on"):
            first = self._send_patiently(_FIRST, key)
        self._say(f"A batch of 2 lines: {_short(first)}")
        again = self._send(_FIRST, key)
        self._say(f"The same again, with the same key: {_short(again)}")
        self._say(f"A line with a new field: {_short(self._send(_WIDER))}")
        try:
            self._send(_BAD)
            raise SystemExit("A bad line was taken: this is a bug.")
        except DoorError as error:
            self._say(f"A batch with a bad line, of which nothing is taken: {error}")
        self._drop_a_file()
        rows = self._query()
        if len(rows) != 4 or again != {**first, "replayed": True}:
            raise SystemExit("That is not as it should be: this is a bug.")

    def _send_patiently(self, rows: list[dict[str, Any]], key: str) -> dict[str, Any]:
        """A writer that was killed with the stack is missed after a minute only. Meanwhile the
        bytes are kept, and asking again with the same key is harmless."""
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
        # Whole or not at all, though a file that still grows would be left alone.
        draft = folder / ".deliveries.ndjson"
        draft.write_bytes(_lines(_DROPPED))
        draft.rename(folder / "deliveries.ndjson")
        self._say(f"A file dropped in {_shown(folder, self._stack)}; it is found within seconds.")
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        with self._console.status("waiting until its rows are in the table"):
            while self._count() < 4 and time.monotonic() < give_up_at:
                time.sleep(_POLL_SECONDS)

    def _count(self) -> int:
        with connect(self._stack.spark.url) as spark:
            return spark.table(f"{CATALOG}.{DATABASE}.{self._table}").count()

    def _query(self) -> list[Any]:
        query = (
            f"SELECT message, customer, amount FROM {CATALOG}.{DATABASE}.{self._table} "  # noqa: S608
            "ORDER BY timestamp"
        )
        with connect(self._stack.spark.url) as spark:
            rows = spark.sql(query).collect()
        self._say(query)
        shown = Table("message", "customer", "amount")
        for row in rows:
            shown.add_row(*(value or "" for value in row))
        self._console.print(shown)
        return rows

    def _say(self, words: str) -> None:
        self._console.print(words, highlight=False, markup=False)


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _short(answer: dict[str, Any]) -> str:
    again = ", a replay" if answer["replayed"] else ""
    return f"{answer['rows_ingested']} rows in snapshot {answer['snapshot_id']}{again}"


def _shown(folder: Path, stack: Stack) -> str:
    return str(folder.relative_to(stack.home))
