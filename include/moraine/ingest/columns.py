"""The columns that ingest writes: the types of the contract, and how Iceberg stores each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from moraine.errors import ValidationFailed

PROPS = "props"
"""Where fields without a column of their own are kept, if the table has such a column."""
TIMESTAMP = "timestamp"
_VECTOR = re.compile(r"vector\(([1-9]\d{0,4})\)")


class Kind(StrEnum):
    BOOL = "bool"
    INT = "int"
    LONG = "long"
    REAL = "real"
    STRING = "string"
    TEXT = "text"
    """A string column that widening made: whatever is no string is kept as its JSON."""
    TIMESTAMP = "timestamp"
    VECTOR = "vector"
    DYNAMIC = "dynamic"
    FOREIGN = "foreign"
    """Of a type that the contract does not know: only null can be written."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    kind: Kind
    length: int = 0
    """Of a vector."""
    words: str = ""
    """What Iceberg calls a foreign type."""

    @classmethod
    def parse(cls, words: str) -> ColumnType:
        """As somebody writes it who makes a table: `long`, `vector(3)`."""
        cleaned = words.strip().lower()
        if vector := _VECTOR.fullmatch(cleaned):
            return cls(Kind.VECTOR, int(vector[1]))
        if cleaned not in _DECLARED:
            known = ", ".join(sorted(_DECLARED))
            raise ValidationFailed(
                f"{words[:50]!r} is no column type; there are {known} and vector(N)."
            )
        return cls(Kind(cleaned))

    def __str__(self) -> str:
        match self.kind:
            case Kind.VECTOR:
                return f"vector({self.length})"
            case Kind.TEXT:
                return "string"
            case Kind.FOREIGN:
                return self.words
            case _:
                return self.kind.value


_DECLARED = {kind.value for kind in Kind if kind not in (Kind.TEXT, Kind.VECTOR, Kind.FOREIGN)}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: ColumnType
    required: bool = False
