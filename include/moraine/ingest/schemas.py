"""Iceberg schemas as the contract's columns, and the other way round."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from moraine.errors import ValidationFailed
from moraine.ingest.columns import PROPS, TIMESTAMP, Column, ColumnType, Kind

WIDENED = "made by ingest on first sight"
"""The comment of such a column. It tells it from a string column that somebody declared."""
DEFAULT_COLUMNS = (
    Column(TIMESTAMP, ColumnType(Kind.TIMESTAMP)),
    Column("message", ColumnType(Kind.STRING)),
    Column(PROPS, ColumnType(Kind.DYNAMIC)),
)
"""Of a table that is made on first sight. Their names are never given to other fields."""
RESERVED = frozenset(column.name for column in DEFAULT_COLUMNS)
PROMOTED = "moraine.promoted."
"""Properties that say which column takes a field that was promoted."""
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*")
_LONGEST_NAME = 128
_PLAIN: dict[Kind, IcebergType] = {
    Kind.BOOL: BooleanType(),
    Kind.INT: IntegerType(),
    Kind.LONG: LongType(),
    Kind.REAL: DoubleType(),
    Kind.STRING: StringType(),
    Kind.TEXT: StringType(),
    Kind.TIMESTAMP: TimestamptzType(),
    Kind.DYNAMIC: BinaryType(),
}
_KINDS = {type(iceberg): kind for kind, iceberg in _PLAIN.items() if kind is not Kind.TEXT}


def columns_of(schema: Schema) -> tuple[Column, ...]:
    return tuple(Column(field.name, _type_of(field), field.required) for field in schema.fields)


def _type_of(field: NestedField) -> ColumnType:
    if isinstance(field.field_type, ListType) and isinstance(
        field.field_type.element_type, FloatType
    ):
        return ColumnType.parse(field.doc or "") if _is_vector(field) else _foreign(field)
    kind = _KINDS.get(type(field.field_type))
    if kind is None:
        return _foreign(field)
    if kind is Kind.STRING and field.doc == WIDENED:
        return ColumnType(Kind.TEXT)
    return ColumnType(kind)


def _is_vector(field: NestedField) -> bool:
    return bool(field.doc) and str(field.doc).startswith("vector(")


def _foreign(field: NestedField) -> ColumnType:
    return ColumnType(Kind.FOREIGN, words=str(field.field_type))


def iceberg_type(type: ColumnType, element_id: int) -> IcebergType:
    if type.kind is Kind.VECTOR:
        return ListType(element_id, FloatType(), element_required=False)
    return _PLAIN[type.kind]


def comment_of(type: ColumnType) -> str | None:
    """What Iceberg's own types do not say of a column."""
    match type.kind:
        case Kind.VECTOR:
            return str(type)
        case Kind.TEXT:
            return WIDENED
        case _:
            return None


def schema_of(columns: Sequence[Column]) -> Schema:
    """A new table's schema."""
    numbers = iter(range(len(columns) + 1, 10_000_000))
    fields = (
        NestedField(
            number,
            column.name,
            iceberg_type(column.type, next(numbers)),
            required=column.required,
            doc=comment_of(column.type),
        )
        for number, column in enumerate(columns, 1)
    )
    return Schema(*fields)


def check_columns(columns: Sequence[Column]) -> None:
    """For a table that somebody declares."""
    if not columns:
        raise ValidationFailed("A table needs a column.")
    seen: set[str] = set()
    for column in columns:
        if not _IDENTIFIER.fullmatch(column.name) or len(column.name) > _LONGEST_NAME:
            raise ValidationFailed(
                f"{column.name[:50]!r} is no name for a column: lower-case letters, digits and "
                "underscores, no digit first."
            )
        if column.name in seen:
            raise ValidationFailed(f"There are two columns {column.name}.")
        seen.add(column.name)


def can_be_column(name: str) -> bool:
    """Whether a field that nobody declared may become a column."""
    return bool(_IDENTIFIER.fullmatch(name)) and name not in RESERVED and len(name) <= _LONGEST_NAME


def new_columns(wanted: Iterable[Sequence[str]], most: int) -> list[str]:
    """The columns to make for requests that bring these unknown fields, at most so many each."""
    return list(dict.fromkeys(name for names in wanted for name in _chosen(names, most)))


def _chosen(names: Sequence[str], most: int) -> Iterator[str]:
    suitable = (name for name in names if can_be_column(name))
    for _, name in zip(range(most), suitable, strict=False):
        yield name
