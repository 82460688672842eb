"""Many lines at once with PyArrow's JSON reader, wherever its result equals that of `row_builder`.

A block in doubt is left to `row_builder`: the result is None. PyArrow refuses duplicate names,
values of another type, numbers out of range, halves of surrogate pairs and control characters. It
accepts several objects on a line, objects over several lines, NaN and bytes that are not UTF-8, and
ignores fields outside its schema; these are checked here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from moraine.ingest.coercion.json_lines import (
    MAX_DEPTH,
    WHITESPACE,
    LineRejected,
    read_line,
    too_deep,
)
from moraine.ingest.coercion.row_builder import merged, props_index
from moraine.ingest.columns import PROPS, Column, ColumnKind, arrow_schema, arrow_type

_SAMPLED = 8
"""Lines that are read to see how a column's values are written."""
_MAX_COUNTED = 64
"""The maximum number of names for which the whole block is searched."""
_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
# Only years that are completely in range: Arrow does not detect an overflow.
_TIMESTAMP = (
    r"^(?:16(?:7[89]|[89]\d)|1[789]\d\d|2[01]\d\d|22(?:[0-5]\d|6[01]))-\d\d-\d\d"
    r"T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)$"
)
_OTHER_THAN_STRING = "changed from string to"
"""PyArrow's message for a string column with another value in it."""
_MAX_BYTES = 2**30
"""Arrow counts bytes in 31 bits."""
_NANOSECONDS = pa.timestamp("ns", tz="UTC")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# Only these escapes can spell a plain name, and a name follows a brace or a comma.
_ESCAPED_LETTER = re.compile(rb"\\u00[2-7]")
_ESCAPE_IN_NAME = re.compile(rb'[{,][ \t\r\n]*"[^"\\]*+\\')


class Doubt(Exception):
    """The block must be read line by line."""


class FastReader:
    def __init__(self, columns: Sequence[Column], *, keep_unknown: bool) -> None:
        self._columns = columns
        self._names = {column.name for column in columns}
        self._schema = arrow_schema(columns)
        self._keep_unknown = keep_unknown
        self._has_props = props_index(columns) is not None
        self.unknown: dict[str, None] = {}
        """Unknown fields of all blocks so far, in the order of their first occurrence."""
        self._texts = dict.fromkeys(c.name for c in columns if c.type.kind is ColumnKind.TEXT)
        self._ambiguous = [
            c for c in columns if c.type.kind in (ColumnKind.TIMESTAMP, ColumnKind.TEXT)
        ]

    def read(self, block: bytes) -> pa.Table | None:
        """The rows, if there is one object per line and no empty line between them; else None."""
        body = block.strip(WHITESPACE)
        if b"\r" in body:
            body = body.replace(b"\r\n", b"\n")
        if not body:
            return self._schema.empty_table()
        try:
            lines = _count_objects(body)
            if not body.isascii():
                body.decode()  # raises unless it is UTF-8
            types = self._choose_types(body)
            try:
                return self._read(body, lines, types)
            except pa.ArrowInvalid as error:
                if not (self._texts and _OTHER_THAN_STRING in str(error)):
                    raise
                return self._read(body, lines, types | self._texts)
        except (Doubt, LineRejected, UnicodeError, pa.ArrowException, msgspec.DecodeError):
            return None

    def _read(self, body: bytes, lines: int, types: dict[str, pa.DataType | None]) -> pa.Table:
        raw_names = {column.name for column in self._columns if types[column.name] is None}
        found, has_unknown = self._parse(body, types)
        if found.num_rows != lines:
            raise Doubt
        raw_values: dict[str, pa.Array[Any]] = {}
        if raw_names or has_unknown:
            raw_values = self._raw_values(body, lines, raw_names)
        arrays = [
            raw_values[column.name]
            if column.name in raw_values
            else _stored(column, _only_chunk(found.column(column.name)))
            for column in self._columns
        ]
        if any(
            column.required and array.null_count
            for column, array in zip(self._columns, arrays, strict=True)
        ):
            raise Doubt
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _choose_types(self, body: bytes) -> dict[str, pa.DataType | None]:
        """The type PyArrow reads each column as; None for a column that is stored as sent."""
        samples = self._sample(body)
        types: dict[str, pa.DataType | None] = {}
        for column in self._columns:
            sample = samples.get(column.name, '""')
            match column.type.kind:
                case ColumnKind.TIMESTAMP:
                    types[column.name] = pa.string() if sample.startswith('"') else pa.int64()
                case ColumnKind.TEXT:
                    types[column.name] = pa.string() if sample.startswith('"') else None
                case ColumnKind.VECTOR:
                    types[column.name] = pa.list_(pa.float64())
                case ColumnKind.DYNAMIC:
                    # If it is there after all, spelled with escapes, only null is accepted.
                    there = f'"{column.name}"'.encode() in body
                    types[column.name] = None if there else pa.null()
                case _:
                    types[column.name] = arrow_type(column.type)
        return types

    def _sample(self, body: bytes) -> dict[str, str]:
        """The first value of each column whose values can be written in more than one way."""
        samples: dict[str, str] = {}
        if not self._ambiguous:
            return samples
        start = 0
        for _ in range(_SAMPLED):
            end = body.find(b"\n", start)
            for member in read_line(body[start : end if end >= 0 else len(body)], 1):
                if member.value is not None:
                    samples.setdefault(member.name, member.raw)
            if end < 0 or all(column.name in samples for column in self._ambiguous):
                break
            start = end + 1
        return samples

    def _parse(self, body: bytes, types: dict[str, pa.DataType | None]) -> tuple[pa.Table, bool]:
        """What PyArrow reads, and whether there may be fields outside its schema."""
        schema = pa.schema([(name, type_) for name, type_ in types.items() if type_ is not None])
        if len(schema) < len(types):
            return _read_json(body, schema, "ignore"), True
        try:
            return _read_json(body, schema, "error"), False
        except pa.ArrowInvalid as error:
            if "unexpected field" not in str(error):
                raise
        return _read_json(body, schema, "ignore"), True

    def _raw_values(self, body: bytes, lines: int, raw_names: set[str]) -> dict[str, pa.Array[Any]]:
        """The columns that are stored as sent, and checks of the fields that PyArrow ignored."""
        if body.count(b"{") + body.count(b"[") - lines >= MAX_DEPTH and any(
            map(too_deep, body.split(b"\n"))
        ):
            raise Doubt
        rows = _RAW_MEMBERS.decode_lines(body)
        unknown = set().union(*rows) - self._names
        _check_once(body, rows, unknown | raw_names)
        values = {
            column.name: _raw_array(column, [row.get(column.name) for row in rows])
            for column in self._columns
            if column.name in raw_names
        }
        if unknown and self._keep_unknown:
            unknown_names = [[name for name in row if name in unknown] for row in rows]
            self.unknown.update(dict.fromkeys(chain.from_iterable(unknown_names)))
            if self._has_props:
                values[PROPS] = _props_array(rows, unknown_names)
        return values


def _count_objects(body: bytes) -> int:
    """The number of lines, if each has one object, as far as visible without parsing."""
    if len(body) > _MAX_BYTES:
        raise Doubt
    if not (body.startswith(b"{") and body.endswith(b"}")):
        raise Doubt
    # This takes a sixth of the time of two counts.
    characters = np.frombuffer(body, np.uint8)
    breaks = np.flatnonzero(characters == ord("\n"))
    if (characters[breaks - 1] != ord("}")).any() or (characters[breaks + 1] != ord("{")).any():
        raise Doubt
    return len(breaks) + 1


def _read_json(body: bytes, schema: pa.Schema, unexpected: Literal["error", "ignore"]) -> pa.Table:
    return pyarrow.json.read_json(
        pa.BufferReader(body),  # type: ignore[arg-type]
        # One block, so that each column is one array.
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(body) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior=unexpected
        ),
    )


def _check_once(body: bytes, rows: Sequence[dict[str, msgspec.Raw]], names: set[str]) -> None:
    """Check that no line has one of these names twice: PyArrow does not look at them."""
    if _ESCAPED_LETTER.search(body) and _ESCAPE_IN_NAME.search(body):
        raise Doubt
    if len(names) > _MAX_COUNTED:
        raise Doubt
    for name in names:
        if not _PLAIN_NAME.fullmatch(name):
            raise Doubt
        if body.count(f'"{name}"'.encode()) != sum(name in row for row in rows):
            raise Doubt


def _raw_array(column: Column, raws: Sequence[msgspec.Raw | None]) -> pa.Array[Any]:
    values = [None if raw is None else bytes(raw) for raw in raws]
    values = [None if value == b"null" else value for value in values]
    if column.type.kind is ColumnKind.DYNAMIC:
        return pa.array(values, pa.binary())
    return pa.array(
        [
            value if value is None or not value.startswith(b'"') else msgspec.json.decode(value)
            for value in values
        ],
        pa.string(),
    )


def _props_array(
    rows: Sequence[dict[str, msgspec.Raw]], unknown_names: Sequence[Sequence[str]]
) -> pa.Array[Any]:
    values: list[bytes | None] = []
    for row, names in zip(rows, unknown_names, strict=True):
        own = bytes(row.get(PROPS, b"null"))
        known = None if own == b"null" else own
        members = ((name, f'"{name}"', bytes(row[name]).decode()) for name in names)
        values.append(merged(known, members) if names else known)
    return pa.array(values, pa.binary())


def _only_chunk(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    if column.num_chunks != 1:
        raise Doubt
    return cast("pa.Array[Any]", column.chunk(0))


def _stored(column: Column, found: pa.Array[Any]) -> pa.Array[Any]:
    match column.type.kind:
        case ColumnKind.REAL:
            _check_finite(found)
        case ColumnKind.TIMESTAMP:
            return _timestamps(found)
        case ColumnKind.VECTOR:
            return _vectors(found, column.type.length)
        case ColumnKind.DYNAMIC:
            return pa.nulls(len(found), pa.binary())
        case _:
            pass
    return found


def _check_finite(numbers: pa.Array[Any]) -> None:
    if pc.all(pc.is_finite(numbers)).as_py() is False:
        raise Doubt


def _timestamps(found: pa.Array[Any]) -> pa.Array[Any]:
    if pa.types.is_string(found.type):
        if pc.all(pc.match_substring_regex(found, _TIMESTAMP)).as_py() is False:
            raise Doubt
        found = found.cast(_NANOSECONDS).view(pa.int64())
    missing = found.is_null().to_numpy(zero_copy_only=False) if found.null_count else None
    # With NumPy, because Arrow divides towards zero.
    microseconds: pa.Array[Any] = pa.array(found.fill_null(0).to_numpy() // 1000, mask=missing)
    return microseconds.view(pa.timestamp("us", tz="UTC"))


def _vectors(found: pa.Array[Any], length: int) -> pa.Array[Any]:
    if pc.all(pc.equal(pc.list_value_length(found), pa.scalar(length))).as_py() is False:
        raise Doubt
    vectors: Any = found.cast(pa.list_(pa.float32()), safe=False)
    elements = vectors.flatten()
    if elements.null_count:
        raise Doubt
    _check_finite(elements)
    return cast("pa.Array[Any]", vectors)
