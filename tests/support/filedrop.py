"""A folder whose files are taken, and a writer behind it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from moraine.ingest.processes import watch_once
from moraine.ingest.store import HousekeepingStore
from moraine.ledger.pools import open_pool
from moraine.settings import Settings
from support.ingest_writer import StandInWriter
from support.platform import Failpoints

LINE = b'{"a": 1}\n'
LARGE = b'{"text": "' + b"x" * 1000 + b'"}\n'
Rows = list[tuple[Any, ...]]


_PROCESS = """
import asyncio, json, sys
from moraine.ingest.processes import watch_once
from moraine.settings import Settings

given, storage = map(json.loads, sys.argv[1:])
settings = Settings(**given)
print(asyncio.run(watch_once(settings.ledger.url.get_secret_value(), settings, lambda _: storage)))
"""


class Scene:
    """A watched folder, its ledger and a writer."""

    def __init__(self, folder: Path, url: str, writer: StandInWriter) -> None:
        self.base = folder / "drop"
        self.url, self.writer = url, writer
        self.workspace = folder / "workspace"
        self.failpoints = Failpoints(folder / "failpoints")
        self.failpoints.folder.mkdir()
        self.location = str(self.base)
        self.storage: Mapping[str, str] = {}
        self.prefix: dict[str, Any] = {"settle": "0s"}
        self.filedrop: dict[str, Any] = {"run_duration": "20s"}
        self.ingest: dict[str, Any] = {"inline_bytes": 500}

    def drop(self, path: str, content: bytes = LINE) -> Path:
        file = self.base / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    def watch(self) -> dict[str, int]:
        """One run, with a writer at work."""
        with self.writer.running():
            return self.watch_alone()

    def watch_alone(self, **filedrop: Any) -> dict[str, int]:
        return asdict(
            asyncio.run(watch_once(self.url, self.settings(**filedrop), lambda _: self.storage))
        )

    def settings(self, **filedrop: Any) -> Settings:
        return Settings(**self._given(**filedrop))

    def _given(self, **filedrop: Any) -> dict[str, Any]:
        prefixes = {"prefixes": {"main": {"location": self.location, **self.prefix}}}
        ingest = {**self.ingest, "filedrop": {**prefixes, **self.filedrop, **filedrop}}
        catalogs = {"demo": {"uri": "http://127.0.0.1:1"}}  # the watcher only names it
        return {"workspace": f"file://{self.workspace}", "ingest": ingest, "catalogs": catalogs}

    def killed_at(self, point: str) -> None:
        """A run in a process of its own, which is killed at the point."""
        self.failpoints.kill_at(point)
        with self.process() as process:
            output, _ = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, output
        self.failpoints.clear()

    def process(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _PROCESS, *map(json.dumps, [self._given(), dict(self.storage)])],
            env={
                **os.environ,
                "MORAINE_LEDGER__URL": self.url,
                "MORAINE_FAILPOINTS": str(self.failpoints.folder),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def sql(self, statement: str, *parameters: Any) -> Rows:
        with psycopg.connect(self.url) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def states(self) -> dict[str, str]:
        rows = self.sql("SELECT location, state FROM ingest_files")
        return {location.removeprefix(f"{self.location}/"): state for location, state in rows}

    def names(self) -> set[str]:
        found = (path for path in self.base.rglob("*") if path.is_file())
        return {str(path.relative_to(self.base)) for path in found}

    def let_reservations_end(self) -> None:
        self.sql("UPDATE ingest_ledger SET lease_expires_at = now() WHERE state = 'receiving'")

    def expire_keys(self) -> None:
        """As if two days had passed, and the cleaning had been at work."""
        for table, columns in (
            ("ingest_ledger", ("reserved_at", "applied_at", "expires_at")),
            ("ingest_files", ("seen_at", "taken_at")),
        ):
            earlier = ", ".join(f"{name} = {name} - interval '2 days'" for name in columns)
            self.sql(f"UPDATE {table} SET {earlier}")
        with open_pool(self.url, size=1) as pool:
            hour = timedelta(hours=1)
            HousekeepingStore(pool).remove_expired(24 * hour, hour, 1000)
