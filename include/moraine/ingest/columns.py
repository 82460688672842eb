"""The columns that ingest writes: the types of the contract, and their types in Arrow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from moraine.errors import ValidationFailed

PROPS = "props"
"""The column for fields that have no column of their own, if the table has it."""
TIMESTAMP = "timestamp"
_VECTOR = re.compile(r"vector\(([1-9]\d{0,4})\)")


class ColumnKind(StrEnum):
    BOOL = "bool"
    INT = "int"
    LONG = "long"
    REAL = "real"
    STRING = "string"
    TEXT = "text"
    """A string column made by widening: a value that is not a string is stored as its JSON."""
    TIMESTAMP = "timestamp"
    VECTOR = "vector"
    DYNAMIC = "dynamic"
    FOREIGN = "foreign"
    """A type that is not in the contract: only null can be written."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    kind: ColumnKind
    length: int = 0
    """The number of elements of a vector."""
    foreign_name: str = ""
    """Iceberg's name of a foreign type."""

    @classmethod
    def parse(cls, text: str) -> ColumnType:
        """A type as a caller declares it: `long`, `vector(3)`."""
        cleaned = text.strip().lower()
        if vector := _VECTOR.fullmatch(cleaned):
            return cls(ColumnKind.VECTOR, int(vector[1]))
        if cleaned not in _DECLARED:
            known = ", ".join(sorted(_DECLARED))
            raise ValidationFailed(
                f"{text[:50]!r} is no column type; the types are {known} and vector(N)."
            )
        return cls(ColumnKind(cleaned))

    def __str__(self) -> str:
        match self.kind:
            case ColumnKind.VECTOR:
                return f"vector({self.length})"
            case ColumnKind.TEXT:
                return "string"
            case ColumnKind.FOREIGN:
                return self.foreign_name
            case _:
                return self.kind.value


_DECLARED = {
    kind.value
    for kind in ColumnKind
    if kind not in (ColumnKind.TEXT, ColumnKind.VECTOR, ColumnKind.FOREIGN)
}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: ColumnType
    required: bool = False


_ARROW: dict[ColumnKind, pa.DataType] = {
    ColumnKind.BOOL: pa.bool_(),
    ColumnKind.INT: pa.int32(),
    ColumnKind.LONG: pa.int64(),
    ColumnKind.REAL: pa.float64(),
    ColumnKind.STRING: pa.string(),
    ColumnKind.TEXT: pa.string(),
    ColumnKind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    # Not of fixed size: Iceberg has no such type.
    ColumnKind.VECTOR: pa.list_(pa.float32()),
    ColumnKind.DYNAMIC: pa.binary(),
    ColumnKind.FOREIGN: pa.null(),
}


def arrow_type(column_type: ColumnType) -> pa.DataType:
    return _ARROW[column_type.kind]


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([(column.name, arrow_type(column.type)) for column in columns])
