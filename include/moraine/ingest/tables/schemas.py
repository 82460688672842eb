"""Iceberg schemas translated to the columns of the contract and back, and how they change. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

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
from moraine.ingest.columns import PROPS, TIMESTAMP, Column, ColumnKind, ColumnType

WIDENED = "made by ingest on first sight"
"""The comment of a column made by widening. It distinguishes it from a declared string column."""
DEFAULT_COLUMNS = (
    Column(TIMESTAMP, ColumnType(ColumnKind.TIMESTAMP)),
    Column("message", ColumnType(ColumnKind.STRING)),
    Column(PROPS, ColumnType(ColumnKind.DYNAMIC)),
)
"""The columns of a table that is created on first use. Widening never takes their names."""
RESERVED = frozenset(column.name for column in DEFAULT_COLUMNS)
PROMOTED = "moraine.promoted."
"""The prefix of table properties that name the column of a promoted field."""
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*")
_MAX_NAME = 128
_PLAIN: dict[ColumnKind, IcebergType] = {
    ColumnKind.BOOL: BooleanType(),
    ColumnKind.INT: IntegerType(),
    ColumnKind.LONG: LongType(),
    ColumnKind.REAL: DoubleType(),
    ColumnKind.STRING: StringType(),
    ColumnKind.TEXT: StringType(),
    ColumnKind.TIMESTAMP: TimestamptzType(),
    ColumnKind.DYNAMIC: BinaryType(),
}
_KINDS = {type(iceberg): kind for kind, iceberg in _PLAIN.items() if kind is not ColumnKind.TEXT}


def columns_of(schema: Schema) -> tuple[Column, ...]:
    return tuple(Column(field.name, _type_of(field), field.required) for field in schema.fields)


def _type_of(field: NestedField) -> ColumnType:
    comment = field.doc or ""
    match field.field_type:
        case ListType(element_type=FloatType()) if comment.startswith("vector("):
            return ColumnType.parse(comment)
        case StringType() if comment == WIDENED:
            return ColumnType(ColumnKind.TEXT)
        case other if kind := _KINDS.get(type(other)):
            return ColumnType(kind)
        case other:
            return ColumnType(ColumnKind.FOREIGN, foreign_name=str(other))


def iceberg_type(type: ColumnType, element_id: int) -> IcebergType:
    if type.kind is ColumnKind.VECTOR:
        return ListType(element_id, FloatType(), element_required=False)
    return _PLAIN[type.kind]


def comment_of(type: ColumnType) -> str | None:
    """What Iceberg's type does not say about a column."""
    match type.kind:
        case ColumnKind.VECTOR:
            return str(type)
        case ColumnKind.TEXT:
            return WIDENED
        case _:
            return None


def schema_of(columns: Sequence[Column]) -> Schema:
    """The schema of a new table."""
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
    """Check the columns of a table that a caller declares."""
    if not columns:
        raise ValidationFailed("A table needs a column.")
    seen: set[str] = set()
    for column in columns:
        if not _IDENTIFIER.fullmatch(column.name) or len(column.name) > _MAX_NAME:
            raise ValidationFailed(
                f"{column.name[:50]!r} is no name for a column: use lower-case letters, digits "
                "and underscores, and no digit first."
            )
        if column.name in seen:
            raise ValidationFailed(f"There are two columns {column.name}.")
        seen.add(column.name)


def can_be_column(name: str) -> bool:
    """Whether a field that was not declared may become a column."""
    return bool(_IDENTIFIER.fullmatch(name)) and name not in RESERVED and len(name) <= _MAX_NAME


def new_columns(wanted: Iterable[Sequence[str]], max_each: int) -> list[str]:
    """The columns to add for requests with these unknown fields, up to a maximum for each."""
    chosen = (name for names in wanted for name in islice(filter(can_be_column, names), max_each))
    return list(dict.fromkeys(chosen))


_CASTS = {
    ColumnKind.BOOL: "boolean",
    ColumnKind.INT: "int",
    ColumnKind.LONG: "bigint",
    ColumnKind.REAL: "double",
    ColumnKind.TIMESTAMP: "timestamp",
    ColumnKind.STRING: "string",
}


@dataclass(frozen=True, slots=True)
class Promotion:
    """A field whose values turned out to have one type gets a column of that type from now on.

    Earlier rows stay as they are. The old column and the new one exist side by side; `read_as` is
    the expression that reads both, and prefers the new one.
    """

    field: str
    type: ColumnType
    column: str
    read_as: str = ""

    @classmethod
    def of(cls, field: str, type: ColumnType, column: str = "") -> Promotion:
        if type.kind not in _CASTS:
            known = ", ".join(kind.value for kind in _CASTS)
            raise ValidationFailed(f"A field can be promoted to {known}.")
        promotion = cls(field, type, column or f"{field}_{type}")
        check_columns([Column(promotion.column, type)])
        if promotion.column == field:
            raise ValidationFailed("The new column needs a name of its own.")
        return promotion

    def checked(self, table: str, columns: Sequence[Column]) -> Promotion:
        """Check it against a table's columns, and add `read_as`."""
        by_name = {column.name: column for column in columns}
        old, new = by_name.get(self.field), by_name.get(self.column)
        if old is not None and old.type.kind not in (ColumnKind.TEXT, ColumnKind.STRING):
            raise ValidationFailed(f"{self.field} has a type already: {old.type}.")
        if old is None and PROPS not in by_name:
            raise ValidationFailed(f"{table} has neither {self.field} nor {PROPS}.")
        if new is not None and new.type != self.type:
            raise ValidationFailed(f"There is a column {self.column} already: {new.type}.")
        before = f"get_json_object(CAST({PROPS} AS STRING), '$.{self.field}')"
        if old is not None:
            before = f"`{self.field}`"
        cast = _CASTS[self.type.kind]
        return replace(self, read_as=f"coalesce(`{self.column}`, try_cast({before} AS {cast}))")
