"""Generated lines: the fast reader and the row builder agree on them, and neither fails."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moraine.ingest.coercion import LineRejected, coerce, coerce_each
from moraine.ingest.coercion.fast_reader import FastReader
from moraine.ingest.coercion.row_builder import RowBuilder
from moraine.ingest.columns import Column, ColumnKind, ColumnType
from support.coercion_cases import LINES, VALUES

EXAMPLES = int(os.environ.get("COERCION_EXAMPLES", "45"))
"""Few with every change; a thorough search is for those who change the readers."""
quickly = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)

COLUMNS = [
    Column("b", ColumnType(ColumnKind.BOOL)),
    Column("i", ColumnType(ColumnKind.INT)),
    Column("l", ColumnType(ColumnKind.LONG)),
    Column("r", ColumnType(ColumnKind.REAL)),
    Column("s", ColumnType(ColumnKind.STRING)),
    Column("w", ColumnType(ColumnKind.TEXT)),
    Column("t", ColumnType(ColumnKind.TIMESTAMP)),
    Column("v", ColumnType(ColumnKind.VECTOR, 3)),
    Column("d", ColumnType(ColumnKind.DYNAMIC)),
    Column("props", ColumnType(ColumnKind.DYNAMIC)),
    Column("f", ColumnType(ColumnKind.FOREIGN, foreign_name="date")),
]
# Without any that has its first line looked at by the other reader.
DIRECT = COLUMNS[:5]
ONLY_TYPED = [c for c in COLUMNS if c.type.kind not in (ColumnKind.DYNAMIC, ColumnKind.TEXT)]
REQUIRED = [Column("l", ColumnType(ColumnKind.LONG), required=True), *COLUMNS[3:7]]

finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
).map(json.dumps)
spaces = st.sampled_from(["", "", "", " ", "\t", "\r", " \r "])


def value_of(column: Column) -> st.SearchStrategy[str]:
    """Mostly what fits, so that whole blocks do."""
    fitting = [c.json for c in VALUES if c.type.kind is column.type.kind and c.error is None]
    if column.type.kind is ColumnKind.VECTOR:
        fitting = [c.json for c in VALUES if c.type == column.type and c.error is None]
    if column.type.kind is ColumnKind.FOREIGN:
        fitting = ["null"]
    own = {
        ColumnKind.INT: st.integers(-(2**31), 2**31 - 1).map(str),
        ColumnKind.LONG: st.integers(-(2**63), 2**63 - 1).map(str),
        ColumnKind.REAL: finite.map(json.dumps),
        ColumnKind.STRING: st.text(max_size=8).map(json.dumps),
        ColumnKind.DYNAMIC: json_values,
    }
    return st.sampled_from(fitting) | own.get(column.type.kind, st.nothing())


VALUES_OF = {column.name: value_of(column) for column in COLUMNS}
STRANGERS = ["x", "y-z", "ä", "props2", "\\u0078"]


@st.composite
def objects(draw: st.DrawFn, names: list[str], strangers: list[str]) -> str:
    members = []
    columns = [c for c in COLUMNS if c.name in names]
    for column in draw(st.lists(st.sampled_from(columns), max_size=5, unique=True)):
        members.append((column.name, draw(VALUES_OF[column.name])))
    if strangers:
        for name in draw(st.lists(st.sampled_from(strangers), max_size=2)):
            members.append((name, draw(json_values)))
    space = draw(spaces)
    return (
        "{"
        + ",".join(f'{space}"{name}"{space}:{space}{value}{space}' for name, value in members)
        + "}"
    )


@st.composite
def blocks(draw: st.DrawFn) -> bytes:
    """Lines of some of the columns, with or without unknown fields."""
    names = draw(st.lists(st.sampled_from([c.name for c in COLUMNS]), min_size=1, unique=True))
    strangers = draw(st.sampled_from([[], [], ["x", "y-z"], STRANGERS]))
    found = draw(st.lists(objects(names, strangers), min_size=1, max_size=5))
    between = draw(st.sampled_from(["\n", "\n", "\r\n", " \n", "\n\n"]))
    return between.join(found).encode("utf-8", "surrogatepass")


FRAGMENTS = [
    *(
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\n",
        b"\r",
        b" ",
        b"\x00",
        b"\x1f",
        b"\xff",
    ),
    *(b"NaN", b"-Infinity", b"Inf", b"nan", b"1.0", b"1e400", b"-0", b"01", b"null", b"true"),
    *(b'"l":1,', b'"d":1,', b'"x":1,', b'"props":{},', b'"\\u0064":1,', b'"\\u0078":1,', b'"a":1,'),
    *(
        b"}{",
        b"}\n{",
        b"\\ud800",
        b"\\udc00",
        b"\\u0000",
        b"\xef\xbb\xbf",
        b"\xc3",
        b"\xed\xa0\x80",
    ),
    *(b'"t":"2024-01-01T00:00:60Z",', b'"t":"1600-01-01T00:00:00Z",', b'"t":7,', b"[" * 250),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    block = draw(blocks())
    for _ in range(draw(st.integers(1, 2))):
        start = draw(st.integers(0, len(block)))
        end = min(len(block), start + draw(st.sampled_from([0, 0, 0, 1, 3])))
        block = block[:start] + draw(st.sampled_from([b"", *FRAGMENTS])) + block[end:]
    return block


def one_by_one(
    block: bytes, columns: list[Column], keep_unknown: bool
) -> tuple[pa.Table, list[str]]:
    rows = RowBuilder(columns, keep_unknown=keep_unknown)
    for number, line in enumerate(block.split(b"\n"), 1):
        if line.strip(b" \t\r\n"):
            rows.add(line, number)
    return rows.table(), list(rows.unknown)


def assert_agreement(block: bytes, columns: list[Column], keep_unknown: bool) -> None:
    """Whatever is read at once is read the same one by one."""
    fast = FastReader(columns, keep_unknown=keep_unknown)
    table = fast.read(block)
    if table is not None:
        table.validate(full=True)
        expected, unknown = one_by_one(block, columns, keep_unknown)
        assert table.equals(expected)
        assert list(fast.unknown) == unknown


@quickly
@given(blocks(), st.sampled_from([COLUMNS, DIRECT, ONLY_TYPED, REQUIRED]), st.booleans())
def test_both_ways_of_reading_agree(
    block: bytes, columns: list[Column], keep_unknown: bool
) -> None:
    assert_agreement(block, columns, keep_unknown)


@quickly
@given(damaged(), st.sampled_from([COLUMNS, DIRECT, ONLY_TYPED, REQUIRED]), st.booleans())
def test_both_ways_of_reading_agree_on_what_is_damaged(
    block: bytes, columns: list[Column], keep_unknown: bool
) -> None:
    assert_agreement(block, columns, keep_unknown)


def test_both_ways_of_reading_agree_on_every_case() -> None:
    for case in VALUES:
        assert_agreement(case.line("value"), [Column("value", case.type)], True)
    for line in LINES:
        assert_agreement(line.body, COLUMNS, True)


@quickly
@given(damaged() | st.binary(max_size=60) | st.text(max_size=30).map(str.encode))
def test_nothing_but_a_refusal_is_raised(block: bytes) -> None:
    for keep_unknown in (True, False):
        refused = None
        try:
            coerce(block, COLUMNS, keep_unknown=keep_unknown).table.validate(full=True)
        except LineRejected as rejection:
            refused = rejection
        if refused:
            assert str(refused).isprintable()
            assert 1 <= refused.line <= block.count(b"\n") + 1


@settings(quickly, max_examples=EXAMPLES // 3)
@given(st.lists(damaged() | objects([c.name for c in COLUMNS], []).map(str.encode), max_size=6))
def test_messages_are_kept_or_listed_each_by_itself(messages: list[bytes]) -> None:
    each = coerce_each(messages, COLUMNS)
    alone = [coerce_each([message], COLUMNS) for message in messages]
    assert [place for place, _ in each.rejected] == [n for n, a in enumerate(alone) if a.rejected]
    assert [str(r) for _, r in each.rejected] == [str(r) for a in alone for _, r in a.rejected]
    assert each.table.to_pylist() == [row for a in alone for row in a.table.to_pylist()]


# --- Round trips ----------------------------------------------------------------------------


def read(column: Column, text: str) -> Any:
    body = f'{{"{column.name}":{text}}}'.encode()
    array = coerce(body, [column], keep_unknown=False).table.column(0)
    [value] = array.cast(pa.int64()).to_pylist() if column.name == "t" else array.to_pylist()
    return value


instants = st.datetimes(datetime(1678, 1, 1), datetime(2261, 12, 31))  # noqa: DTZ001
zones = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@quickly
@given(instants, zones)
def test_a_timestamp_comes_back(instant: datetime, zone: timezone) -> None:
    aware = instant.replace(tzinfo=zone)
    stored = read(COLUMNS[6], json.dumps(aware.isoformat()))
    assert stored == (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@quickly
@given(st.integers(-(2**63), 2**63 - 1))
def test_nanoseconds_are_cut_towards_the_past(nanoseconds: int) -> None:
    assert read(COLUMNS[6], str(nanoseconds)) == nanoseconds // 1000


@quickly
@given(
    finite,
    st.integers(-(2**63), 2**63 - 1),
    st.text(),
    json_values,
)
def test_values_come_back(real: float, long: int, text: str, anything: str) -> None:
    assert repr(read(COLUMNS[3], json.dumps(real))) == repr(real)
    assert read(COLUMNS[2], str(long)) == long
    assert read(COLUMNS[4], json.dumps(text)) == text
    assert read(COLUMNS[5], json.dumps(text, ensure_ascii=False)) == text
    kept = read(COLUMNS[8], anything)
    assert kept == (None if anything == "null" else anything.encode())


@quickly
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3))
def test_vectors_come_back(vector: list[float]) -> None:
    assert read(COLUMNS[7], json.dumps(vector)) == vector
