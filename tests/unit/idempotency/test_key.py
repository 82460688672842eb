"""Which Idempotency-Key headers are taken, and as what."""

from __future__ import annotations

from uuid import UUID

import pytest
import uuid6

from moraine.http.keys import Format, InvalidKey, parse_key

V4 = "550e8400-e29b-41d4-a716-446655440000"
V7 = "01980a5c-0000-7000-8000-000000000001"


def test_idempotency_key_is_none_without_the_header() -> None:
    assert parse_key([], "any") is None


@pytest.mark.parametrize(
    "key", ["a", "0", "Z9", "a_b", "a.b", "a-b", "a-_.", "key-xyz", "abc123", "x" * 255, V4, V7]
)
def test_idempotency_key_of_the_pattern_is_taken_as_it_is(key: str) -> None:
    assert parse_key([key], "any") == key


def test_idempotency_key_is_case_sensitive() -> None:
    assert parse_key(["aBc"], "any") != parse_key(["abc"], "any")


def test_idempotency_key_has_no_surrounding_space() -> None:
    assert parse_key([" \tabc\t "], "any") == "abc"


@pytest.mark.parametrize(
    "key",
    [
        "",
        " ",
        "x" * 256,
        "-a",
        "_a",
        ".a",
        "a b",
        "a\tb",
        "a\n",
        "a\r\nb",
        "a/b",
        "a,b",
        '"a"',
        "a%20",
        "a+b",
        "é",
        "\u0661",  # a digit, but not one of ours
        "a\x00",
        "\x1fa",
    ],
)
@pytest.mark.parametrize("form", ["any", "uuid", "uuid7"])
def test_idempotency_key_that_is_malformed_is_refused(key: str, form: Format) -> None:
    with pytest.raises(InvalidKey) as refusal:
        parse_key([key], form)
    assert refusal.value.http_status == 400
    assert "Idempotency-Key" in str(refusal.value)


@pytest.mark.parametrize("values", [["a", "a"], ["a", "b"], [V7, V7, V7], ["", ""]])
def test_idempotency_key_in_two_headers_is_refused(values: list[str]) -> None:
    with pytest.raises(InvalidKey, match=f"{len(values)} times"):
        parse_key(values, "any")


@pytest.mark.parametrize("key", [V4, V7, str(UUID(int=0)), str(UUID(int=2**128 - 1))])
def test_idempotency_key_may_be_any_uuid_where_a_uuid_is_wanted(key: str) -> None:
    assert parse_key([key], "uuid") == key


@pytest.mark.parametrize("form", ["uuid", "uuid7"])
def test_idempotency_key_that_is_a_uuid_ignores_case(form: Format) -> None:
    assert parse_key([V7.upper()], form) == parse_key([V7], form) == V7


def test_idempotency_key_of_any_form_keeps_the_case_of_a_uuid() -> None:
    assert parse_key([V4.upper()], "any") == V4.upper()


def test_idempotency_key_must_be_uuid_version_7_where_that_is_wanted() -> None:
    key = str(uuid6.uuid7())
    assert parse_key([key], "uuid7") == key
    with pytest.raises(InvalidKey, match="version 7"):
        parse_key([V4], "uuid7")


@pytest.mark.parametrize(
    "key", ["abc", V4[:-1], V4 + "0", V4.replace("-", ""), f"urn-{V4}", V4.replace("5", "g", 1)]
)
@pytest.mark.parametrize("form", ["uuid", "uuid7"])
def test_idempotency_key_that_is_no_uuid_is_refused_where_one_is_wanted(
    key: str, form: Format
) -> None:
    assert parse_key([key], "any") == key
    with pytest.raises(InvalidKey, match="UUID"):
        parse_key([key], form)
