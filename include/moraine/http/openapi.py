"""Apps with an OpenAPI contract of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.config import JsonDict

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

REFERENCE = "#/components/schemas/{model}"
_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "JWT",
    "description": "An Airflow token, or a JWT of the configured issuer with the scope "
    "execute_tasks.",
}


def new_app(lifespan: Lifespan, *, title: str, summary: str) -> FastAPI:
    return FastAPI(
        title=title,
        version="1.0.0",
        summary=summary,
        license_info={"name": "Apache 2.0", "identifier": "Apache-2.0"},
        lifespan=lifespan,
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


def error_responses(
    model: str, errors: Mapping[int, tuple[str, Any]]
) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route: for each status a description and an example."""
    return {
        status: {
            "description": description,
            # Not as a model: FastAPI would file it under the media type of the route's success.
            "content": {
                "application/json": {
                    "schema": {"$ref": REFERENCE.format(model=model)},
                    "example": example,
                }
            },
        }
        for status, (description, example) in sorted(errors.items())
    }


def omit_default(schema: JsonDict) -> None:
    """Absent fields are absent on the wire, so the contract has neither null nor a default."""
    schema.pop("default", None)
