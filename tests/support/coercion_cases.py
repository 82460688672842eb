"""The contract of ingest's values, as data: what every door must make of them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moraine.ingest.columns import Column, ColumnType, Kind

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
    return ColumnType(Kind.TEXT) if words == "text" else ColumnType.parse(words)


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
