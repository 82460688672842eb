"""Opens the resources of a process's apps, and closes them when the last app ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from typing import Any

from fastapi import FastAPI

from moraine import operations
from moraine.access.airflow import AirflowTokens
from moraine.access.audit import AuditLog
from moraine.access.authenticator import Authenticator
from moraine.access.guard import Guard
from moraine.access.model import Action
from moraine.access.policy import policy_of
from moraine.app.context import AppContext
from moraine.app.metrics import LedgerMetrics
from moraine.drops.hiding import HiddenTables
from moraine.drops.tombstones import TombstoneStore
from moraine.gateway.drop import PurgeDesk
from moraine.gateway.routes import GatewayLimits, GatewayRoutes
from moraine.gateway.service import Gateway
from moraine.gateway.upstream import Upstream, open_connections
from moraine.http.limits import AppLimits, BodyPace, Concurrency, LimitCounts, RequestLimits
from moraine.http.probe import Probe
from moraine.idempotency.service import Layer
from moraine.idempotency.store import RecordStore
from moraine.ingest.api import WRITE_DAG, open_ingest, serve_otlp
from moraine.ledger.pools import open_async_pool, open_pool
from moraine.orchestration.dag_runs import AirflowSession, DagRuns
from moraine.settings import Settings, get_settings
from moraine.tasks.feed import TaskFeed, TaskRuns
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore
from moraine.threads import Threads

_PATIENCE = timedelta(seconds=2)
# The Dag whose rights an Airflow user needs for an action.
_DAGS = {
    Action.READ_TASKS: operations.purge.OPERATION.dag_id,
    Action.EXECUTE_TASKS: operations.purge.OPERATION.dag_id,
    Action.STEER_TASKS: operations.purge.OPERATION.dag_id,
    Action.READ_AUDIT: operations.purge.OPERATION.dag_id,
    Action.WRITE_INGEST: WRITE_DAG,
    Action.WRITE_OTLP: WRITE_DAG,
}


class Services:
    """One context for all apps of a process: the first app opens it, the last one closes it."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings
        self._users = 0
        self._opened = contextlib.AsyncExitStack()
        self._context: AppContext | None = None

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[AppContext]:
        self._users += 1
        if self._context is None:
            settings = self._settings or get_settings()
            self._context = await self._opened.enter_async_context(_open(settings))
        try:
            yield self._context
        finally:
            self._users -= 1
            if not self._users:
                self._context = None
                await self._opened.aclose()

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """The lifespan of an app whose requests find the context in its state."""
        async with self.use() as context:
            app.state.context = context
            yield


@contextlib.asynccontextmanager
async def _open(settings: Settings) -> AsyncIterator[AppContext]:
    url = settings.ledger.address
    size = settings.ledger.pool_size
    keys = settings.idempotency
    counts = LimitCounts()
    async with (
        open_async_pool(url, size=size) as async_pool,
        open_connections(settings.gateway, counts) as connections,
        contextlib.AsyncExitStack() as stack,
    ):
        pool = stack.enter_context(open_pool(url, size=size))
        lease = settings.delegation.task.lease.lost_timeout_duration
        store = TaskStore(pool, lease=lease, patience=_PATIENCE)
        dag_runs = DagRuns(AirflowSession(settings.airflow))
        feed = TaskFeed(url, store)
        service = TaskService(store, dag_runs, operations.OPERATIONS, settings)
        hidden = HiddenTables(url, TombstoneStore(pool, settings.realm))
        records = RecordStore.of(async_pool, keys)
        layer = Layer(
            records,
            heartbeat=keys.heartbeat,
            wait=keys.wait,
            checks_payload=keys.check_payload,
        )
        in_thread = Threads()
        tokens = AirflowTokens.of(settings.realm, _DAGS)
        stack.callback(tokens.close)
        guard = Guard(
            settings.realm,
            Authenticator(settings, tokens),
            policy_of(settings.policy),
            AuditLog(pool, patience=_PATIENCE),
            in_thread,
        )
        runs = TaskRuns(service, feed, in_thread)
        desk = PurgeDesk(settings.gateway.purge, service, runs, hidden, guard, in_thread)
        upstreams = {
            name: Upstream(
                name,
                catalog,
                connections,
                present_certificate=settings.gateway.present_certificate,
            )
            for name, catalog in settings.catalogs.items()
            if settings.gateway.enabled
        }
        ingest = open_ingest(settings, async_pool, pool)
        context = AppContext(
            settings=settings,
            service=service,
            feed=feed,
            runs=runs,
            hidden=hidden,
            layer=layer,
            probes={
                "ledger": Probe("ledger", store.ping),
                "airflow": Probe("airflow", dag_runs.ping),
                "notifications": Probe("notifications", feed.check),
            },
            guard=guard,
            metrics=LedgerMetrics(
                store,
                hidden.store,
                operations.OPERATIONS.figures,
                settings.api.metrics_cache_duration.total_seconds(),
                counts,
            ),
            limits=_limits(settings, counts),
            gateway=GatewayRoutes(
                settings.gateway,
                Gateway(settings, upstreams, layer, desk, guard),
                GatewayLimits.of(connections),
            ),
            ingest=ingest,
            otlp=await stack.enter_async_context(serve_otlp(ingest, guard, counts)),
            in_thread=in_thread,
        )
        await hidden.refresh()
        for work in (feed.run(), hidden.run(), layer.beat(), ingest.feed.run()):
            await stack.enter_async_context(_running(work))
        yield context


def _limits(settings: Settings, counts: LimitCounts) -> AppLimits:
    limits = settings.api.limits
    pace = BodyPace(limits.body_grace.total_seconds(), limits.min_body_rate, counts)

    def of(requests_per_client: int) -> RequestLimits:
        return RequestLimits(Concurrency("client", requests_per_client, counts), pace)

    return AppLimits(
        delegation=of(limits.requests_per_client),
        ingest=of(settings.ingest.rest.requests_per_client),
    )


@contextlib.asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run beside the block, and end with it."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
