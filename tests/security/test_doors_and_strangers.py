"""What a stranger wants at the APIs and the doors of ingest: that a process reads and keeps what it
should never have been sent, or that one tenant stops all others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests

from moraine.app.assembly import create_app, ingest_openapi_document, openapi_document
from moraine.http import DELEGATION_PATH
from moraine.ingest.rest.app import INGEST_PATH
from moraine.settings import Settings
from support import issuer as tokens
from support.api_server import purge, running_api
from support.issuer import Issuer
from support.otlp_server import TOKEN, running_otlp_server
from support.raw_http import RawAnswer, raw_client
from support.tcp_proxy import proxied
from support.waiting import wait_for

EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
LARGE = 8 << 20

StartApi = Callable[..., "Doors"]


class Doors:
    def __init__(self, origin: str, token: str) -> None:
        self.origin = origin
        self.headers = {"Authorization": f"Bearer {token}"}

    def ingest(self, database: str, body: bytes = b"{}\n", **headers: str) -> requests.Response:
        names = {"X-Database": database, "X-Table": "t", "Content-Type": "application/x-ndjson"}
        return requests.post(
            f"{self.origin}{INGEST_PATH}/v1/ingest",
            data=body,
            headers={**self.headers, **names, **headers},
            timeout=30,
        )

    def code(self, database: str, body: bytes = b"{}\n", **headers: str) -> str:
        return str(self.ingest(database, body, **headers).json()["error"]["code"])

    def half_sent(self, path: str, length: int, **headers: str) -> RawAnswer:
        with raw_client(self.origin) as client:
            client.begin("POST", path, length, {**self.headers, **headers}).send(b"{")
            return client.answer()


@pytest.fixture
def start(ledger_url: str, tmp_path: Path) -> Iterator[StartApi]:
    """The APIs with these settings, and a caller with a good token. No writer runs."""
    issuer = Issuer()
    with ExitStack() as stack:

        def begin(api: dict[str, Any] | None = None, **ingest: Any) -> Doors:
            rest = {"wait": "0.05s", **ingest.pop("rest", {})}
            settings = Settings(
                realm="demo",
                workspace=f"file://{tmp_path}",
                ledger={"url": ledger_url, "pool_size": 4},
                api={
                    "accept_airflow_tokens": False,
                    "metrics_cache_duration": "0s",
                    "jwt": {"issuer": tokens.URL, "jwks_file": issuer.write_key_set(tmp_path)},
                    **(api or {}),
                },
                catalogs={"demo": {"uri": "http://127.0.0.1:9"}},
                ingest={"rest": rest, **ingest},
            )
            origin = stack.enter_context(running_api(settings))
            return Doors(origin, issuer.token(scope="execute_tasks ingest:write otlp:write"))

        yield begin


# --- The order of checks --------------------------------------------------------------------


def posting_routes() -> Iterator[str]:
    documents = {
        DELEGATION_PATH: openapi_document(create_app()),
        INGEST_PATH: ingest_openapi_document(),
    }
    for mount, document in documents.items():
        for path, item in document["paths"].items():
            if "post" in item:
                yield mount + path.replace("{", "").replace("}", "")
    yield f"{INGEST_PATH}/v1/logs"


@pytest.mark.parametrize("keyed", [False, True])
def test_no_route_reads_a_body_before_it_knows_the_caller(start: StartApi, keyed: bool) -> None:
    doors = start()
    paths = list(posting_routes())
    assert len(paths) > 7
    for path in paths:
        for token in ("", "Bearer made-up"):
            headers = {"Authorization": token, "X-Database": "a", "X-Table": "t"}
            if keyed:
                headers["Idempotency-Key"] = "a-key"
            answer = doors.half_sent(path, 1_000_000, **headers)
            assert (path, answer.status) == (path, 401)


def exported(target: str, method: str, message: bytes, token: str = "") -> grpc.StatusCode:
    options = [("grpc.max_send_message_length", -1)]
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(target, options) as channel:
        call = channel.unary_unary(method)
        try:
            call(message, metadata=metadata, timeout=20)
        except grpc.RpcError as error:
            return error.code()  # type: ignore[no-any-return, attr-defined]
    return grpc.StatusCode.OK


@pytest.mark.parametrize("method", [EXPORT, TRACES])
def test_otlp_over_grpc_does_not_read_a_strangers_message(method: str) -> None:
    with (
        running_otlp_server(2 * LARGE) as server,
        proxied(f"tcp://{server.grpc_endpoint}") as proxy,
    ):
        target = proxy.url.rpartition("@")[2]
        for token in ("", "made-up"):
            before = proxy.passed_on
            code = exported(target, method, b"x" * LARGE, token)
            known = {EXPORT: "UNAUTHENTICATED", TRACES: "UNIMPLEMENTED"}[method]
            assert code.name == known
            assert proxy.passed_on - before < 1 << 20
        before = proxy.passed_on
        exported(target, EXPORT, b"x" * LARGE, TOKEN)
        assert proxy.passed_on - before > LARGE, "that of a known caller is read"


def test_otlp_over_grpc_does_not_wait_for_a_message_that_does_not_come() -> None:
    async def scene(target: str, metadata: list[tuple[str, str]]) -> list[grpc.StatusCode]:
        async with grpc.aio.insecure_channel(target) as channel:
            calls = [channel.stream_unary(EXPORT)(metadata=metadata) for _ in range(4)]
            return [await call.code() for call in calls]

    with running_otlp_server(read_timeout=0.3, requests_at_once=4) as server:
        codes = asyncio.run(scene(server.grpc_endpoint, list(server.headers.items())))
        assert {code.name for code in codes} == {"DEADLINE_EXCEEDED"}
        assert exported(server.grpc_endpoint, EXPORT, b"", TOKEN) is grpc.StatusCode.OK


def test_otlp_over_grpc_takes_so_many_requests_of_one_client() -> None:
    async def scene(target: str, metadata: list[tuple[str, str]]) -> list[str]:
        async with grpc.aio.insecure_channel(target) as channel:
            calls = [channel.stream_unary(EXPORT)(metadata=metadata) for _ in range(8)]
            return [(await call.code()).name for call in calls]

    with running_otlp_server(read_timeout=4, requests_per_client=3) as server:
        codes = asyncio.run(scene(server.grpc_endpoint, list(server.headers.items())))
    assert sorted(codes) == ["DEADLINE_EXCEEDED"] * 3 + ["UNAVAILABLE"] * 5


def test_otlp_over_grpc_takes_so_many_connections() -> None:
    with running_otlp_server(max_connections=2) as server, ExitStack() as stack:
        for number in range(3):
            # Channels with the same options would share one connection.
            options = [
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.primary_user_agent", f"exporter-{number}"),
            ]
            channel = stack.enter_context(grpc.insecure_channel(server.grpc_endpoint, options))
            call = channel.unary_unary(EXPORT)
            metadata = list(server.headers.items())
            if number < 2:
                call(b"", metadata=metadata, timeout=20)
                continue
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", metadata=metadata, timeout=5)
            assert refused.value.code() in (  # type: ignore[attr-defined]
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )


# --- Slow bodies, and requests at once ------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"{DELEGATION_PATH}/v1/tasks", "application/json"),
        (f"{INGEST_PATH}/v1/ingest", "application/x-ndjson"),
        (f"{INGEST_PATH}/v1/tables", "application/json"),
        (f"{INGEST_PATH}/v1/logs", "application/json"),
    ],
)
@pytest.mark.parametrize("keyed", [False, True])
def test_a_body_that_stalls_ends_its_request(
    start: StartApi, path: str, kind: str, keyed: bool
) -> None:
    doors = start({"limits": {"body_grace": "0.5s"}})
    headers = {"X-Database": "a", "X-Table": "t"}
    if keyed:
        headers["Idempotency-Key"] = "a-key"
    with raw_client(doors.origin) as client:
        head = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Type: {kind}", "Content-Length: 900"]
        given = {**doors.headers, **headers}
        lines = [*head, *(f"{name}: {value}" for name, value in given.items()), "", ""]
        answer = client.send("\r\n".join(lines).encode()).send(b"{").answer()
    assert answer.status == 408
    assert answer.is_closed


def test_one_client_cannot_take_all_requests_of_the_api(start: StartApi) -> None:
    doors = start({"limits": {"requests_per_client": 3}})
    path = f"{DELEGATION_PATH}/v1/tasks"
    with ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(raw_client(doors.origin))
            client.begin("POST", path, 900, doors.headers).send(b"{")
        wait_for(
            lambda: requests.get(doors.origin + path, headers=doors.headers).status_code == 429
        )
        refused = requests.post(
            doors.origin + path, json=purge(), headers=doors.headers, timeout=20
        )
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error_code"] == "TOO_MANY_REQUESTS"
        with raw_client(doors.origin, "127.0.0.2") as other:
            assert other.begin("GET", path, headers=doors.headers).answer().status == 200
        health = requests.get(f"{doors.origin}{DELEGATION_PATH}/health/live", timeout=20)
        assert health.status_code == 200, "probes are always answered"
    metrics = f"{doors.origin}{DELEGATION_PATH}/metrics"
    counted = 'moraine_requests_limited_total{limit="client"} '
    text = wait_for(
        lambda: (answer := requests.get(metrics, headers=doors.headers)).ok and answer.text
    )
    assert counted in text


# --- Tenants of ingest ----------------------------------------------------------------------


def test_another_name_of_a_database_is_no_way_around_the_rate(start: StartApi) -> None:
    doors = start(rest={"requests_per_second": 0.1, "burst": 3})
    codes = [doors.code(f"database{number}") for number in range(5)]
    assert codes == ["writer_unavailable"] * 3 + ["rate_limited"] * 2


def test_one_database_cannot_take_all_the_room(start: StartApi) -> None:
    doors = start(max_waiting_requests=4)
    codes = []
    for _ in range(3):
        codes.append(doors.code("greedy"))
        time.sleep(0.6)  # what waits is looked up twice a second
    assert codes == ["writer_unavailable"] * 2 + ["overloaded"]
    assert doors.code("modest") == "writer_unavailable", "it was taken"


def test_uploads_under_way_take_room_too(start: StartApi) -> None:
    doors = start(max_waiting_bytes=10 << 20, database_share=1)
    stop = threading.Event()

    def upload() -> Iterator[bytes]:
        for _ in range(9 << 4):
            yield b'{"a": "' + b"x" * 65_520 + b'"}\n'
        stop.wait(30)

    results: list[str] = []
    sender = threading.Thread(target=lambda: results.append(doors.code("a", upload())))  # type: ignore[arg-type]
    sender.start()
    try:
        time.sleep(2)
        assert doors.code("b") == "writer_unavailable", "there is room for it"
        second = doors.code("c", b'{"a": "' + b"x" * (20 << 20) + b'"}\n')
        assert second == "overloaded"
    finally:
        stop.set()
        sender.join()
    assert results == ["writer_unavailable"]
