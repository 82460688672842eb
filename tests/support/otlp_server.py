"""The OTLP door on real ports, with a service in memory behind it.

with running_otlp_server() as server:
    OTLPLogExporter(endpoint=server.grpc_endpoint, insecure=True, headers=server.headers)
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import FastAPI

from moraine.access.model import Caller, Principal
from moraine.errors import Forbidden, Unauthorized
from moraine.ingest.otlp.grpc_server import GrpcLimits, serving
from moraine.ingest.otlp.routes import OtlpHttp, router
from moraine.ingest.otlp.service import OtlpDoor
from moraine.settings import ListenerTlsSettings
from support.memory_intake import MemoryIntake

TOKEN = "a-good-token"
READER_TOKEN = "a-reader"


async def authorize(caller: Caller) -> Principal:
    if caller.authorization == f"Bearer {READER_TOKEN}":
        raise Forbidden()
    if caller.authorization != f"Bearer {TOKEN}":
        raise Unauthorized()
    return Principal("demo", "test", "exporter")


def http_app(intake: MemoryIntake, max_body_bytes: int = 2**20) -> FastAPI:
    app = FastAPI()
    otlp = OtlpHttp(OtlpDoor(intake, "telemetry"), authorize, max_body_bytes)
    app.state.context = SimpleNamespace(otlp=otlp)
    app.include_router(router)
    return app


@dataclass
class OtlpServer:
    intake: MemoryIntake = field(default_factory=MemoryIntake)
    grpc_port: int = 0
    http_port: int = 0

    @property
    def grpc_endpoint(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def http_endpoint(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {TOKEN}"}


@contextlib.contextmanager
def running_otlp_server(
    max_bytes: int = 2**20, tls: ListenerTlsSettings | None = None, **more: Any
) -> Iterator[OtlpServer]:
    """Both protocols on one event loop, as in the API's process. `more` are limits of gRPC."""
    limits = GrpcLimits(max_bytes, **more)
    server, ready = OtlpServer(), threading.Event()
    app = http_app(server.intake, max_bytes)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off")
    http = uvicorn.Server(config)
    loop = (config.get_loop_factory() or asyncio.new_event_loop)()

    async def serve() -> None:
        door = OtlpDoor(server.intake, "telemetry")
        async with serving(door, authorize, port=0, limits=limits, tls=tls) as port:
            server.grpc_port = port
            running = asyncio.create_task(http.serve())
            while not http.started and not running.done():
                await asyncio.sleep(0.01)
            server.http_port = http.servers[0].sockets[0].getsockname()[1]
            ready.set()
            await running

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30), "the servers did not start"
        yield server
    finally:
        http.should_exit = True
        thread.join(30)
        loop.close()
