"""OpenTelemetry's SDK for Java, which shares no code with ours, finds the door it expects."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from moraine.local.java import find_java
from support.otlp_server import TOKEN, running_otlp_server
from support.s3_catalog import fetch_jars

COUNT = 1000
SOURCE = Path(__file__).parents[2] / "support" / "SendLogs.java"


def send_logs(protocol: str, endpoint: str, token: str, compression: str) -> str:
    """COUNT logs of the service in-java, in batches; what the exporter had to say."""
    jars = os.pathsep.join(str(jar) for jar in fetch_jars("otlp").class_path("otlp"))
    done = subprocess.run(
        [find_java().java, "-cp", jars, SOURCE, protocol, endpoint, token, compression, str(COUNT)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # The JVM reports the options that the tests give to all JVMs.
    return "".join(line for line in done.stderr.splitlines(True) if "JDK_JAVA_OPTIONS" not in line)


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_every_log_is_taken_once(protocol: str, compression: str) -> None:
    with running_otlp_server(16 * 2**20) as server:
        port = server.grpc_port if protocol == "grpc" else server.http_port
        path = "" if protocol == "grpc" else "/v1/logs"
        said = send_logs(protocol, f"http://127.0.0.1:{port}{path}", TOKEN, compression)
        rows = server.intake.rows
    assert not said
    assert sorted(row["body"] for row in rows) == sorted(f"log {n}" for n in range(COUNT))
    assert {row["service_name"] for row in rows} == {"in-java"}
    assert {row["severity_number"] for row in rows} == {13}
    assert all(row["timestamp"] for row in rows)
    assert all(row["attributes_json"]["number"] is not None for row in rows)


def test_a_token_that_is_not_good_is_told_to_the_exporter() -> None:
    with running_otlp_server(16 * 2**20) as server:
        said = send_logs("grpc", f"http://127.0.0.1:{server.grpc_port}", "nobody's", "none")
        assert not server.intake.rows
    assert "gRPC status code 16" in said
    assert "valid bearer token" in said
