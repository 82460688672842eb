"""The OpenAPI document: complete, and in agreement with the specification."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from moraine.app.assembly import create_app, openapi_document
from moraine.errors import MoraineError
from moraine.tasks.model import Status

DOCUMENT = openapi_document()
SCHEMAS = DOCUMENT["components"]["schemas"]
ERRORS = {"$ref": "#/components/schemas/ErrorResponse"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def validator(schema: Any) -> jsonschema.Draft202012Validator:
    whole = {"components": DOCUMENT["components"], **schema}
    return jsonschema.Draft202012Validator(
        whole, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


def test_openapi_has_every_route() -> None:
    served = {
        (method, route.path)
        for route in create_app().routes
        for method in getattr(route, "methods", None) or ()
        if route.path != "/openapi.json"
    }
    assert {(method, path) for method, path, _ in operations()} == served
    assert served == {
        ("POST", "/v1/tasks/execute/synchronous"),
        ("POST", "/v1/tasks"),
        ("GET", "/v1/tasks"),
        ("GET", "/v1/tasks/{task_id}"),
        ("POST", "/v1/tasks/{task_id}/cancel"),
        ("POST", "/v1/tasks/{task_id}/retry"),
        ("GET", "/v1/tasks/{task_id}/events"),
        ("GET", "/v1/audit"),
        ("GET", "/v1/tombstones"),
        ("POST", "/v1/tombstones/{task_id}/lift"),
        ("GET", "/health/live"),
        ("GET", "/health/ready"),
        ("GET", "/metrics"),
    }


STATUSES = {
    "executeSynchronousTask": "200 400 401 403 408 409 413 415 422 429 500 502 503",
    "submitTask": "202 400 401 403 408 409 413 415 422 429 503",
    "listTasks": "200 400 401 403 429 503",
    "getTask": "200 400 401 403 404 429 503",
    "cancelTask": "202 400 401 403 404 409 422 429 503",
    "retryTask": "202 400 401 403 404 409 422 429 503",
    "streamTaskEvents": "200 400 401 403 404 429 503",
    "readAuditLog": "200 400 401 403 429 503",
    "listTombstones": "200 401 403 429 503",
    "liftTombstone": "200 400 401 403 404 409 429 503",
    "live": "200",
    "ready": "200 503",
    "metrics": "200 401 403 429 503",
}


def test_openapi_has_every_status_of_every_route() -> None:
    found = {
        operation["operationId"]: " ".join(sorted(operation["responses"]))
        for _, _, operation in operations()
    }
    assert found == STATUSES


def test_openapi_documents_every_status_of_a_failed_task() -> None:
    documented = set(STATUSES["executeSynchronousTask"].split())

    def walk(cls: type[MoraineError]) -> Iterator[type[MoraineError]]:
        yield cls
        for sub in cls.__subclasses__():
            yield from walk(sub)

    work = [cls for cls in walk(MoraineError) if cls.__module__ == "moraine.errors"]
    statuses = {str(cls.http_status) for cls in work}
    assert statuses - {"404"} <= documented, "404 is TASK_NOT_FOUND, which no work ends with"


def test_openapi_errors_have_the_one_error_body_and_an_example() -> None:
    for _, path, operation in operations():
        for status, response in operation["responses"].items():
            if int(status) < 400 or path == "/health/ready":
                continue
            content = response["content"]["application/json"]
            assert content["schema"] == ERRORS, (path, status)
            validator(ERRORS).validate(content["example"])
            assert response["description"]


def test_openapi_successes_have_a_schema_and_an_example_that_fits() -> None:
    for _, path, operation in operations():
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                continue
            [(media_type, content)] = response["content"].items()
            if media_type != "application/json":
                assert content["example"], path
                continue
            schema = SCHEMAS[content["schema"]["$ref"].rpartition("/")[2]]
            [example] = schema["examples"]
            validator(content["schema"]).validate(example)


def test_openapi_requests_have_an_example_that_fits_for_each_operation() -> None:
    bodies = [operation for _, _, operation in operations() if "requestBody" in operation]
    assert len(bodies) == 2
    for operation in bodies:
        content = operation["requestBody"]["content"]["application/json"]
        assert set(content["examples"]) == {"TABLE_PURGE"}
        for example in content["examples"].values():
            validator(content["schema"]).validate(example["value"])
        with pytest.raises(jsonschema.ValidationError):
            validator(content["schema"]).validate({})


def test_openapi_describes_every_parameter() -> None:
    for _, path, operation in operations():
        assert operation["summary"]
        for parameter in operation.get("parameters", []):
            if parameter["in"] != "path":
                assert parameter.get("description"), (path, parameter["name"])


def test_openapi_asks_for_a_token_everywhere_but_for_health() -> None:
    for _, path, operation in operations():
        open_to_all = path.startswith("/health/")
        assert operation["security"] == ([] if open_to_all else [{"BearerAuth": []}])


# --- The specification of the Delegation Service, where product.md does not change it --------

SPECIFIED_FIELDS = {
    "TaskPayload": ({"common_payload", "operation_parameters"}, set()),
    "CommonPayload": (
        {"operation_type", "realm_identifier"},
        {"request_timestamp_utc", "polaris_correlation_id"},
    ),
    "PurgeParameters": (
        {"table_identity"},
        {"metadata_location", "metadata", "config", "properties"},
    ),
    "TableIdentity": ({"catalog_name", "namespace_levels", "table_name"}, {"table_entity_id"}),
    "PinnedMetadata": (set(), {"location", "table-uuid", "format-version"}),
    "TaskSuccessResponse": (
        {"delegation_task_id", "status", "message", "execution_result"},
        set(),
    ),
    "ExecutionResult": (set(), {"files_deleted", "bytes_deleted"}),
    "TaskAcceptedResponse": ({"delegation_task_id", "status", "status_query_url"}, set()),
    "ErrorResponse": ({"error_code", "message"}, {"delegation_task_id", "status", "details"}),
}


@pytest.mark.parametrize("name", SPECIFIED_FIELDS)
def test_openapi_fields_agree_with_the_specification(name: str) -> None:
    required, optional = SPECIFIED_FIELDS[name]
    schema = SCHEMAS[name]
    assert set(schema.get("required", [])) == required
    assert set(schema["properties"]) == required | optional


def test_openapi_types_agree_with_the_specification() -> None:
    error = SCHEMAS["ErrorResponse"]["properties"]
    assert (error["delegation_task_id"]["type"], error["delegation_task_id"]["format"]) == (
        "string",
        "uuid",
    )
    assert error["status"]["const"] == "FAILED_TERMINAL"
    assert SCHEMAS["TaskSuccessResponse"]["properties"]["status"]["const"] == "COMPLETED_SUCCESS"
    result = SCHEMAS["ExecutionResult"]["properties"]
    assert {field["format"] for field in result.values()} == {"int64"}
    common = SCHEMAS["CommonPayload"]["properties"]
    assert set(common["operation_type"]["enum"]) == {
        "TABLE_PURGE",
        "SYNCHRONOUS_TABLE_PURGE",
        "PURGE_TABLE",
        "DATA_FILE_PURGE",
    }
    assert SCHEMAS["TaskRecord"]["properties"]["status"]["enum"] == [s.wire for s in Status]
    assert DOCUMENT["servers"] == [{"url": "/delegation-service/api"}]
