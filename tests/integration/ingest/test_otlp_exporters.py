"""Real exporters against the door: OpenTelemetry's SDK over gRPC and HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest
import requests
from google.rpc import code_pb2
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import (
    OTLPLogExporter as GrpcExporter,
)
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import (
    OTLPLogExporter as HttpExporter,
)
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import LogsServiceStub
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import (
    BatchLogRecordProcessor,
    LogRecordExporter,
    LogRecordExportResult,
    SimpleLogRecordProcessor,
)
from opentelemetry.sdk.resources import Resource

from moraine.errors import LedgerUnavailable, MoraineError
from support.memory_intake import MemoryIntake
from support.otlp_server import READER_TOKEN, OtlpServer, running_otlp_server

LIMIT = 2**20


@pytest.fixture(scope="module")
def running_server() -> Iterator[OtlpServer]:
    with running_otlp_server(LIMIT) as server:
        yield server


@pytest.fixture
def server(running_server: OtlpServer) -> OtlpServer:
    running_server.intake.clear()
    return running_server


@pytest.fixture
def intake(server: OtlpServer) -> MemoryIntake:
    return server.intake


@pytest.fixture
def channel(server: OtlpServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc_endpoint) as channel:
        yield channel


def exporter_to(server: OtlpServer, protocol: str, *, zipped: bool = False) -> LogRecordExporter:
    if protocol == "grpc":
        return GrpcExporter(
            endpoint=server.grpc_endpoint,
            insecure=True,
            headers=server.headers,
            timeout=20,
            compression=grpc.Compression.Gzip if zipped else grpc.Compression.NoCompression,
        )
    return HttpExporter(
        endpoint=f"{server.http_endpoint}/v1/logs",
        headers=server.headers,
        timeout=20,
        compression=Compression.Gzip if zipped else Compression.NoCompression,
    )


class Watched(LogRecordExporter):
    """Remembers how each export ended."""

    def __init__(self, inner: LogRecordExporter) -> None:
        self.inner = inner
        self.results: list[LogRecordExportResult] = []

    def export(self, batch: Sequence[Any]) -> LogRecordExportResult:
        self.results.append(self.inner.export(batch))
        return self.results[-1]

    def shutdown(self) -> None:
        self.inner.shutdown()

    def force_flush(self, timeout_millis: int = 10_000) -> bool:
        return self.inner.force_flush(timeout_millis)


def emit(exporter: LogRecordExporter, count: int, *, batched: bool = True) -> None:
    provider = LoggerProvider(
        resource=Resource.create({"service.name": "shop"}), shutdown_on_exit=False
    )
    processor = (
        BatchLogRecordProcessor(exporter, max_export_batch_size=100)
        if batched
        else SimpleLogRecordProcessor(exporter)
    )
    provider.add_log_record_processor(processor)
    logger = provider.get_logger("orders", attributes={"area": "checkout"})
    for number in range(count):
        logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                severity_number=SeverityNumber.WARN,
                severity_text="WARN",
                body=f"order {number}",
                attributes={"number": number, "tags": ["a", "b"], "ratio": 0.5},
            )
        )
    provider.shutdown()


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_what_the_sdk_exports_is_taken(
    server: OtlpServer, intake: MemoryIntake, protocol: str, zipped: bool
) -> None:
    exporter = Watched(exporter_to(server, protocol, zipped=zipped))
    emit(exporter, 1000)
    assert set(exporter.results) == {LogRecordExportResult.SUCCESS}
    assert sorted(row["attributes_json"]["number"] for row in intake.rows) == list(range(1000))
    row = intake.rows[0]
    assert (row["severity_number"], row["severity_text"]) == (13, "WARN")
    assert row["body"] == f"order {row['attributes_json']['number']}"
    assert row["service_name"] == "shop"
    assert (
        row["attributes_json"]
        | {
            "area": "checkout",
            "tags": ["a", "b"],
            "ratio": 0.5,
        }
        == row["attributes_json"]
    )


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_an_exporter_retries_when_it_is_asked_to(
    server: OtlpServer, intake: MemoryIntake, protocol: str
) -> None:
    overloaded = LedgerUnavailable("too much is waiting")
    overloaded.retry_after = 1  # type: ignore[attr-defined]
    intake.failures = [overloaded, LedgerUnavailable()]
    exporter = Watched(exporter_to(server, protocol))
    emit(exporter, 1, batched=False)
    assert exporter.results == [LogRecordExportResult.SUCCESS]
    assert intake.asked == 3
    assert len(intake.rows) == 1


def export(
    channel: grpc.Channel, server: OtlpServer, request: ExportLogsServiceRequest, **options: Any
) -> ExportLogsServiceResponse:
    metadata = tuple((options.pop("headers", None) or server.headers).items())
    stub = LogsServiceStub(channel)
    answer: ExportLogsServiceResponse = stub.Export(
        request, metadata=metadata, timeout=20, **options
    )
    return answer


def request_of(*bodies: str, trace_id: bytes = b"") -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    scope_logs = request.resource_logs.add().scope_logs.add()
    for body in bodies:
        record = scope_logs.log_records.add(time_unix_nano=time.time_ns(), trace_id=trace_id)
        record.body.string_value = body
    return request


def test_rejected_records_are_reported(
    channel: grpc.Channel, server: OtlpServer, intake: MemoryIntake
) -> None:
    request = request_of("good")
    request.MergeFrom(request_of("bad", "bad", trace_id=b"short"))
    answer = export(channel, server, request)
    assert answer.partial_success.rejected_log_records == 2
    assert "trace_id has 5 bytes, not 16" in answer.partial_success.error_message
    assert [row["body"] for row in intake.rows] == ["good"]


def test_a_good_answer_says_nothing(channel: grpc.Channel, server: OtlpServer) -> None:
    assert not export(channel, server, request_of("good")).HasField("partial_success")
    assert not export(channel, server, ExportLogsServiceRequest()).HasField("partial_success")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"x-nothing": "here"}, grpc.StatusCode.UNAUTHENTICATED),
        ({"authorization": "Bearer another"}, grpc.StatusCode.UNAUTHENTICATED),
        ({"authorization": f"Bearer {READER_TOKEN}"}, grpc.StatusCode.PERMISSION_DENIED),
    ],
)
def test_strangers_are_turned_away(
    channel: grpc.Channel,
    server: OtlpServer,
    intake: MemoryIntake,
    headers: dict[str, str],
    code: grpc.StatusCode,
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        export(channel, server, request_of("one"), headers=headers)
    assert refused.value.code() is code
    assert intake.asked == 0


def test_the_status_says_when_to_come_again(
    channel: grpc.Channel, server: OtlpServer, intake: MemoryIntake
) -> None:
    overloaded = LedgerUnavailable("too much is waiting")
    overloaded.retry_after = 2.5  # type: ignore[attr-defined]
    intake.failures = [overloaded]
    with pytest.raises(grpc.RpcError) as refused:
        export(channel, server, request_of("one"))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    status, info = rpc_status.from_call(refused.value), RetryInfo()
    assert status.code == code_pb2.UNAVAILABLE
    assert status.details[0].Unpack(info)
    assert info.retry_delay.ToTimedelta().total_seconds() == 2.5


def test_a_malformed_message_is_the_callers_mistake(
    channel: grpc.Channel, server: OtlpServer, intake: MemoryIntake
) -> None:
    call = channel.unary_unary("/opentelemetry.proto.collector.logs.v1.LogsService/Export")
    with pytest.raises(grpc.RpcError) as refused:
        call(b"\xff", metadata=tuple(server.headers.items()), timeout=20)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert intake.asked == 0


def test_an_unexpected_error_reveals_nothing(
    channel: grpc.Channel, server: OtlpServer, intake: MemoryIntake
) -> None:
    intake.failures = [MoraineError("the password is mellon")]
    with pytest.raises(grpc.RpcError) as failed:
        export(channel, server, request_of("one"))
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert "mellon" not in str(failed.value)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_that_is_too_large_is_refused_however_small_it_was_sent(
    channel: grpc.Channel, server: OtlpServer, intake: MemoryIntake, compression: grpc.Compression
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        export(channel, server, request_of("x" * (LIMIT + 1)), compression=compression)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert intake.asked == 0


def test_a_second_try_is_not_taken_twice(
    channel: grpc.Channel, server: OtlpServer, intake: MemoryIntake
) -> None:
    request = request_of("one", "two")
    export(channel, server, request)
    export(channel, server, request)
    assert intake.asked == 2
    assert len(intake.rows) == 2


def test_other_signals_are_not_implemented(channel: grpc.Channel) -> None:
    for stub, request in (
        (TraceServiceStub(channel), ExportTraceServiceRequest()),
        (MetricsServiceStub(channel), ExportMetricsServiceRequest()),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            stub.Export(request, timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert refused.value.details() == "Moraine accepts logs, no traces and no metrics."


def test_rows_of_both_protocols_are_the_same(
    channel: grpc.Channel, server: OtlpServer, intake: MemoryIntake
) -> None:
    request = request_of("one", "two")
    export(channel, server, request)
    answer = requests.post(
        f"{server.http_endpoint}/v1/logs",
        data=request.SerializeToString(),
        headers={**server.headers, "Content-Type": "application/x-protobuf"},
        timeout=20,
    )
    assert answer.status_code == 200
    assert (intake.asked, len(intake.taken)) == (2, 1)
    assert json.dumps(intake.rows).count("one") == 1
