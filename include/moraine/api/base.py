"""What the apps with a contract of their own have in common."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from moraine.api.services import Services

_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "JWT",
    "description": "An Airflow token, or a JWT of the configured issuer with the scope "
    "execute_tasks.",
}


def new_app(services: Services, *, title: str, summary: str) -> FastAPI:
    return FastAPI(
        title=title,
        version="1.0.0",
        summary=summary,
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
        lifespan=services.lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # A redirect is built from the Host header, which is the caller's.
        redirect_slashes=False,
    )


def document_of(app: FastAPI, path: str) -> dict[str, Any]:
    """The contract as FastAPI knows it, of an app that is mounted at the path."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        license_info=app.license_info,
        routes=app.routes,
        servers=[{"url": path}],
    )
    document["components"]["securitySchemes"] = {"BearerAuth": _BEARER}
    for item in document["paths"].values():
        for route in item.values():
            route["security"] = [{"BearerAuth": []}]
            # Bad parameters are answered with 400 and the contract's error body.
            if "HTTPValidationError" in str(route["responses"].get("422")):
                del route["responses"]["422"]
    for unused in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(unused, None)
    return document
