"""Lines made into rows one by one: slow, and exact about what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from moraine.ingest.coercion.arrow_types import arrow_type, schema_of
from moraine.ingest.coercion.json_lines import Member, read_line
from moraine.ingest.coercion.props import merged, place_of_props
from moraine.ingest.coercion.rejection import LineRejected, Unfit
from moraine.ingest.coercion.values import expectation, rule_of
from moraine.ingest.columns import Column, Kind


class Rows:
    """The rows of some lines, all of them or those that fit, as the caller likes."""

    def __init__(self, columns: Sequence[Column], *, keep_unknown: bool) -> None:
        self._columns = columns
        self._places = {
            column.name: (place, column, rule_of(column.type))
            for place, column in enumerate(columns)
        }
        self._required = [(n, column) for n, column in enumerate(columns) if column.required]
        self._keep_unknown = keep_unknown
        self._props = place_of_props(columns)
        self._rows: list[list[Any]] = []
        self.unknown: dict[str, None] = {}
        """In the order of first sight."""

    def add(self, line: bytes, number: int) -> None:
        """Raises LineRejected, and then has added nothing."""
        row: list[Any] = [None] * len(self._columns)
        strangers: list[Member] = []
        for member in read_line(line, number):
            if member.name not in self._places:
                strangers.append(member)
            elif member.value is not None:
                place, column, rule = self._places[member.name]
                try:
                    row[place] = rule(member.value, member.raw)
                except Unfit as unfit:
                    raise LineRejected(
                        number, column.name, member.raw, expectation(column.type), str(unfit)
                    ) from None
        if self._keep_unknown and strangers and self._props is not None:
            row[self._props] = merged(
                row[self._props], [(m.name, m.name_as_sent, m.raw) for m in strangers]
            )
        for place, column in self._required:
            if row[place] is None:
                raise LineRejected(
                    number,
                    column.name,
                    None,
                    expectation(column.type),
                    "a required value is missing",
                )
        if self._keep_unknown:
            self.unknown.update((stranger.name, None) for stranger in strangers)
        self._rows.append(row)

    def table(self) -> pa.Table:
        by_column = zip(*self._rows, strict=True) if self._rows else ([] for _ in self._columns)
        arrays = [
            _array(column, values) for column, values in zip(self._columns, by_column, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=schema_of(self._columns))


def _array(column: Column, values: Sequence[Any]) -> pa.Array[Any]:
    if column.type.kind is Kind.TIMESTAMP:
        return pa.array(values, pa.int64()).cast(arrow_type(column.type))
    return pa.array(values, arrow_type(column.type))
