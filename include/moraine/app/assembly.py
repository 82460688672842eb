"""Assembles the apps. Airflow mounts them as a plugin; `moraine api` serves them alone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from moraine import operations
from moraine.access.model import Action
from moraine.access.peer import read_proxy_header
from moraine.app import audit, health, openapi
from moraine.app.services import Services
from moraine.drops import routes as tombstones
from moraine.gateway.model import GATEWAY_PATH
from moraine.http import DELEGATION_PATH
from moraine.http.context import requires
from moraine.http.errors import install_error_handlers, render_error
from moraine.http.limits import LimitedRequests
from moraine.http.openapi import document_of, new_app
from moraine.http.peer import ProxiedCertificates
from moraine.ingest.rest.app import INGEST_PATH, create_ingest_app, ingest_document
from moraine.settings import Settings
from moraine.tasks import routes
from moraine.tasks.keyed_routes import KeyedTasks


def create_apps(settings: Settings | None = None) -> dict[str, FastAPI]:
    """The apps of one process, by the path where each is mounted."""
    services = Services(settings)
    return {
        DELEGATION_PATH: create_app(services),
        GATEWAY_PATH: GatewayApp(services),
        INGEST_PATH: create_ingest_app(services.lifespan),
    }


def create_app(services: Services | None = None) -> FastAPI:
    app = new_app(
        (services or Services()).lifespan,
        title="Moraine Delegation Service",
        summary="Heavy work for Iceberg catalogs, done once whatever crashes",
    )
    app.include_router(routes.router)
    app.include_router(tombstones.router)
    app.include_router(audit.router)
    app.include_router(health.router)
    install_error_handlers(app)
    app.add_middleware(KeyedTasks)
    app.add_middleware(
        LimitedRequests, limits_of=lambda limits: limits.delegation, render=render_error
    )
    app.add_middleware(ProxiedCertificates)

    @app.get("/openapi.json", include_in_schema=False, dependencies=[requires(Action.READ_TASKS)])
    async def document() -> dict[str, Any]:
        return openapi_document(app)

    return app


class GatewayApp(FastAPI):
    """The gateway in the form that Airflow mounts: an app with a lifespan. Requests bypass the rest
    of FastAPI, which would only take time."""

    def __init__(self, services: Services) -> None:
        super().__init__(lifespan=services.lifespan, openapi_url=None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            read_proxy_header(scope, self.state.context.settings.api.proxy)
            await self.state.context.gateway(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class StandaloneApp(Starlette):
    """All apps of a process. Requests to the gateway bypass Starlette's middleware, which takes a
    fourteenth of the time of a read through the gateway."""

    gateway: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(f"{GATEWAY_PATH}/"):
            root = scope.get("root_path", "") + GATEWAY_PATH
            await self.gateway({**scope, "root_path": root}, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_standalone_app(settings: Settings | None = None) -> Starlette:
    """The same apps at the same paths, without Airflow's web server."""
    apps = create_apps(settings)
    mounts = [Mount(path, app) for path, app in apps.items()]

    @contextlib.asynccontextmanager
    async def lifespan(_outer: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for app in apps.values():
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    outer = StandaloneApp(routes=mounts, lifespan=lifespan)
    outer.gateway = apps[GATEWAY_PATH]
    outer.router.redirect_slashes = False
    install_error_handlers(outer)
    return outer


def ingest_openapi_document() -> dict[str, Any]:
    return ingest_document(create_ingest_app(Services().lifespan))


def openapi_document(app: FastAPI | None = None) -> dict[str, Any]:
    """The contract, with the payload of every operation."""
    document = document_of(app or create_app(), DELEGATION_PATH)
    openapi.complete(document, operations.OPERATIONS)
    return document
