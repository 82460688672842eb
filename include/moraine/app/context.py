"""What requests need, made once for each process when the app starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moraine.access.guard import Guard
from moraine.app.metrics import LedgerMetrics
from moraine.drops.hiding import HiddenTables
from moraine.gateway.routes import GatewayRoutes
from moraine.http.limits import AppLimits
from moraine.http.probe import Probe
from moraine.idempotency.service import Layer
from moraine.ingest.api import Ingest
from moraine.ingest.otlp.routes import OtlpHttp
from moraine.settings import Settings
from moraine.tasks.feed import TaskFeed, TaskRuns
from moraine.tasks.service import TaskService
from moraine.threads import Threads

if TYPE_CHECKING:
    from moraine.drops.routes import DropContext
    from moraine.ingest.api import IngestContext
    from moraine.tasks.keyed_routes import KeyedContext


@dataclass(frozen=True)
class AppContext:
    settings: Settings
    service: TaskService
    feed: TaskFeed
    runs: TaskRuns
    hidden: HiddenTables
    layer: Layer
    probes: dict[str, Probe]
    guard: Guard
    limits: AppLimits
    metrics: LedgerMetrics
    gateway: GatewayRoutes
    ingest: Ingest
    otlp: OtlpHttp
    in_thread: Threads


if TYPE_CHECKING:
    # It implements what the routes of every capability need.
    _keyed: type[KeyedContext] = AppContext
    _drops: type[DropContext] = AppContext
    _ingest: type[IngestContext] = AppContext
