"""The contract of values through the doors: every case of tests/data/coercion_cases.json, read back
by Spark and by pyiceberg."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests

from moraine.ingest.columns import Column
from support.coercion_cases import (
    COLUMNS,
    LINES,
    VALUE_COLUMNS,
    VALUES,
    in_order,
    read_back,
    spark_columns,
    value_line,
    value_row,
)
from support.ingest import DATABASE, Door, IngestSite, new_table
from support.kafka import Broker
from support.kafka_reading import Topic

GOOD = [number for number, case in enumerate(VALUES) if not case.error]
BAD = {value_line(number): case.error for number, case in enumerate(VALUES) if case.error}
Rows = list[dict[str, Any]]


def make_table(site: IngestSite, columns: Sequence[Column]) -> str:
    table = new_table()
    site.tables().create(DATABASE, table, columns)
    return table


def check_rows(site: IngestSite, table: str, columns: Sequence[Column], expected: Rows) -> None:
    by_spark = site.select(f"SELECT {spark_columns(columns)} FROM {{db}}.{table}")
    assert in_order(by_spark) == in_order(expected)
    by_pyiceberg = read_back(site.tables().load(DATABASE, table).scan().to_arrow())
    assert in_order(by_pyiceberg) == in_order(expected)


# --- REST -----------------------------------------------------------------------------------


def check_rest(
    site: IngestSite,
    door: Door,
    columns: Sequence[Column],
    good: Sequence[bytes],
    expected: Rows,
    bad: dict[bytes, str | None],
) -> None:
    table = make_table(site, columns)

    def send(body: bytes) -> requests.Response:
        return door.send(table, body, create=False, evolve=False)

    with ThreadPoolExecutor(16) as pool:
        refused = list(pool.map(send, bad))
    for response, (body, fragment) in zip(refused, bad.items(), strict=True):
        assert response.status_code == 400, (body, response.text)
        error = response.json()["error"]
        assert error["code"] == "invalid_line", (body, error)
        assert str(fragment) in error["message"], body
    assert site.tables().load(DATABASE, table).current_snapshot() is None

    accepted = send(b"\n".join(good))
    assert accepted.status_code == 200, accepted.text
    assert accepted.json()["rows_ingested"] == len(expected)
    check_rows(site, table, columns, expected)


def test_values_through_rest(site: IngestSite, door: Door) -> None:
    good = [value_line(number) for number in GOOD]
    expected = [value_row(number) for number in GOOD]
    check_rest(site, door, VALUE_COLUMNS, good, expected, BAD)


def test_lines_through_rest(site: IngestSite, door: Door) -> None:
    good = [case for case in LINES if not case.error]
    bad = {case.body: case.error for case in LINES if case.error}
    expected = [row for case in good for row in case.rows]
    check_rest(site, door, COLUMNS, [case.body for case in good], expected, bad)


# --- Kafka ----------------------------------------------------------------------------------


def check_kafka(
    site: IngestSite,
    broker: Broker,
    columns: Sequence[Column],
    good: Sequence[bytes],
    expected: Rows,
    bad: dict[bytes, str | None],
) -> None:
    table = make_table(site, columns)
    broker.create_topic(table, partitions=2)
    topic = Topic(site, broker, table, table)
    topic.send(*good, *bad)

    assert topic.read() == len(good) + len(bad)

    check_rows(site, table, columns, expected)
    letters = {letter["value"]: letter["error"] for letter in topic.letters()}
    assert letters.keys() == bad.keys()
    for body, fragment in bad.items():
        assert str(fragment) in letters[body], body


def test_values_through_kafka(site: IngestSite, broker: Broker) -> None:
    good = [value_line(number) for number in GOOD]
    expected = [value_row(number) for number in GOOD]
    check_kafka(site, broker, VALUE_COLUMNS, good, expected, BAD)


def test_lines_through_kafka(site: IngestSite, broker: Broker) -> None:
    """A message is one object: several lines are several objects, but one may be on several."""
    single = [case for case in LINES if b"\n" not in case.body.strip(b" \t\r\n")]
    good = [case for case in single if not case.error]
    bad = {case.body: case.error for case in single if case.error}
    two = next(case for case in LINES if case.name == "two lines")
    over_two = next(case for case in LINES if case.name == "an object over two lines")
    expected = [row for case in good for row in case.rows]
    expected.append({**dict.fromkeys(column.name for column in COLUMNS), "id": 1})
    bodies = [*(case.body for case in good), over_two.body]
    check_kafka(site, broker, COLUMNS, bodies, expected, {**bad, two.body: "more than one"})
