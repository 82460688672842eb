"""Bodies become models, or one clear error."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from moraine.errors import BadRequest, PayloadTooLarge, UnsupportedMediaType
from moraine.http.bodies import read_model, validate
from moraine.http.validation import explain
from moraine.tasks.schemas import TaskPayload


class Box(BaseModel):
    label: str
    inner: dict[str, Any] = {}


def read(
    *chunks: bytes, content_type: str = "application/json", hangs_up: bool = False, **headers: str
) -> Box:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks
    ]
    end = {"type": "http.disconnect"} if hangs_up else {"type": "http.request", "body": b""}
    waiting = iter([*messages, end])

    async def receive() -> dict[str, Any]:
        return next(waiting)

    given_headers = {"content-type": content_type, **headers}
    raw = [(k.replace("_", "-").encode(), v.encode("latin-1")) for k, v in given_headers.items()]
    request = Request({"type": "http", "method": "POST", "headers": raw}, receive)  # type: ignore[arg-type]
    return asyncio.run(read_model(request, Box, max_bytes=100))


def test_http_body_is_read_in_pieces() -> None:
    assert read(b'{"lab', b'el": "\xc3', b'\xa9"}').label == "é"


def test_http_body_is_bounded_whatever_length_was_declared() -> None:
    for length in ("101", "9" * 19):
        with pytest.raises(PayloadTooLarge):
            read(b"", content_length=length)
    for length in ("1", "-1", "\xb2", "x"):
        with pytest.raises(PayloadTooLarge):
            read(b" " * 60, b" " * 60, content_length=length)


def test_http_body_of_a_caller_that_hangs_up() -> None:
    with pytest.raises(BadRequest, match="hung up"):
        read(b'{"label"', hangs_up=True)


@pytest.mark.parametrize("content_type", ["", "text/json", "application/json; charset=utf-16"])
def test_http_body_of_another_media_type_is_refused(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        read(b'{"label": "x"}', content_type=content_type)


def test_http_body_with_a_repeated_name_at_any_depth_is_refused() -> None:
    assert validate(Box, b'{"label": "x", "inner": {"label": {"label": 1}}}').label == "x"
    for body in (
        b'{"label": "x", "label": "x"}',
        b'{"label": "x", "inner": {"a": [{"b": 1, "b": 2}]}}',
        b'{"label": "x", "inner": {"a": 1, "\\u0061": 1}}',
    ):
        with pytest.raises(BadRequest, match="twice"):
            validate(Box, body)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.binary(max_size=200))
def test_http_body_of_any_bytes_is_a_model_or_the_callers_mistake(body: bytes) -> None:
    with contextlib.suppress(BadRequest):
        read(body[:100])


@given(json_values)
def test_http_body_of_any_json_is_a_payload_or_the_callers_mistake(value: Any) -> None:
    with contextlib.suppress(BadRequest):
        validate(TaskPayload, json.dumps(value).encode())


def test_http_body_error_names_the_field_and_never_the_value() -> None:
    with pytest.raises(ValidationError) as caught:
        Box.model_validate({"label": ["hunter2"], "inner": "hunter2"})
    words = explain(caught.value, within="outer")
    assert words.startswith("outer.label: ")
    assert "outer.inner: " in words
    assert "hunter2" not in words


def test_http_body_error_about_the_whole_body() -> None:
    with pytest.raises(ValidationError) as caught:
        Box.model_validate_json("[")
    assert explain(caught.value).startswith("body: Invalid JSON")


def test_http_body_error_is_bounded() -> None:
    class Many(BaseModel):
        numbers: list[int]

    with pytest.raises(ValidationError) as caught:
        Many.model_validate({"numbers": ["x"] * 1000})
    words = explain(caught.value)
    assert words.endswith("; and 990 more")
    assert words.count(";") == 10
