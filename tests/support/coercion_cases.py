"""The contract of ingest's values, as data: what every door must make of them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from moraine.ingest.columns import Column, ColumnKind, ColumnType

_CASES = json.loads((Path(__file__).parents[1] / "data" / "coercion_cases.json").read_text())


@dataclass(frozen=True)
class ValueCase:
    """One value in a column of that type."""

    name: str
    type: ColumnType
    json: str
    value: Any
    error: str | None

    def line(self, column: str = "value", **others: Any) -> bytes:
        """An object with that value, and others before it."""
        before = "".join(f"{json.dumps(key)}:{json.dumps(other)}," for key, other in others.items())
        return f'{{{before}"{column}":{self.json}}}'.encode()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class LineCase:
    """A whole body for a table of COLUMNS."""

    name: str
    body: bytes
    rows: list[dict[str, Any]]
    error: str | None

    def __str__(self) -> str:
        return self.name


def column_type(words: str) -> ColumnType:
    return ColumnType(ColumnKind.TEXT) if words == "text" else ColumnType.parse(words)


def _body(case: dict[str, Any]) -> bytes:
    if "line_base64" in case:
        return base64.b64decode(case["line_base64"])
    return str(case["line"]).encode()


COLUMNS = [Column(c["name"], column_type(c["type"])) for c in _CASES["columns"]]
VALUES = [
    ValueCase(c["name"], column_type(c["type"]), c["json"], c.get("value"), c.get("error"))
    for c in _CASES["values"]
]
LINES = [LineCase(c["name"], _body(c), c.get("rows", []), c.get("error")) for c in _CASES["lines"]]


# --- All of them in one table ---------------------------------------------------------------


def column_for(type: ColumnType) -> str:
    """The column that the values of a type go to."""
    return f"c_{re.sub('[^a-z0-9]', '_', type_name(type))}"


def type_name(type: ColumnType) -> str:
    return type.kind.value if type.kind is not ColumnKind.VECTOR else str(type)


def _types() -> list[ColumnType]:
    return list({type_name(case.type): case.type for case in VALUES}.values())


VALUE_COLUMNS = [
    Column("id", ColumnType(ColumnKind.LONG)),
    *(Column(column_for(type), type) for type in _types()),
]
"""Of a table that takes every value case: which case it is, and a column for each type."""


def value_line(number: int) -> bytes:
    case = VALUES[number]
    return case.line(column_for(case.type), id=number)


def value_row(number: int) -> dict[str, Any]:
    case = VALUES[number]
    row: dict[str, Any] = {column.name: None for column in VALUE_COLUMNS}
    return {**row, "id": number, column_for(case.type): case.value}


def read_back(table: pa.Table) -> list[dict[str, Any]]:
    """As the cases have it: timestamps in microseconds, dynamic values as text."""
    columns = []
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        values = column.to_pylist()
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            values = [None if value is None else value.decode() for value in values]
        columns.append(values)
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def spark_columns(columns: Sequence[Column]) -> str:
    """What to select, for Spark to give the same."""
    forms = {ColumnKind.TIMESTAMP: "unix_micros({0})", ColumnKind.DYNAMIC: "CAST({0} AS STRING)"}
    return ", ".join(
        f"{forms.get(column.type.kind, '{0}').format(column.name)} AS {column.name}"
        for column in columns
    )


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that may have been read in any order."""
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
