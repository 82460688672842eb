"""Lines become rows: which unknown fields are stored, what is refused, and with which error."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from moraine.ingest.coercion import LineRejected, blocks, coerce, coerce_each
from moraine.ingest.coercion.fast_reader import FastReader
from moraine.ingest.columns import Column, ColumnKind, ColumnType, arrow_type

ID = Column("id", ColumnType(ColumnKind.LONG))
NAME = Column("name", ColumnType(ColumnKind.STRING))
AT = Column("at", ColumnType(ColumnKind.TIMESTAMP))
PROPS = Column("props", ColumnType(ColumnKind.DYNAMIC))
LATER = Column("later", ColumnType(ColumnKind.TEXT))


def lines(*texts: str) -> bytes:
    return "\n".join(texts).encode()


def kept(*texts: str, columns: list[Column] | None = None) -> tuple[list[Any], tuple[str, ...]]:
    """What is in props, and which names were unknown."""
    coerced = coerce(lines(*texts), columns or [ID, PROPS], keep_unknown=True)
    return coerced.table["props"].to_pylist(), coerced.unknown


def test_the_table_has_the_columns_in_their_order_and_types() -> None:
    columns = [
        *(
            Column(kind.value, ColumnType(kind))
            for kind in ColumnKind
            if kind is not ColumnKind.VECTOR
        ),
        Column("vector", ColumnType(ColumnKind.VECTOR, 3)),
    ]
    expected = pa.schema(
        {
            "bool": pa.bool_(),
            "int": pa.int32(),
            "long": pa.int64(),
            "real": pa.float64(),
            "string": pa.string(),
            "text": pa.string(),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "dynamic": pa.binary(),
            "foreign": pa.null(),
            "vector": pa.list_(pa.float32()),
        }
    )
    for body in (b"", b"{}", b'{"long":1}\n{"x":2}', b'{"timestamp":"1970-01-01t00:00:00z"}'):
        assert coerce(body, columns, keep_unknown=False).table.schema == expected
    assert coerce_each([], columns).table.schema == expected
    assert arrow_type(ColumnType(ColumnKind.LONG)) == pa.int64()


# --- Unknown fields -------------------------------------------------------------------------


def test_unknown_fields_are_kept_in_props_as_sent() -> None:
    assert kept('{"id":1,"a":[1, 2],"b":"\\u00fc","c":1.50}') == (
        [b'{"a":[1, 2],"b":"\\u00fc","c":1.50}'],
        ("a", "b", "c"),
    )


def test_a_row_without_unknown_fields_has_its_own_props_untouched() -> None:
    assert kept('{"props": {"x" : 1} }', '{"id":2}', '{"props":null}', '{"a":null}') == (
        [b'{"x" : 1}', None, None, b'{"a":null}'],
        ("a",),
    )


def test_a_rows_own_members_of_props_come_first_and_win() -> None:
    assert kept('{"b":1,"props":{"own": 0, "a":2},"a":3}', '{"a":1,"props":{ }}') == (
        [b'{"own": 0, "a":2,"b":1}', b'{"a":1}'],
        ("b", "a"),
    )


def test_props_that_are_no_object_become_a_member() -> None:
    assert kept('{"props":[1],"a":2}', '{"props":"x","a":{}}', '{"props":null,"a":2}') == (
        [b'{"props":[1],"a":2}', b'{"props":"x","a":{}}', b'{"a":2}'],
        ("a",),
    )


def test_unknown_names_are_kept_as_spelled() -> None:
    assert kept('{"\\u0061\\"":1,"ä":2}') == ([b'{"\\u0061\\"":1,"\xc3\xa4":2}'], ('a"', "ä"))


def test_unknown_names_are_in_the_order_of_first_sight_over_all_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blocks, "PIECE", 20)
    assert kept('{"z":1,"y":2}', '{"id":1}', '{"a\\u0062":1,"z":2}', '{"m":1}', '{"y":1}')[1] == (
        "z",
        "y",
        "ab",
        "m",
    )


def test_unknown_fields_are_named_also_where_there_is_no_props() -> None:
    text = Column("props", ColumnType(ColumnKind.STRING))
    for columns in ([ID], [ID, text]):
        coerced = coerce(b'{"id":1,"a":2}', columns, keep_unknown=True)
        assert coerced.unknown == ("a",)
        assert coerced.table["id"].to_pylist() == [1]
    assert coerced.table["props"].to_pylist() == [None]


def test_unknown_fields_are_dropped_unless_asked_for() -> None:
    coerced = coerce(b'{"id":1,"a":2}\n{"props":{"b":1},"a":2}', [ID, PROPS], keep_unknown=False)
    assert coerced.unknown == ()
    assert coerced.table["props"].to_pylist() == [None, b'{"b":1}']


# --- What is refused ------------------------------------------------------------------------


def refusal(body: bytes, *columns: Column) -> LineRejected:
    with pytest.raises(LineRejected) as refused:
        coerce(body, columns, keep_unknown=False)
    return refused.value


def test_a_refusal_names_line_column_value_and_expected_type() -> None:
    error = refusal(b'{"id":1}\n\n{"id":1.5}', ID).after(99)
    assert (error.code, error.http_status) == ("invalid_line", 400)
    assert (error.line, error.column, error.value) == (102, "id", "1.5")
    assert error.expected.startswith("long")
    assert str(error) == (
        "Line 102, column id: written with a fraction or an exponent;"
        " expected long: a whole number of 64 bits; got 1.5"
    )


def test_a_refusal_is_short_and_printable_whatever_was_sent() -> None:
    for error in (
        refusal(b'{"id":["\\u001b",' + b"9," * 10_000 + b"9]}", ID),
        refusal(b'{"\x7f\\ud800' + b"n" * 10_000 + b'":1}', ID),
        refusal("{'\u202e\u2028".encode() + b"x" * 10_000, ID),
        refusal(b'{"id":' + b" " * 10_000 + b"x}", ID),
    ):
        assert len(str(error)) < 300
        assert str(error).isprintable()


def test_a_syntax_error_far_into_a_line_shows_the_place() -> None:
    error = refusal(b'{"a":"' + b"x" * 1000 + b'","b":oops}', ID)
    assert error.value is not None
    assert '"b":oops}' in error.value


def test_a_refusal_survives_its_way_between_processes() -> None:
    error = refusal(b'{"id":true}', ID)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("body", [b'{"id":1}\n{"id":null}', b'{"id":1}\n{"name":"x"}'])
def test_a_required_column_must_be_there(body: bytes) -> None:
    required = Column("id", ColumnType(ColumnKind.LONG), required=True)
    error = refusal(body, required, NAME)
    assert (error.line, error.column, error.value) == (2, "id", None)
    assert "missing" in str(error)


def test_required_props_may_be_made_of_unknown_fields() -> None:
    columns = [Column("props", ColumnType(ColumnKind.DYNAMIC), required=True)]
    assert kept('{"a":1}', columns=columns) == ([b'{"a":1}'], ("a",))


def test_a_type_that_ingest_does_not_write_takes_null_only() -> None:
    foreign = Column("x", ColumnType(ColumnKind.FOREIGN, foreign_name="decimal(9,2)"))
    table = coerce(b'{"id":1,"x":null}\n{"id":2}', [ID, foreign], keep_unknown=False).table
    assert table["x"].to_pylist() == [None, None]
    error = refusal(b'{"id":1,"x":1.5}', ID, foreign)
    assert "ingest does not write" in str(error)
    assert error.expected == "decimal(9,2)"


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
@pytest.mark.parametrize("columns", [[ID], [ID, PROPS]], ids=["unknown", "dynamic"])
@pytest.mark.parametrize("ending", [b"", b"}"])
def test_a_million_brackets_are_refused(
    opening: bytes, columns: list[Column], ending: bytes
) -> None:
    body = b'{"id":1}\n{"props":' + opening * 1_000_000 + ending
    assert "more than 200 deep" in str(refusal(body, *columns))


def test_a_million_quotation_marks_are_refused_at_once() -> None:
    for quotes in (b'\\"', b'"'):
        assert refusal(b'{"a":"' + quotes * 1_000_000 + b"[" * 300, ID).line == 1


# --- Pieces ---------------------------------------------------------------------------------


def test_the_line_is_right_in_whatever_piece_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "PIECE", 100)
    monkeypatch.setattr(blocks, "MIN_PIECE", 30)
    good = [f'{{"id":{number}}}' for number in range(100)]
    assert coerce(lines(*good), [ID], keep_unknown=False).table["id"].to_pylist() == [*range(100)]
    for wrong in (0, 1, 17, 50, 98, 99):
        body = lines(*good[:wrong], "", '{"id":"x"}', *good[wrong + 1 :])
        assert refusal(body, ID).line == wrong + 2
        assert refusal(body.replace(b"\n", b"\r\n"), ID).line == wrong + 2


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":1,"name":"a","at":"2024-05-06T07:08:09.5Z"}\n{"id":null}\n{"name":"b"}\n',
        b'{"id":1,"at":"2024-05-06T07:08:09.123456789+02:00"}\r\n{"at":null}\r\n',
        b'{ "id": 1, "at": 1714979289123456789 }\n{}\n',
        '{"name":"Grüße"}\n{"name":"\\u003cb\\u003e"}'.encode(),
        b'{"props":{"a":[1]},"id":1}\n{"props":null}\n{"props":"x"}',
        b'{"id":1}\n{"later":7}\n{"later":"x"}\n{"later":[true]}',
        b'{"later":"x"}\n{"later":null}',
        b'{"later":"x"}\n{"later":1}\n{"later":{"a":null}}',
        b'{"id":1,"stranger":[1]}\n{"other":{}}',
        b"",
        b"\n \n",
    ],
)
@pytest.mark.parametrize("keep_unknown", [True, False])
def test_what_is_usual_is_read_at_once(body: bytes, keep_unknown: bool) -> None:
    columns = [ID, NAME, AT, PROPS, LATER]
    assert FastReader(columns, keep_unknown=keep_unknown).read(body) is not None


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":1}{"id":2}',
        b'{"id":1} {"id":2}\n{"id":3}',
        b'{"id":\n1}',
        b'{"id":1,\n"name":"a"}{"id":2}',
        b'{"id":1}\n{"name":"\xff"}',
        b'{"id":1}\n{"name":"\xed\xa0\x80"}',
        b'{"id":1}\n{"name":"a","x":"\xff"}',
        b'\xef\xbb\xbf{"id":1}',
        b'{"id":1}\n{"r":NaN}',
        b'{"id":1}\n{"r":-Infinity}',
        b'{"id":1}\n{"id":2,"x":NaN}',
        b'{"id":1}\n{"id":2,"x":1,"x":1}',
        b'{"id":1}\n{"id":2,"x":1,"\\u0078":1}',
        b'{"id":1}\n{"id":2,"x":' + b"[" * 200 + b"]" * 200 + b"}",
    ],
)
def test_what_pyarrow_alone_would_take_is_refused(body: bytes) -> None:
    columns = [ID, NAME, Column("r", ColumnType(ColumnKind.REAL))]
    for keep_unknown in (True, False):
        assert FastReader(columns, keep_unknown=keep_unknown).read(body) is None
    refusal(body, *columns)


def test_vectors_are_read_at_once() -> None:
    columns = [ID, Column("v", ColumnType(ColumnKind.VECTOR, 2))]
    table = FastReader(columns, keep_unknown=True).read(b'{"v":[1,2.5]}\n{"v":null}\n{"id":1}')
    assert table is not None
    assert table["v"].to_pylist() == [[1.0, 2.5], None, None]


# --- Messages -------------------------------------------------------------------------------


def test_bad_messages_are_listed_and_the_others_kept() -> None:
    messages = [b'{"id":%d}' % number for number in range(10_000)]
    bad = {
        0: None,
        17: b"",
        18: b"   ",
        4095: b'{"id":"x"}',
        4096: b'{"id":1}\n{"id":2}',
        5000: b'{"id":1}{"id":2}',
        9999: b"\xff",
    }
    sent: list[bytes | None] = [bad.get(place, message) for place, message in enumerate(messages)]
    each = coerce_each(sent, [ID])
    assert [place for place, _ in each.rejected] == list(bad)
    assert each.table["id"].to_pylist() == [n for n in range(10_000) if n not in bad]
    assert "no value" in str(each.rejected[0][1])
    assert each.rejected[3][1].column == "id"


def test_a_message_may_have_several_lines_but_one_object() -> None:
    each = coerce_each([b'{\n "id":\r\n 1\n}\n', b'\n{"id":2}'], [ID])
    assert each.table["id"].to_pylist() == [1, 2]
    assert not each.rejected


def test_a_message_of_two_lines_does_not_stand_in_for_a_missing_one() -> None:
    for messages in ([None, b"{}\n{}"], [b"", b"{}\n{}"], [b"{}\n{}", b""]):
        each = coerce_each(messages, [ID])
        assert each.table.num_rows == 0
        assert [place for place, _ in each.rejected] == [0, 1]


def test_unknown_fields_of_messages_are_dropped() -> None:
    each = coerce_each([b'{"id":1,"a":2}', b'{"props":{"b":1}}'], [ID, PROPS])
    assert each.table["props"].to_pylist() == [None, b'{"b":1}']
