"""Assembles the app. Airflow mounts it as a plugin; `moraine api` serves it alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.applications import Starlette
from starlette.routing import Mount

from moraine import operations
from moraine.api import health, openapi
from moraine.api.auth import Access, Authenticator
from moraine.api.context import Context
from moraine.api.errors import install_error_handlers
from moraine.api.metrics import LedgerMetrics
from moraine.api.probe import Probe
from moraine.dag_runs import AirflowSession, DagRuns
from moraine.settings import Settings, get_settings
from moraine.tasks import routes
from moraine.tasks.feed import TaskFeed
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore, open_pool

MOUNT_PATH = "/delegation-service/api"
_PATIENCE = timedelta(seconds=2)


def create_app(settings: Settings | None = None) -> FastAPI:
    app = FastAPI(
        title="Moraine Delegation Service",
        version="1.0.0",
        summary="Heavy work for Iceberg catalogs, done once whatever crashes",
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
        lifespan=_lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # A redirect is built from the Host header, which is the caller's.
        redirect_slashes=False,
    )
    app.state.settings = settings
    app.include_router(routes.router)
    app.include_router(health.router)
    install_error_handlers(app)

    @app.get("/openapi.json", include_in_schema=False, dependencies=[routes.requires(Access.READ)])
    async def document() -> dict[str, Any]:
        return openapi_document(app)

    return app


def create_standalone_app(settings: Settings | None = None) -> Starlette:
    """The same app at the same path, without Airflow's web server."""
    app = create_app(settings)

    @contextlib.asynccontextmanager
    async def lifespan(_outer: Starlette) -> AsyncIterator[None]:
        async with app.router.lifespan_context(app):
            yield

    outer = Starlette(routes=[Mount(MOUNT_PATH, app)], lifespan=lifespan)
    outer.router.redirect_slashes = False
    install_error_handlers(outer)
    return outer


def openapi_document(app: FastAPI | None = None) -> dict[str, Any]:
    """The contract, with the payload of every operation."""
    app = app or create_app()
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        license_info=app.license_info,
        routes=app.routes,
        servers=[{"url": MOUNT_PATH}],
    )
    openapi.complete(document, operations.OPERATIONS)
    return document


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings or get_settings()
    url = settings.ledger.url.get_secret_value()
    lease = settings.delegation.task.lease.lost_timeout_duration
    with open_pool(url, size=settings.ledger.pool_size) as pool:
        store = TaskStore(pool, lease=lease, patience=_PATIENCE)
        dag_runs = DagRuns(AirflowSession(settings.airflow))
        feed = TaskFeed(url, store)
        app.state.context = Context(
            settings=settings,
            service=TaskService(store, dag_runs, operations.OPERATIONS, settings),
            feed=feed,
            probes={
                "ledger": Probe("ledger", store.ping),
                "airflow": Probe("airflow", dag_runs.ping),
                "notifications": Probe("notifications", feed.check),
            },
            authenticator=Authenticator(settings.api, operations.purge.OPERATION.dag_id),
            metrics=LedgerMetrics(store, settings.api.metrics_cache_duration.total_seconds()),
        )
        listening = asyncio.create_task(feed.run())
        try:
            yield
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
