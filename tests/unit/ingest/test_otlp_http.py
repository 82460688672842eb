"""OTLP over HTTP, with a service in memory: content types, limits and the form of errors."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from fastapi import FastAPI
from google.rpc import code_pb2
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from httpx import ASGITransport, AsyncClient, Response
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from moraine.errors import LedgerUnavailable, MoraineError
from support.memory_intake import MemoryIntake
from support.otlp_server import READER_TOKEN, TOKEN, http_app

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
LIMIT = 100_000


def request_of(*bodies: str, trace_id: bytes = b"") -> ExportLogsServiceRequest:
    records = [
        LogRecord(time_unix_nano=1 + number, body=AnyValue(string_value=body), trace_id=trace_id)
        for number, body in enumerate(bodies)
    ]
    return ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(scope_logs=[ScopeLogs(log_records=records)])]
    )


GOOD = request_of("one", "two").SerializeToString()
GOOD_JSON = json.dumps(
    {
        "resourceLogs": [
            {"scopeLogs": [{"logRecords": [{"timeUnixNano": "1", "body": {"stringValue": "one"}}]}]}
        ]
    }
).encode()


@pytest.fixture
def intake() -> MemoryIntake:
    return MemoryIntake()


@pytest.fixture
def app(intake: MemoryIntake) -> FastAPI:
    return http_app(intake, LIMIT)


def post(
    app: FastAPI,
    body: bytes = GOOD,
    content_type: str = PROTOBUF,
    path: str = "/v1/logs",
    token: str = TOKEN,
    **headers: str,
) -> Response:
    sent = {
        "content-type": content_type,
        "authorization": f"Bearer {token}",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }

    async def send() -> Response:
        async with AsyncClient(transport=ASGITransport(app), base_url="http://door") as client:
            return await client.post(path, content=body, headers=sent)

    return asyncio.run(send())


def status_of(response: Response) -> Status:
    assert response.headers["content-type"] == PROTOBUF
    return Status.FromString(response.content)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("content_type", "body"), [(PROTOBUF, GOOD), (JSON, GOOD_JSON)], ids=["protobuf", "json"]
)
def test_logs_are_taken_and_answered_in_kind(
    app: FastAPI, intake: MemoryIntake, content_type: str, body: bytes, zipped: bool
) -> None:
    response = (
        post(app, gzip.compress(body), content_type, content_encoding="gzip")
        if zipped
        else post(app, body, f"{content_type}; charset=utf-8")
    )
    assert response.status_code == 200
    assert response.headers["content-type"] == content_type
    assert response.content == (b"" if content_type == PROTOBUF else b"{}")
    assert intake.rows[0]["body"] == "one"
    [arrival] = intake.arrivals
    assert (arrival.door, arrival.database, arrival.table) == ("otlp", "telemetry", "otel_logs")
    assert (arrival.auto_create, arrival.schema_evolve) == (True, False)


def test_a_second_try_is_not_taken_twice(app: FastAPI, intake: MemoryIntake) -> None:
    assert [post(app).status_code, post(app).status_code] == [200, 200]
    assert intake.asked == 2
    assert len(intake.rows) == 2


@pytest.mark.parametrize(("content_type", "body"), [(PROTOBUF, b""), (JSON, b"{}")])
def test_an_empty_request_is_answered_at_once(
    app: FastAPI, intake: MemoryIntake, content_type: str, body: bytes
) -> None:
    assert post(app, body, content_type).status_code == 200
    assert intake.asked == 0


def test_rejected_records_are_reported_in_protobuf(app: FastAPI, intake: MemoryIntake) -> None:
    body = request_of("good").SerializeToString()
    body += request_of("bad", "bad", trace_id=b"short").SerializeToString()
    answer = ExportLogsServiceResponse.FromString(post(app, body).content)
    assert answer.partial_success.rejected_log_records == 2
    assert "trace_id has 5 bytes" in answer.partial_success.error_message
    assert [row["body"] for row in intake.rows] == ["good"]


def test_rejected_records_are_reported_in_json(app: FastAPI, intake: MemoryIntake) -> None:
    body = GOOD_JSON.replace(b'"timeUnixNano"', b'"traceId": "abcd", "timeUnixNano"')
    response = post(app, body, JSON)
    assert response.status_code == 200
    told = response.json()["partialSuccess"]
    assert told["rejectedLogRecords"] == "1"
    assert "trace_id has 2 bytes" in told["errorMessage"]
    assert intake.asked == 0


@pytest.mark.parametrize(
    ("token", "http_status", "code"),
    [
        ("", 401, code_pb2.UNAUTHENTICATED),
        ("another", 401, code_pb2.UNAUTHENTICATED),
        (READER_TOKEN, 403, code_pb2.PERMISSION_DENIED),
    ],
)
def test_strangers_are_turned_away(
    app: FastAPI, intake: MemoryIntake, token: str, http_status: int, code: int
) -> None:
    response = post(app, token=token)
    assert (response.status_code, status_of(response).code) == (http_status, code)
    assert ("www-authenticate" in response.headers) == (http_status == 401)
    assert intake.asked == 0


@pytest.mark.parametrize(
    ("body", "headers", "http_status"),
    [
        pytest.param(b"\xff", {}, 400, id="no protobuf"),
        pytest.param(GOOD, {"content_encoding": "gzip"}, 400, id="no gzip"),
        pytest.param(
            gzip.compress(GOOD)[:-9], {"content_encoding": "gzip"}, 400, id="gzip cut short"
        ),
        pytest.param(
            gzip.compress(GOOD) + b"x", {"content_encoding": "gzip"}, 400, id="more than a gzip"
        ),
        pytest.param(GOOD, {"content_encoding": "zstd"}, 415, id="another encoding"),
        pytest.param(b"x" * (LIMIT + 1), {}, 413, id="too large"),
        pytest.param(
            gzip.compress(b"x" * (LIMIT + 1)),
            {"content_encoding": "gzip"},
            413,
            id="too large inside",
        ),
    ],
)
def test_bad_bodies_are_refused(
    app: FastAPI, intake: MemoryIntake, body: bytes, headers: dict[str, str], http_status: int
) -> None:
    response = post(app, body, **headers)
    assert response.status_code == http_status
    assert status_of(response).message
    assert intake.asked == 0


def test_a_gzip_of_several_parts_is_read(app: FastAPI, intake: MemoryIntake) -> None:
    body = gzip.compress(GOOD[:10]) + gzip.compress(GOOD[10:])
    assert post(app, body, content_encoding="gzip").status_code == 200
    assert len(intake.rows) == 2


def test_malformed_json_is_refused_in_json(app: FastAPI) -> None:
    response = post(app, b"{", JSON)
    assert response.status_code == 400
    assert response.json()["code"] == code_pb2.INVALID_ARGUMENT
    assert "not JSON" in response.json()["message"]


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/protobuf"])
def test_other_content_types_are_refused(app: FastAPI, content_type: str) -> None:
    response = post(app, content_type=content_type)
    assert response.status_code == 415
    assert "application/x-protobuf" in response.json()["message"]


@pytest.mark.parametrize(("given", "seconds"), [(None, "5"), (7, "7"), (2.5, "3")])
def test_an_exporter_gets_the_time_to_retry(
    app: FastAPI, intake: MemoryIntake, given: float | None, seconds: str
) -> None:
    error = LedgerUnavailable()
    if given is not None:
        error.retry_after = given
    intake.failures = [error]
    response = post(app)
    assert response.status_code == 503
    assert response.headers["retry-after"] == seconds
    status, info = status_of(response), RetryInfo()
    assert status.code == code_pb2.UNAVAILABLE
    assert status.details[0].Unpack(info)
    assert info.retry_delay.ToTimedelta().total_seconds() == (given or 5)
    assert post(app).status_code == 200
    assert len(intake.rows) == 2


def test_an_unexpected_error_reveals_nothing(app: FastAPI, intake: MemoryIntake) -> None:
    intake.failures = [MoraineError("the password is mellon")]
    response = post(app)
    assert response.status_code == 500
    assert status_of(response).code == code_pb2.INTERNAL
    assert b"mellon" not in response.content


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/metrics"])
@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
def test_other_signals_are_not_implemented(app: FastAPI, path: str, content_type: str) -> None:
    response = post(app, b"", content_type, path)
    assert response.status_code == 501
    assert response.headers["content-type"] == content_type
    code = response.json()["code"] if content_type == JSON else status_of(response).code
    assert code == code_pb2.UNIMPLEMENTED
