"""Opens what the apps of one process work with, and closes it when the last of them ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from typing import Any

from fastapi import FastAPI

from moraine import operations
from moraine.api.auth import Authenticator
from moraine.api.context import Context
from moraine.api.metrics import LedgerMetrics
from moraine.api.probe import Probe
from moraine.dag_runs import AirflowSession, DagRuns
from moraine.gateway.drop import PurgeDesk
from moraine.gateway.hiding import HiddenTables
from moraine.gateway.service import Gateway
from moraine.gateway.upstream import Upstream, open_connections
from moraine.idempotency.layer import Layer
from moraine.idempotency.store import RecordStore, open_async_pool
from moraine.ingest.doors import open_doors, serve_otlp
from moraine.operations.purge.tombstones import TombstoneStore
from moraine.settings import Settings, get_settings
from moraine.tasks.feed import TaskFeed
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore, open_pool

_PATIENCE = timedelta(seconds=2)


class Services:
    """One context for all apps of a process: the first to start opens it, the last closes it."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings
        self._users = 0
        self._opened = contextlib.AsyncExitStack()
        self._context: Context | None = None

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Context]:
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
        """Of an app whose requests find the context in its state."""
        async with self.use() as context:
            app.state.context = context
            yield


@contextlib.asynccontextmanager
async def _open(settings: Settings) -> AsyncIterator[Context]:
    url = settings.ledger.url.get_secret_value()
    size = settings.ledger.pool_size
    keys = settings.idempotency
    async with (
        open_async_pool(url, size=size) as async_pool,
        open_connections(settings.gateway) as connections,
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
        layer = Layer(records, lease=keys.lease, wait=keys.wait, checks_payload=keys.check_payload)
        context = Context(
            settings=settings,
            service=service,
            feed=feed,
            hidden=hidden,
            layer=layer,
            probes={
                "ledger": Probe("ledger", store.ping),
                "airflow": Probe("airflow", dag_runs.ping),
                "notifications": Probe("notifications", feed.check),
            },
            authenticator=Authenticator(settings.api, operations.purge.OPERATION.dag_id),
            metrics=LedgerMetrics(
                store, hidden.store, settings.api.metrics_cache_duration.total_seconds()
            ),
        )
        desk = PurgeDesk(settings.gateway.purge, service, feed, hidden, context.in_thread)
        upstreams = {
            name: Upstream(name, catalog, connections)
            for name, catalog in settings.catalogs.items()
            if settings.gateway.enabled
        }
        context.gateway = Gateway(settings, upstreams, layer, desk)
        context.ingest = open_doors(settings, async_pool)
        context.otlp = await stack.enter_async_context(
            serve_otlp(context.ingest, context.authenticator)
        )
        await hidden.refresh()
        for work in (feed.run(), hidden.run(), layer.beat(), context.ingest.feed.run()):
            await stack.enter_async_context(_running(work))
        yield context


@contextlib.asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Goes on beside the block and ends with it."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
