"""Completes FastAPI's OpenAPI document with what FastAPI cannot know."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from moraine.http.errors import ErrorResponse
from moraine.http.keys import HEADER
from moraine.http.openapi import REFERENCE
from moraine.tasks.examples import request_example, response_examples
from moraine.tasks.operation import Registry
from moraine.tasks.routes import errors
from moraine.tasks.schemas import TaskDetail, TaskPage, TaskPayload

_KEY = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "A retry with the same key is executed once and gets the same answer.",
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": 255,
        "pattern": "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$",
        "examples": ["0199c2f2-7d3c-7a5e-8a57-1f0b6d2c9e11"],
    },
}


def complete(document: dict[str, Any], operations: Registry) -> None:
    """Add the payload of every operation, examples, and which routes need no token."""
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
                    if "itemSchema" in content:  # is OpenAPI 3.2; this is 3.1
                        content["schema"] = content.pop("itemSchema")


def _add_schemas(schemas: dict[str, Any], operations: Registry) -> None:
    requests: list[type[BaseModel]] = [TaskPayload, *operations.parameter_models]
    # FastAPI does not see the requests.
    answers: list[type[BaseModel]] = [TaskDetail, TaskPage, ErrorResponse]
    for model in requests + answers:
        schema = model.model_json_schema(
            ref_template=REFERENCE, mode="validation" if model in requests else "serialization"
        )
        schemas.update(schema.pop("$defs", {}))
        schemas[model.__name__] = schema
    schemas["TaskPayload"]["properties"]["operation_parameters"] = {
        "anyOf": [
            {"$ref": REFERENCE.format(model=model.__name__)}
            for model in operations.parameter_models
        ]
    }
    operation_type = schemas["CommonPayload"]["properties"]["operation_type"]
    operation_type["enum"] = operations.names
    operation_type["examples"] = [operations.all[0].task_type]
    schemas["ExecutionResult"]["properties"] = {
        figure.name: {
            "type": "integer",
            "format": "int64",
            "title": figure.name.replace("_", " ").title(),
            "default": 0,
        }
        for figure in operations.figures
    }
    for name, example in response_examples(operations.all[0]).items():
        schemas[name]["examples"] = [example]


def _request_examples(operations: Registry) -> dict[str, Any]:
    """One for each operation, from the examples in the models."""
    return {
        operation.task_type: {
            "summary": operation.task_type,
            "value": request_example(operation),
        }
        for operation in operations.all
    }
