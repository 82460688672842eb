"""What FastAPI cannot know about the contract, added to the document it writes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from moraine.idempotency.key import HEADER
from moraine.tasks.operation import Registry
from moraine.tasks.routes import errors
from moraine.tasks.schemas import CommonPayload, ErrorResponse, TaskDetail, TaskPage, TaskPayload

_REFERENCE = "#/components/schemas/{model}"
_KEY = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "A repetition with the same key is carried out once, and answered alike.",
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": 255,
        "pattern": "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$",
        "examples": ["0199c2f2-7d3c-7a5e-8a57-1f0b6d2c9e11"],
    },
}


def complete(document: dict[str, Any], operations: Registry) -> None:
    """Add the payload of every operation, examples, and whom anybody may ask."""
    _add_schemas(document["components"]["schemas"], operations)
    for path, item in document["paths"].items():
        for route in item.values():
            if path.startswith("/health"):
                route["security"] = []
            if item.get("post") is route and path.startswith("/v1/tasks"):
                route.setdefault("parameters", []).append(_KEY)
                route["responses"] |= {str(k): v for k, v in errors(409, 422).items()}
            for parameter in route.get("parameters", []):
                if parameter["name"] == "type":
                    parameter["schema"]["anyOf"][0]["enum"] = operations.names
            if "requestBody" in route:
                body = route["requestBody"]["content"]["application/json"]
                body["examples"] = _request_examples(operations)
            for response in route["responses"].values():
                for content in response["content"].values():
                    if "itemSchema" in content:  # a word of OpenAPI 3.2; this is 3.1
                        content["schema"] = content.pop("itemSchema")


def _add_schemas(schemas: dict[str, Any], operations: Registry) -> None:
    requests: list[type[BaseModel]] = [TaskPayload, *operations.parameter_models]
    # FastAPI does not see the requests, and takes every null out of the records' examples.
    answers: list[type[BaseModel]] = [TaskDetail, TaskPage, ErrorResponse]
    for model in requests + answers:
        schema = model.model_json_schema(
            ref_template=_REFERENCE, mode="validation" if model in requests else "serialization"
        )
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    schemas["TaskPayload"]["properties"]["operation_parameters"] = {
        "anyOf": [
            {"$ref": _REFERENCE.format(model=model.__name__)}
            for model in operations.parameter_models
        ]
    }
    schemas["CommonPayload"]["properties"]["operation_type"]["enum"] = operations.names


def _request_examples(operations: Registry) -> dict[str, Any]:
    """One for each operation, from the examples in the models."""
    common = {
        name: field.examples[0]
        for name, field in CommonPayload.model_fields.items()
        if field.examples
    }
    return {
        operation.task_type: {
            "summary": operation.task_type,
            "value": {
                "common_payload": {**common, "operation_type": operation.task_type},
                "operation_parameters": operation.parameters.model_json_schema()["examples"][0],
            },
        }
        for operation in {operations.named(name): None for name in operations.names}
    }
