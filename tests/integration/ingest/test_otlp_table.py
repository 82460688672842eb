"""Logs of the OpenTelemetry SDK, over gRPC, until they are rows."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator

import pytest
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

from support.ingest import CATALOG, IngestSite, free_port
from support.waiting import wait_for


@pytest.fixture
def port(site: IngestSite, running_writer: None) -> Iterator[int]:
    port = free_port()
    with site.api(otlp__grpc_port=str(port), otlp__database="otel_test"):
        yield port


def test_logs_of_the_sdk_are_in_their_table(site: IngestSite, port: int) -> None:
    exporter = OTLPLogExporter(
        endpoint=f"http://127.0.0.1:{port}",
        insecure=True,
        headers=(("authorization", f"Bearer {site.issuer.token(scope='otlp:write')}"),),
    )
    provider = LoggerProvider(Resource.create({"service.name": "shop"}))
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    logger = logging.getLogger(f"otlp-{time.time_ns()}")
    logger.propagate = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.addHandler(LoggingHandler(logger_provider=provider))
    for number in range(200):
        logger.warning("order %s", number, extra={"number": number})
    provider.shutdown()

    def look() -> int | None:
        if not site.spark.catalog.tableExists(f"{CATALOG}.otel_test.otel_logs"):
            return None
        return site.spark.table(f"{CATALOG}.otel_test.otel_logs").count() or None

    assert wait_for(look, "no records", pause=0.5) == 200
    rows = site.spark.sql(
        "SELECT count(DISTINCT body) AS bodies, min(service_name) AS service, "
        "min(severity_text) AS severity, "
        "max(CAST(get_json_object(CAST(attributes_json AS STRING), '$.number') AS INT)) AS most "
        f"FROM {CATALOG}.otel_test.otel_logs"
    ).collect()
    assert rows[0].asDict() == {
        "bodies": 200,
        "service": "shop",
        "severity": rows[0].severity,
        "most": 199,
    }
