"""The rows of the ingest benchmark: 20 fields of mixed types, about 500 bytes a row as JSON.

The same for everybody and in every run, in files no larger than a request may be.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from moraine.ingest.columns import Column, ColumnKind, ColumnType, arrow_schema

FILE_BYTES = 64 << 20

_KINDS = {
    "event_id": ColumnKind.LONG,
    "account_id": ColumnKind.LONG,
    "bytes_sent": ColumnKind.LONG,
    "status": ColumnKind.INT,
    "attempt": ColumnKind.INT,
    "quantity": ColumnKind.INT,
    "port": ColumnKind.INT,
    "is_active": ColumnKind.BOOL,
    "is_mobile": ColumnKind.BOOL,
    "amount": ColumnKind.REAL,
    "latency_ms": ColumnKind.REAL,
    "latitude": ColumnKind.REAL,
    "occurred_at": ColumnKind.TIMESTAMP,
    "received_at": ColumnKind.TIMESTAMP,
    "customer": ColumnKind.STRING,
    "country": ColumnKind.STRING,
    "path": ColumnKind.STRING,
    "user_agent": ColumnKind.STRING,
    "message": ColumnKind.STRING,
    "trace_id": ColumnKind.STRING,
}
COLUMNS = [Column(name, ColumnType(kind)) for name, kind in _KINDS.items()]
_SQL_TYPES = {
    ColumnKind.LONG: "BIGINT",
    ColumnKind.INT: "INT",
    ColumnKind.BOOL: "BOOLEAN",
    ColumnKind.REAL: "DOUBLE",
    ColumnKind.TIMESTAMP: "TIMESTAMP",
    ColumnKind.STRING: "STRING",
}
_START = datetime(2026, 1, 1, tzinfo=UTC)
_COUNTRIES = ("DE", "FR", "PT", "US", "BR", "IN", "JP", "KE")
_PATHS = tuple(f"/v2/shops/{shop}" for shop in range(500))
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0)",
    "Mozilla/5.0 (Macintosh) Safari/605.1",
    "okhttp/4.12.0 (Android 14; Pixel 8)",
    "python-requests/2.32.3",
)
_MESSAGES = (
    'order accepted, \\"express\\" delivery',
    "payment taken from the customer",
    "Lieferung nach Köln ist unterwegs",
    "stock is low, ordered some more",
)


def sql_columns() -> str:
    """As Spark is told of them."""
    return ", ".join(f"{name} {_SQL_TYPES[kind]}" for name, kind in _KINDS.items())


def sql_values(number: str) -> str:
    """A row of Spark's own making, from the expression of a number."""
    values = {
        ColumnKind.TIMESTAMP: "timestamp_micros({} * 1000000)",
        ColumnKind.STRING: "concat('a value with the number ', {})",
        ColumnKind.BOOL: "{} % 2 = 0",
    }
    return ", ".join(
        f"CAST({values.get(kind, '{}').format(number)} AS {_SQL_TYPES[kind]}) AS {name}"
        for name, kind in _KINDS.items()
    )


def rows_schema() -> pa.Schema:
    return arrow_schema(COLUMNS)


@dataclass(frozen=True)
class RowFile:
    path: Path
    rows: int

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def write_files(folder: Path, rows: int) -> list[RowFile]:
    folder.mkdir(parents=True)
    files: list[RowFile] = []
    lines: list[bytes] = []
    size = 0

    def close() -> None:
        path = folder / f"{len(files):03}.ndjson"
        path.write_bytes(b"".join(lines))
        files.append(RowFile(path, len(lines)))

    for line in make_lines(rows):
        if size + len(line) > FILE_BYTES:
            close()
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    close()
    return files


def make_lines(rows: int) -> Iterator[bytes]:
    chance = random.Random(20260101)
    for number in range(rows):
        bits = chance.getrandbits(128)
        occurred = _START + timedelta(microseconds=number * 25_000 + bits % 25_000)
        received = occurred + timedelta(microseconds=bits % 900_000)
        yield (
            f'{{"event_id":{number},"account_id":{4_000_000_000 + bits % 900_000},'
            f'"bytes_sent":{bits % 70_000_000_000},"status":{200 + bits % 300},'
            f'"attempt":{bits % 5},"quantity":{bits % 2_000},"port":{1024 + bits % 60_000},'
            f'"is_active":{_json(bits & 1)},"is_mobile":{_json(bits & 2)},'
            f'"amount":{bits % 10_000_000 / 100},"latency_ms":{bits % 9_000_000 / 1000},'
            f'"latitude":{bits % 180_000_000 / 1e6 - 90:.6f},'
            f'"occurred_at":"{occurred:%Y-%m-%dT%H:%M:%S.%fZ}",'
            f'"received_at":"{received:%Y-%m-%dT%H:%M:%S.%fZ}",'
            f'"customer":"customer-{bits % 200_000:06}",'
            f'"country":"{_COUNTRIES[bits % 8]}","path":"{_PATHS[bits % 500]}",'
            f'"user_agent":"{_AGENTS[bits % 4]}","message":"{_MESSAGES[bits // 4 % 4]}",'
            f'"trace_id":"{bits:032x}"}}\n'
        ).encode()


def _json(value: int) -> str:
    return "true" if value else "false"
