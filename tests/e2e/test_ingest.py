"""Ingest on the whole platform: through Airflow's web server, written by its Dag."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from moraine.ingest.rest.client import DoorError, IngestClient
from moraine.local.processes import inherited_environment
from support.platform import CATALOG, NAMESPACE, Platform
from support.waiting import wait_for

ROOT = Path(__file__).parents[2]


@pytest.fixture
def client(platform: Platform) -> IngestClient:
    return IngestClient(platform.settings)


def moraine(platform: Platform, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "moraine"), *arguments],
        env={**inherited_environment(), **platform.environment(), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def count(platform: Platform, table: str) -> int:
    return platform.spark.table(f"{CATALOG}.{NAMESPACE}.{table}").count()


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_ingest_batch_goes_from_airflows_web_server_to_a_snapshot_and_back(
    platform: Platform, client: IngestClient
) -> None:
    table = platform.new_table().name
    body = lines({"message": "a", "colour": "red"}, {"message": "b"})

    first = client.send(NAMESPACE, table, body, create=True)
    again = client.send(NAMESPACE, table, body, create=True)

    assert first["rows_ingested"] == 2
    assert again == {**first, "replayed": True}
    assert count(platform, table) == 2
    with pytest.raises(DoorError, match="Line 1, column message"):
        client.send(NAMESPACE, table, lines({"message": 5}))
    assert count(platform, table) == 2


def test_ingest_command_line_makes_tables_sends_files_and_promotes(
    platform: Platform, tmp_path: Path
) -> None:
    name = platform.new_table().name
    table = f"{NAMESPACE}.{name}"
    made = moraine(
        platform, "tables", "create", table, "--column", "id long", "--column", "props dynamic",
        "--column", "place vector(2)",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert "vector(2)" in made.stdout
    file = tmp_path / "rows.ndjson"
    file.write_bytes(lines({"id": 1, "place": [0.5, 1], "size": "5"}))

    sent = moraine(platform, "ingest", str(file), table)
    assert sent.returncode == 0, sent.stderr
    assert "1 row written" in sent.stdout
    again = moraine(platform, "ingest", str(file), table)
    assert "1 row already written by this key" in again.stdout

    promoted = moraine(platform, "tables", "promote", table, "size", "int")
    assert promoted.returncode == 0, promoted.stderr
    assert "coalesce(`size_int`, try_cast(`size` AS int))" in promoted.stdout
    columns = json.loads(moraine(platform, "tables", "columns", table, "--json").stdout)["columns"]
    assert [column["name"] for column in columns] == ["id", "props", "place", "size", "size_int"]

    bad = moraine(platform, "tables", "create", table, "--column", "id decimal")
    assert bad.returncode == 1
    assert "is no column type" in bad.stderr


def test_ingest_writes_otlp_logs_over_http_to_their_table(platform: Platform) -> None:
    body = AnyValue(string_value=f"hello {platform.new_table().name}")
    record = LogRecord(time_unix_nano=1_700_000_000_123_456_789, severity_number=9, body=body)
    request = ExportLogsServiceRequest(
        resource_logs=[ResourceLogs(scope_logs=[ScopeLogs(log_records=[record])])]
    )
    for _ in range(2):  # an exporter that did not hear the answer sends it again
        response = platform.airflow.request(
            "POST",
            "/ingest/v1/logs",
            data=request.SerializeToString(),
            headers={"Content-Type": "application/x-protobuf"},
        )
        assert response.status_code == 200, response.text

    def look() -> list[Any] | None:
        if not platform.spark.catalog.tableExists(f"{CATALOG}.otel.otel_logs"):
            return None
        found = platform.spark.table(f"{CATALOG}.otel.otel_logs")
        return found.where(found.body == body.string_value).collect() or None

    (row,) = wait_for(look, "the record is not in its table", pause=0.5)
    assert row.severity_number == 9
    assert row.timestamp.isoformat() == "2023-11-14T22:13:20.123456"


def test_ingest_writer_is_a_spark_app_that_can_be_submitted(platform: Platform) -> None:
    """A second writer beside the Dag's; it stops cleanly when it is told to."""
    table = platform.new_table().name
    client = IngestClient(platform.settings)
    app = subprocess.Popen(
        [
            str(Path(os.environ.get("SPARK_HOME", _spark_home())) / "bin" / "spark-submit"),
            str(ROOT / "spark_apps" / "ingest_batch.py"),
        ],
        env={**inherited_environment(), **platform.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        writers = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'moraine-writer' "
            "AND query LIKE 'LISTEN%'"
        )

        def both() -> bool:
            with platform.service.store.pool.connection() as connection:
                row = connection.execute(writers).fetchone()
                return bool(row and row[0] >= 2)

        wait_for(both, "the submitted writer does not listen")
        for number in range(10):
            client.send(NAMESPACE, table, lines({"message": str(number)}), create=True)
        assert count(platform, table) == 10
    finally:
        driver = psutil.Process(app.pid).children(recursive=True)
        app.terminate()
        output, _ = app.communicate(timeout=60)
        _, alive = psutil.wait_procs(driver, timeout=30)
        assert not alive
    assert app.returncode in (0, 143), output[-2000:]
    assert "Traceback" not in output


def test_ingest_metrics_count_what_each_source_accepted(
    platform: Platform, client: IngestClient
) -> None:
    table = platform.new_table().name
    client.send(NAMESPACE, table, lines({"message": "m"}), create=True)

    def look() -> str | None:
        text = platform.airflow.request("GET", "/delegation-service/api/metrics").text
        return text if 'moraine_ingest_rows_total{door="rest"}' in text else None

    text = wait_for(look, "no metrics of ingest")
    assert 'moraine_ingest_requests_total{door="rest",outcome="applied"}' in text
    assert "moraine_ingest_queue_age_seconds" in text


def _spark_home() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)
