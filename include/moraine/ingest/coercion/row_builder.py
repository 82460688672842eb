"""Rows built line by line: slow, and exact about what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from moraine.ingest.coercion.json_lines import (
    LineRejected,
    Member,
    Unfit,
    read_line,
    scan_object,
)
from moraine.ingest.coercion.values import expectation, rule_of
from moraine.ingest.columns import PROPS, Column, ColumnKind, arrow_schema, arrow_type


class RowBuilder:
    """Collects rows. The caller decides whether a refused line ends it or is skipped."""

    def __init__(self, columns: Sequence[Column], *, keep_unknown: bool) -> None:
        self._columns = columns
        self._places = {
            column.name: (place, column, rule_of(column.type))
            for place, column in enumerate(columns)
        }
        self._required = [(n, column) for n, column in enumerate(columns) if column.required]
        self._keep_unknown = keep_unknown
        self._props = props_index(columns)
        self._rows: list[list[Any]] = []
        self.unknown: dict[str, None] = {}
        """In the order of their first occurrence."""

    def add(self, line: bytes, number: int) -> None:
        """Raises LineRejected, and adds nothing then."""
        row: list[Any] = [None] * len(self._columns)
        unknown: list[Member] = []
        for member in read_line(line, number):
            if member.name not in self._places:
                unknown.append(member)
            elif member.value is not None:
                place, column, rule = self._places[member.name]
                try:
                    row[place] = rule(member.value, member.raw)
                except Unfit as unfit:
                    raise LineRejected(
                        number, column.name, member.raw, expectation(column.type), str(unfit)
                    ) from None
        if self._keep_unknown and unknown and self._props is not None:
            row[self._props] = merged(
                row[self._props], [(m.name, m.name_as_sent, m.raw) for m in unknown]
            )
        for place, column in self._required:
            if row[place] is None:
                expected, reason = expectation(column.type), "a required value is missing"
                raise LineRejected(number, column.name, None, expected, reason)
        if self._keep_unknown:
            self.unknown.update((member.name, None) for member in unknown)
        self._rows.append(row)

    def table(self) -> pa.Table:
        by_column = zip(*self._rows, strict=True) if self._rows else ([] for _ in self._columns)
        arrays = [
            _array(column, values) for column, values in zip(self._columns, by_column, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=arrow_schema(self._columns))


def _array(column: Column, values: Sequence[Any]) -> pa.Array[Any]:
    if column.type.kind is ColumnKind.TIMESTAMP:
        return pa.array(values, pa.int64()).cast(arrow_type(column.type))
    return pa.array(values, arrow_type(column.type))


def props_index(columns: Sequence[Column]) -> int | None:
    for index, column in enumerate(columns):
        if column.name == PROPS and column.type.kind is ColumnKind.DYNAMIC:
            return index
    return None


def merged(own: bytes | None, unknown: Iterable[tuple[str, str, str]]) -> bytes:
    """The row's own props, then the unknown fields: name, name as sent, and value of each.

    If a name occurs in both, the row's own wins.
    """
    members: list[str] = []
    names: set[str] = set()
    if own is not None:
        text = own.decode()
        if text.startswith("{"):
            found, _ = scan_object(text, 0)
            names = {member.name for member in found}
            # Copied as a whole: nothing that was sent is serialized again.
            if inside := text[1:-1].strip(" \t\r\n"):
                members.append(inside)
        else:
            members.append(f'"{PROPS}":{text}')
    members.extend(f"{as_sent}:{value}" for name, as_sent, value in unknown if name not in names)
    return ("{" + ",".join(members) + "}").encode()
