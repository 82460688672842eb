"""A field that has settled to one type gets a column of that type, from now on.

What was written before stays where it is. The old column and the new one stand side by side, and a
read that wants both takes the new one where it is there.
"""

from __future__ import annotations

from dataclasses import dataclass

from moraine.errors import ValidationFailed
from moraine.ingest.columns import PROPS, Column, ColumnType, Kind
from moraine.ingest.schemas import PROMOTED, check_columns, columns_of
from moraine.ingest.tables import IngestTables

_CASTS = {
    Kind.BOOL: "boolean",
    Kind.INT: "int",
    Kind.LONG: "bigint",
    Kind.REAL: "double",
    Kind.TIMESTAMP: "timestamp",
    Kind.STRING: "string",
}


@dataclass(frozen=True, slots=True)
class Promotion:
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

    def apply(self, tables: IngestTables, database: str, table: str) -> Promotion:
        """Add the column and let lines go to it. Once is as good as twice."""
        found = tables.load(database, table)
        columns = {column.name: column for column in columns_of(found.schema())}
        old = columns.get(self.field)
        if old is not None and old.type.kind not in (Kind.TEXT, Kind.STRING):
            raise ValidationFailed(f"{self.field} has a type already: {old.type}.")
        if old is None and PROPS not in columns:
            raise ValidationFailed(f"{database}.{table} has neither {self.field} nor {PROPS}.")
        there = columns.get(self.column)
        if there is not None and there.type != self.type:
            raise ValidationFailed(f"There is a column {self.column} already: {there.type}.")
        tables.widen(found, [self.column], self.type, {f"{PROMOTED}{self.field}": self.column})
        return Promotion(self.field, self.type, self.column, self._read_as(old is not None))

    def _read_as(self, has_column: bool) -> str:
        before = (
            f"`{self.field}`"
            if has_column
            else f"get_json_object(CAST({PROPS} AS STRING), '$.{self.field}')"
        )
        cast = _CASTS[self.type.kind]
        return f"coalesce(`{self.column}`, try_cast({before} AS {cast}))"
