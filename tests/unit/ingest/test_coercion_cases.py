"""The contract of ingest's values, case by case, however the lines are read."""

from __future__ import annotations

from collections import Counter

import pytest

from moraine.ingest.coercion import LineRejected, coerce, coerce_each
from moraine.ingest.coercion.fast_reader import FastReader
from moraine.ingest.columns import Column, ColumnKind, ColumnType, arrow_type
from support.coercion_cases import COLUMNS, LINES, VALUES, LineCase, ValueCase, read_back

ID = Column("id", ColumnType(ColumnKind.LONG))


def test_there_are_enough_cases_of_every_type() -> None:
    counts = Counter(case.type.kind for case in VALUES)
    assert len(VALUES) >= 170
    assert set(counts) == set(ColumnKind) - {ColumnKind.FOREIGN}
    assert min(counts.values()) >= 10


@pytest.mark.parametrize("case", VALUES, ids=str)
def test_a_value_is_stored_or_refused(case: ValueCase) -> None:
    columns = [ID, Column("value", case.type)]
    line = case.line(id=1)
    if case.error:
        with pytest.raises(LineRejected) as refused:
            coerce(line, columns, keep_unknown=False)
        assert case.error in str(refused.value)
        assert str(refused.value).startswith("Line 1")
        assert FastReader(columns, keep_unknown=False).read(line) is None
    else:
        table = coerce(line, columns, keep_unknown=False).table
        assert read_back(table) == [{"id": 1, "value": case.value}]
        assert table.schema.field("value").type == arrow_type(case.type)


@pytest.mark.parametrize("words", sorted({str(case.type.kind) for case in VALUES}))
def test_values_are_the_same_among_others(words: str) -> None:
    """Among values that are written in the usual way, which many lines are read by."""
    for case in (case for case in VALUES if case.type.kind == words):
        columns = [ID, Column("value", case.type)]
        usual = next(c for c in VALUES if c.type == case.type and c.value is not None)
        each = coerce_each([usual.line(id=0), case.line(id=1), b'{"id":2}'], columns)
        rows = [{"id": 0, "value": usual.value}, {"id": 2, "value": None}]
        if case.error:
            [(place, rejection)] = each.rejected
            assert place == 1, case
            assert case.error in str(rejection), case
        else:
            rows.insert(1, {"id": 1, "value": case.value})
            assert not each.rejected, case
        assert read_back(each.table) == rows, case


@pytest.mark.parametrize("case", LINES, ids=str)
def test_lines_become_rows_or_are_refused(case: LineCase) -> None:
    if case.error:
        with pytest.raises(LineRejected) as refused:
            coerce(case.body, COLUMNS, keep_unknown=False)
        assert case.error in str(refused.value)
    else:
        assert read_back(coerce(case.body, COLUMNS, keep_unknown=False).table) == case.rows
