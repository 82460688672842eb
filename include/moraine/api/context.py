"""What a request needs, made once per process when the app starts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from fastapi import Request

from moraine.api.auth import Authenticator
from moraine.api.metrics import LedgerMetrics
from moraine.api.probe import Probe
from moraine.gateway.hiding import HiddenTables
from moraine.gateway.service import Gateway
from moraine.idempotency.layer import Layer
from moraine.ingest.doors import Ingest
from moraine.ingest.otlp.http_routes import OtlpHttp
from moraine.settings import Settings
from moraine.tasks.feed import TaskFeed
from moraine.tasks.service import TaskService

T = TypeVar("T")
_THREADS = 32


@dataclass
class Context:
    settings: Settings
    service: TaskService
    feed: TaskFeed
    hidden: HiddenTables
    layer: Layer
    probes: dict[str, Probe]
    authenticator: Authenticator
    metrics: LedgerMetrics
    gateway: Gateway = field(init=False)
    ingest: Ingest = field(init=False)
    otlp: OtlpHttp = field(init=False)
    # Of our own: the host app's threads serve the calls that ours make back to it, so taking
    # all of them would be a deadlock.
    threads: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(_THREADS))

    async def in_thread(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        return await anyio.to_thread.run_sync(
            functools.partial(call, *args, **options), limiter=self.threads
        )


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context
