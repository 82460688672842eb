"""The OpenAPI document of the doors, in agreement with their routes."""

from __future__ import annotations

import jsonschema
import pytest

from moraine.ingest.app import create_ingest_app, ingest_document
from moraine.ingest.otlp import http_routes

DOCUMENT = ingest_document()
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
}
STATUSES = {
    "ingestLines": "200 400 401 403 404 409 413 415 422 429 502 503",
    "getRequest": "200 401 403 404 503",
    "createTable": "201 400 401 403 409 413 415 502 503",
    "describeTable": "200 401 403 404 502 503",
    "promoteField": "201 400 401 403 404 409 413 415 502 503",
}


def test_it_has_every_route_but_those_of_otlp() -> None:
    served = {
        (method, route.path.replace(":path}", "}"))
        for route in create_ingest_app().routes
        for method in getattr(route, "methods", None) or ()
    }
    elsewhere = {("POST", route.path) for route in http_routes.router.routes}
    described = {(method, path) for method, path, _ in OPERATIONS.values()}
    assert served - described == {("GET", "/openapi.json"), *elsewhere}
    assert described <= served


def test_every_status_of_every_route() -> None:
    found = {name: " ".join(sorted(one["responses"])) for name, (_, _, one) in OPERATIONS.items()}
    assert found == STATUSES


@pytest.mark.parametrize("name", OPERATIONS)
def test_examples_fit_and_everything_is_described(name: str) -> None:
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
