"""An exporter that is not written in Python finds the door as it expects one."""

from __future__ import annotations

import pytest

from support.otlp_server import TOKEN, running_otlp_server
from support.telemetrygen import find_telemetrygen, send_logs

COUNT = 1000


# Building it takes minutes the first time.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_every_log_is_taken_once(protocol: str) -> None:
    find_telemetrygen()
    with running_otlp_server(16 * 2**20) as server:
        port = server.grpc_port if protocol == "grpc" else server.http_port
        send_logs(f"127.0.0.1:{port}", COUNT, TOKEN, http=protocol == "http")
        rows = server.intake.rows
    assert len(rows) == COUNT
    assert {row["service_name"] for row in rows} == {"telemetrygen"}
    assert all(row["timestamp"] and row["body"] for row in rows)
    assert {row["attributes_json"]["deployment"] for row in rows} == {"test"}
