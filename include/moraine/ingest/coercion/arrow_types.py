"""What each column's type is in Arrow."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from moraine.ingest.columns import Column, ColumnType, Kind

_ARROW: dict[Kind, pa.DataType] = {
    Kind.BOOL: pa.bool_(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.REAL: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.TEXT: pa.string(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    # Not of fixed size: Iceberg has no such type.
    Kind.VECTOR: pa.list_(pa.float32()),
    Kind.DYNAMIC: pa.binary(),
    Kind.FOREIGN: pa.null(),
}


def arrow_type(column_type: ColumnType) -> pa.DataType:
    return _ARROW[column_type.kind]


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([(column.name, arrow_type(column.type)) for column in columns])
