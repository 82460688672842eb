"""What a log record of OTLP becomes in the table."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from moraine.errors import PayloadTooLarge
from moraine.ingest.columns import ColumnKind
from moraine.ingest.otlp.records import COLUMNS, LogRows, to_rows

NOON = 1_763_294_400_000_000_000


def text(value: str) -> AnyValue:
    return AnyValue(string_value=value)


def pair(key: str, value: AnyValue | str) -> KeyValue:
    return KeyValue(key=key, value=text(value) if isinstance(value, str) else value)


def request_of(
    *records: LogRecord, resource: list[KeyValue] | None = None, scope: list[KeyValue] | None = None
) -> ExportLogsServiceRequest:
    scope_logs = ScopeLogs(scope=InstrumentationScope(attributes=scope), log_records=records)
    resource_logs = ResourceLogs(resource=Resource(attributes=resource), scope_logs=[scope_logs])
    return ExportLogsServiceRequest(resource_logs=[resource_logs])


def row_of(record: LogRecord, **attributes: list[KeyValue]) -> dict[str, Any]:
    rows = to_rows(request_of(record, **attributes))
    assert rows.rejects.count == 0
    [line] = rows.body.splitlines()
    return dict(json.loads(line))


def test_a_whole_record() -> None:
    record = LogRecord(
        time_unix_nano=NOON,
        observed_time_unix_nano=NOON + 5,
        severity_number=9,
        severity_text="INFO",
        body=text("grüß dich\nwelt"),
        trace_id=bytes(range(16)),
        span_id=bytes(range(8)),
        attributes=[pair("user", "ada")],
    )
    assert row_of(record, resource=[pair("service.name", "shop")]) == {
        "timestamp": NOON,
        "severity_number": 9,
        "severity_text": "INFO",
        "body": "grüß dich\nwelt",
        "service_name": "shop",
        "trace_id": "000102030405060708090a0b0c0d0e0f",
        "span_id": "0001020304050607",
        "attributes_json": {"service.name": "shop", "user": "ada"},
    }


def test_an_empty_record_is_a_row_of_nulls() -> None:
    assert row_of(LogRecord()) == {
        **{column.name: None for column in COLUMNS},
        "attributes_json": {},
    }


def test_a_row_has_the_columns_of_the_table_in_their_order() -> None:
    assert list(row_of(LogRecord())) == [column.name for column in COLUMNS]
    assert COLUMNS[-1].type.kind is ColumnKind.DYNAMIC


@pytest.mark.parametrize(
    ("time", "observed", "expected"),
    [(1, 2, 1), (0, 2, 2), (0, 0, None), (2**63 - 1, 0, 2**63 - 1)],
)
def test_the_time_is_that_of_the_event_or_of_its_observation(
    time: int, observed: int, expected: int | None
) -> None:
    record = LogRecord(time_unix_nano=time, observed_time_unix_nano=observed)
    assert row_of(record)["timestamp"] == expected


@pytest.mark.parametrize(
    ("value", "body"),
    [
        (AnyValue(), None),
        (text(""), ""),
        (AnyValue(bool_value=False), "false"),
        (AnyValue(int_value=-(2**63)), "-9223372036854775808"),
        (AnyValue(double_value=0.5), "0.5"),
        (AnyValue(double_value=math.nan), '"NaN"'),
        (AnyValue(bytes_value=b"\x00\xff"), '"AP8="'),
        (AnyValue(array_value=ArrayValue(values=[text("a"), AnyValue()])), '["a",null]'),
        (AnyValue(kvlist_value=KeyValueList(values=[pair("ü", "ö")])), '{"ü":"ö"}'),
    ],
)
def test_a_body_that_is_no_text_is_its_json(value: AnyValue, body: str | None) -> None:
    assert row_of(LogRecord(body=value))["body"] == body


def test_numbers_that_json_has_not_are_named() -> None:
    numbers = {"a": math.inf, "b": -math.inf, "c": math.nan, "d": 1e308}
    attributes = [pair(name, AnyValue(double_value=value)) for name, value in numbers.items()]
    assert row_of(LogRecord(attributes=attributes))["attributes_json"] == {
        "a": "Infinity",
        "b": "-Infinity",
        "c": "NaN",
        "d": 1e308,
    }


def test_the_nearest_attribute_wins() -> None:
    row = row_of(
        LogRecord(attributes=[pair("c", "record"), pair("d", "first"), pair("d", "last")]),
        resource=[pair("a", "resource"), pair("b", "resource"), pair("c", "resource")],
        scope=[pair("b", "scope"), pair("c", "scope")],
    )
    assert row["attributes_json"] == {"a": "resource", "b": "scope", "c": "record", "d": "last"}


def test_the_service_is_that_of_the_resource_alone() -> None:
    row = row_of(LogRecord(attributes=[pair("service.name", "another")]))
    assert row["service_name"] is None
    assert row["attributes_json"] == {"service.name": "another"}


def test_an_id_of_zeros_is_none() -> None:
    row = row_of(LogRecord(trace_id=bytes(16), span_id=bytes(8)))
    assert (row["trace_id"], row["span_id"]) == (None, None)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (LogRecord(trace_id=b"short"), "trace_id has 5 bytes, not 16"),
        (LogRecord(span_id=bytes(16)), "span_id has 16 bytes, not 8"),
        (LogRecord(time_unix_nano=2**63), "9223372036854775808 ns, is past the year 2262"),
        (LogRecord(observed_time_unix_nano=2**64 - 1), "is past the year 2262"),
    ],
)
def test_what_no_row_can_hold_is_rejected_alone(record: LogRecord, reason: str) -> None:
    good = LogRecord(body=text("good"))
    rows = to_rows(request_of(good, record, good))
    assert (rows.count, rows.rejects.count) == (2, 1)
    assert rows.rejects.message.startswith("resource_logs[0].scope_logs[0].log_records[1]: ")
    assert reason in rows.rejects.message
    assert len(rows.body.splitlines()) == 2


def test_of_many_rejected_only_the_first_are_named() -> None:
    rows = to_rows(request_of(*[LogRecord(trace_id=b"short")] * 1000))
    assert (rows.count, rows.rejects.count, rows.body) == (0, 1000, b"")
    assert rows.rejects.message.count("trace_id") == 3
    assert rows.rejects.message.endswith(" and others")


def test_a_shared_attribute_cannot_blow_a_request_up() -> None:
    request = request_of(*[LogRecord()] * 1000, resource=[pair("large", "x" * 10_000)])
    assert request.ByteSize() < 20_000
    with pytest.raises(PayloadTooLarge, match="more than 1000000 bytes"):
        to_rows(request, max_bytes=1_000_000)


def keys(*records: LogRecord) -> tuple[str, str]:
    """Of the same request, come twice."""

    def rows() -> LogRows:
        again = ExportLogsServiceRequest.FromString(request_of(*records).SerializeToString())
        return to_rows(again)

    return rows().key(), rows().key()


def test_a_second_try_has_the_same_key() -> None:
    first, second = keys(LogRecord(time_unix_nano=NOON), LogRecord(observed_time_unix_nano=NOON))
    assert first == second
    assert first.startswith("otlp:")
    assert len(first) == len("otlp:") + 64
    assert first != keys(LogRecord(time_unix_nano=NOON + 1))[0]


def test_records_without_a_time_are_never_taken_for_a_second_try() -> None:
    first, second = keys(LogRecord(time_unix_nano=NOON), LogRecord(body=text("again")))
    assert first != second
