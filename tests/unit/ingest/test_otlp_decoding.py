"""Decoding of OTLP requests: what is read, what is refused, and with which message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from moraine.errors import BadRequest
from moraine.ingest.otlp.decoding import decode_json, decode_protobuf
from moraine.ingest.otlp.records import to_rows

TRACE_ID = "5b8efff798038103d269b633813fc60c"
SPAN_ID = "eee19b7ec3c1b174"
# The example of the OpenTelemetry specification, shortened.
EXAMPLE = {
    "resourceLogs": [
        {
            "resource": {
                "attributes": [{"key": "service.name", "value": {"stringValue": "my.service"}}]
            },
            "scopeLogs": [
                {
                    "scope": {"name": "my.library", "version": "1.0.0"},
                    "logRecords": [
                        {
                            "timeUnixNano": "1544712660300000000",
                            "observedTimeUnixNano": "1544712660300000000",
                            "severityNumber": 10,
                            "severityText": "Information",
                            "traceId": TRACE_ID.upper(),
                            "spanId": SPAN_ID,
                            "body": {"stringValue": "Example log record"},
                            "attributes": [
                                {"key": "boolean", "value": {"boolValue": True}},
                                {"key": "integer", "value": {"intValue": "10"}},
                                {"key": "bytes", "value": {"bytesValue": "AP8="}},
                                {
                                    "key": "map",
                                    "value": {
                                        "kvlistValue": {
                                            "values": [{"key": "a", "value": {"doubleValue": 0.5}}]
                                        }
                                    },
                                },
                            ],
                            "notYetInvented": {"deep": [1]},
                        }
                    ],
                }
            ],
        }
    ],
    "alsoUnknown": 1,
}


def rows_of(request: ExportLogsServiceRequest) -> list[dict[str, Any]]:
    return [json.loads(line) for line in to_rows(request).body.splitlines()]


def record_with(**fields: Any) -> bytes:
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [fields]}]}]}).encode()


def test_the_example_of_the_specification() -> None:
    [row] = rows_of(decode_json(json.dumps(EXAMPLE).encode()).request)
    assert row == {
        "timestamp": 1544712660300000000,
        "severity_number": 10,
        "severity_text": "Information",
        "body": "Example log record",
        "service_name": "my.service",
        "trace_id": TRACE_ID,
        "span_id": SPAN_ID,
        "attributes_json": {
            "service.name": "my.service",
            "boolean": True,
            "integer": 10,
            "bytes": "AP8=",
            "map": {"a": 0.5},
        },
    }


def test_names_as_in_the_proto_file_are_read_too() -> None:
    body = json.dumps(
        {"resource_logs": [{"scope_logs": [{"log_records": [{"trace_id": TRACE_ID}]}]}]}
    )
    assert rows_of(decode_json(body.encode()).request)[0]["trace_id"] == TRACE_ID


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "The body is not JSON"),
        (b"{", "The body is not JSON"),
        (b'{"resourceLogs": "\xff"}', "The body is not JSON"),
        (b"[" * 100_000, "The body is not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"resourceLogs": 1}', "not an ExportLogsServiceRequest"),
        (b'{"resourceLogs": [1]}', "not an ExportLogsServiceRequest"),
        (record_with(traceId="xyz"), r"resourceLogs\[0\].scopeLogs\[0\].logRecords\[0\].traceId: "),
        (record_with(traceId=TRACE_ID[:-1]), "id in hex"),
        (record_with(spanId=7), "id in hex"),
        (record_with(spanId="ü"), "id in hex"),
        (record_with(timeUnixNano="soon"), "timeUnixNano"),
        (record_with(timeUnixNano=2**64), "timeUnixNano"),
        (record_with(body={"doubleValue": float("nan")}), "NaN"),
        (record_with(body={"stringValue": "\ud800"}), "not an ExportLogsServiceRequest"),
        (record_with(body={"bytesValue": "abcde"}), "not an ExportLogsServiceRequest"),
    ],
)
def test_malformed_json_is_refused_and_the_place_named(body: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as refused:
        decode_json(body)
    assert len(str(refused.value)) < 500


def test_an_id_of_another_length_is_for_the_record_to_be_rejected() -> None:
    rows = to_rows(decode_json(record_with(traceId="abcd")).request)
    assert (rows.count, rows.rejects.count) == (0, 1)


NAMES = """
resourceLogs scopeLogs logRecords resource scope attributes key value traceId spanId body flags
stringValue intValue doubleValue bytesValue kvlistValue arrayValue values timeUnixNano
severityNumber other
"""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES.split()), inner, max_size=4)
    ),
    max_leaves=20,
)


def read_or_refuse(document: Any) -> None:
    try:
        decoded = decode_json(json.dumps(document).encode())
    except BadRequest:
        return
    to_rows(decoded.request)


@given(JSON)
def test_any_json_is_read_or_refused(document: Any) -> None:
    read_or_refuse(document)
    read_or_refuse({"resourceLogs": [{"scopeLogs": [{"logRecords": [document]}]}]})


@given(st.binary())
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for decode in (decode_protobuf, decode_json):
        try:
            decoded = decode(body)
        except BadRequest:
            continue
        to_rows(decoded.request, decoded.rejects)


def broken(message: bytes) -> bytes:
    assert message.count(b"BROKEN") == 1
    return message.replace(b"BROKEN", b"\xff\xfe\xfd\xfc\xfb\xfa")


def logs(*bodies: str, schema_url: str = "") -> ResourceLogs:
    records = [LogRecord(body=AnyValue(string_value=body)) for body in bodies]
    return ResourceLogs(scope_logs=[ScopeLogs(log_records=records)], schema_url=schema_url)


def test_text_that_is_not_utf_8_costs_only_its_record() -> None:
    request = ExportLogsServiceRequest(resource_logs=[logs("a", "BROKEN", "b"), logs("c")])
    decoded = decode_protobuf(broken(request.SerializeToString()))
    assert [row["body"] for row in rows_of(decoded.request)] == ["a", "b", "c"]
    assert decoded.rejects.count == 1
    assert "resource_logs[0].scope_logs[0].log_records[1]: " in decoded.rejects.message
    assert "not UTF-8" in decoded.rejects.message


def test_a_resource_that_is_not_utf_8_costs_its_records() -> None:
    request = ExportLogsServiceRequest(resource_logs=[logs("a", "b"), logs("c")])
    request.resource_logs[0].resource.attributes.add(key="BROKEN")
    decoded = decode_protobuf(broken(request.SerializeToString()))
    assert [row["body"] for row in rows_of(decoded.request)] == ["c"]
    assert decoded.rejects.count == 2


def test_what_is_not_kept_may_be_broken() -> None:
    request = ExportLogsServiceRequest(resource_logs=[logs("a", schema_url="BROKEN")])
    decoded = decode_protobuf(broken(request.SerializeToString()))
    assert [row["body"] for row in rows_of(decoded.request)] == ["a"]
    assert decoded.rejects.count == 0


@pytest.mark.parametrize(
    "body", [b"\xff", b"\x0a\x05abc", b"{}"], ids=["no field", "cut short", "json"]
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="not an ExportLogsServiceRequest"):
        decode_protobuf(body)


def test_json_and_protobuf_give_the_same_rows() -> None:
    request = decode_json(json.dumps(EXAMPLE).encode()).request
    again = decode_protobuf(request.SerializeToString()).request
    assert rows_of(again) == rows_of(request)
    assert MessageToDict(again) == MessageToDict(request)
