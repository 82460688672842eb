"""The OpenAPI document of the doors, in agreement with their routes."""

from __future__ import annotations

import jsonschema
import pytest

from moraine.app.assembly import ingest_openapi_document
from moraine.app.services import Services
from moraine.ingest.otlp import routes as otlp_routes
from moraine.ingest.rest.app import create_ingest_app

DOCUMENT = ingest_openapi_document()
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
}
STATUSES = {
    "ingestLines": "200 400 401 403 404 408 409 413 415 422 429 502 503",
    "getRequest": "200 401 403 404 429 503",
    "createTable": "201 400 401 403 408 409 413 415 429 502 503",
    "describeTable": "200 401 403 404 429 502 503",
    "promoteField": "201 400 401 403 404 408 409 413 415 429 502 503",
}


def test_ingest_openapi_has_every_route_but_those_of_otlp() -> None:
    served = {
        (method, route.path.replace(":path}", "}"))
        for route in create_ingest_app(Services().lifespan).routes
        for method in getattr(route, "methods", None) or ()
    }
    elsewhere = {("POST", route.path) for route in otlp_routes.router.routes}
    described = {(method, path) for method, path, _ in OPERATIONS.values()}
    assert served - described == {("GET", "/openapi.json"), *elsewhere}
    assert described <= served


def test_ingest_openapi_has_every_status_of_every_route() -> None:
    found = {name: " ".join(sorted(one["responses"])) for name, (_, _, one) in OPERATIONS.items()}
    assert found == STATUSES


@pytest.mark.parametrize("name", OPERATIONS)
def test_ingest_openapi_examples_fit_and_everything_is_described(name: str) -> None:
    _, _, operation = OPERATIONS[name]
    assert operation["security"] == [{"BearerAuth": []}]
    assert operation["summary"]
    contents = [
        content
        for part in (*operation["responses"].values(), operation.get("requestBody", {}))
        for content in part.get("content", {}).values()
    ]
    examples = [content for content in contents if "example" in content]
    assert len(examples) == len(contents) - 1, "all but the answer of a success have one"
    for content in examples:
        whole = {"components": DOCUMENT["components"], **content["schema"]}
        jsonschema.validate(content["example"], whole)
    for parameter in operation.get("parameters", []):
        assert parameter["in"] == "path" or parameter["description"]
