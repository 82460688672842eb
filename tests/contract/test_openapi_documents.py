"""What holds of every OpenAPI document: it is checked in, valid, and refers to what it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import schemathesis

from moraine.app.assembly import ingest_openapi_document, openapi_document

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.parametrize(
    ("file", "document"),
    [
        pytest.param(DOCS / "openapi.json", openapi_document(), id="delegation"),
        pytest.param(DOCS / "ingest-openapi.json", ingest_openapi_document(), id="ingest"),
    ],
)


def test_openapi_document_in_the_repository_is_what_the_app_serves(
    file: Path, document: Any
) -> None:
    assert json.loads(file.read_text()) == document, "run `make openapi` and commit the file"


def test_openapi_document_is_valid_openapi_3_1(file: Path, document: Any) -> None:
    assert document["openapi"].startswith("3.1")
    schemathesis.openapi.from_dict(document).validate()
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_openapi_document_has_no_broken_reference_and_no_unused_schema(
    file: Path, document: Any
) -> None:
    text, schemas = json.dumps(document), document["components"]["schemas"]
    for name in schemas:
        assert f'"#/components/schemas/{name}"' in text, f"{name} is not used"
    for reference in text.split('"$ref": "')[1:]:
        assert reference.partition('"')[0].removeprefix("#/components/schemas/") in schemas
