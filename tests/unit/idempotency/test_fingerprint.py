"""What makes two requests the same: RFC 8785, and what goes beyond it."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moraine.idempotency.fingerprint import NotCanonical, canonical_form, fingerprint

# --- The RFC's own test data ----------------------------------------------------------------

VECTORS = {
    "arrays": (
        '[\n  56,\n  {\n    "d": true,\n    "10": null,\n    "1": [ ]\n  }\n]',
        '[56,{"1":[],"10":null,"d":true}]',
    ),
    "french": (
        '{"peach": "This sorting order", "péché": "is wrong according to French",'
        ' "pêche": "but canonicalization MUST", "sin":   "ignore locale"}',
        '{"peach":"This sorting order","péché":"is wrong according to French",'
        '"pêche":"but canonicalization MUST","sin":"ignore locale"}',
    ),
    "structures": (
        '{"1": {"f": {"f": "hi","F": 5} ,"\\n": 56.0}, "10": { }, "": "empty", "a": { },'
        ' "111": [ {"e": "yes","E": "no" } ], "A": { }}',
        '{"":"empty","1":{"\\n":56,"f":{"F":5,"f":"hi"}},"10":{},'
        '"111":[{"E":"no","e":"yes"}],"A":{},"a":{}}',
    ),
    "unicode": (
        '{"Unnormalized Unicode":"A\\u030a"}',
        '{"Unnormalized Unicode":"A\u030a"}',
    ),
    "values": (
        '{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],'
        ' "string": "\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/",'
        ' "literals": [null, true, false]}',
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}',
    ),
    "weird": (
        '{"\\u20ac": "Euro Sign", "\\r": "Carriage Return", "\\u000a": "Newline", "1": "One",'
        ' "\\u0080": "Control\\u007f", "\\ud83d\\ude02": "Smiley",'
        ' "\\u00f6": "Latin Small Letter O With Diaeresis",'
        ' "\\ufb33": "Hebrew Letter Dalet With Dagesh", "</script>": "Browser Challenge"}',
        '{"\\n":"Newline","\\r":"Carriage Return","1":"One","</script>":"Browser Challenge",'
        '"\u0080":"Control\u007f","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign",'
        '"😂":"Smiley","\ufb33":"Hebrew Letter Dalet With Dagesh"}',
    ),
}

# Appendix B: the bits of a double, and how it is written.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}


@pytest.mark.parametrize("name", VECTORS)
def test_published_documents(name: str) -> None:
    text, expected = VECTORS[name]
    assert canonical_form(text.encode()) == expected.encode()
    assert canonical_form(expected.encode()) == expected.encode()
    assert fingerprint(text.encode()) == hashlib.sha256(expected.encode()).hexdigest()


@pytest.mark.parametrize("bits", NUMBERS)
def test_published_numbers(bits: str) -> None:
    [number] = struct.unpack(">d", bytes.fromhex(bits))
    # As any program writes a double that it reads back as the same one.
    assert canonical_form(repr(number).encode()) == NUMBERS[bits].encode()


def test_the_hash_is_of_the_canonical_form_in_lower_case_hex() -> None:
    body = b'{ "b": 2, "a": 1 }'
    assert fingerprint(body) == hashlib.sha256(b'{"a":1,"b":2}').hexdigest()
    assert fingerprint(body) == fingerprint(body).lower()


# --- Spellings ------------------------------------------------------------------------------

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _reversed(value[name]) for name in reversed(list(value))}
    return [_reversed(one) for one in value] if isinstance(value, list) else value


@given(_JSON)
def test_order_space_and_escapes_make_no_other_request(document: Any) -> None:
    plain = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    spelled = json.dumps(_reversed(document), indent=3, ensure_ascii=True).encode()
    assert fingerprint(b" \n" + spelled + b"\t\r\n") == fingerprint(plain)


@given(_JSON, _JSON)
def test_documents_that_differ_have_other_hashes(one: Any, other: Any) -> None:
    same = canonical_form(json.dumps(one).encode()) == canonical_form(json.dumps(other).encode())
    assert same == (_comparable(one) == _comparable(other))


def _comparable(value: Any) -> Any:
    """With types, so that true is not 1; but 1.0 is 1, as in JSON."""
    if isinstance(value, dict):
        return {name: _comparable(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    # A whole double beyond that is another spelling than an integer of the same value.
    return type(value).__name__, value


@pytest.mark.parametrize("text", ["1", "1.0", "1e0", "10e-1", "1.000"])
def test_spellings_of_a_number(text: str) -> None:
    assert canonical_form(text.encode()) == b"1"


# --- Large integers -------------------------------------------------------------------------


@given(st.integers(2**53 + 1, 2**63 - 1), st.integers(1, 1023), st.sampled_from([1, -1]))
def test_ids_that_are_the_same_double_are_not_the_same_id(
    first: int, distance: int, sign: int
) -> None:
    second = first + distance
    pair = [f'{{"snapshot-id": {sign * number}}}'.encode() for number in (first, second)]
    assert fingerprint(pair[0]) != fingerprint(pair[1])


def test_two_ids_that_round_to_one_double() -> None:
    one, other = 3497810964824022504, 3497810964824022505
    assert float(one) == float(other)
    assert fingerprint(b'{"id":%d}' % one) != fingerprint(b'{"id":%d}' % other)
    assert canonical_form(b'{"id": %d}' % one) == b'{"id":%d}' % one


@pytest.mark.parametrize("number", [2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63, 10**400])
def test_integers_have_all_their_digits(number: int) -> None:
    assert canonical_form(str(number).encode()) == str(number).encode()


def test_an_integer_is_not_the_text_of_its_digits() -> None:
    large = 2**60 + 1
    assert fingerprint(b'{"a":%d}' % large) != fingerprint(b'{"a":"%d"}' % large)


def test_integers_in_every_place() -> None:
    form = b'[9007199254740993,{"a":[9007199254740993,-9007199254740993]}]'
    assert canonical_form(form) == form


# --- What has no canonical form -------------------------------------------------------------

NOT_CANONICAL = {
    "not JSON": b"name=orders",
    "cut": b'{"a": [1, 2',
    "two documents": b"{} {}",
    "a name twice": b'{"a": 1, "a": 2}',
    "a name twice, deep inside": b'[{"b": {"a": 1, "a": 1}}]',
    "NaN": b'{"a": NaN}',
    "Infinity": b"[Infinity]",
    "-Infinity": b"[-Infinity]",
    "1e400": b'{"a": 1e400}',
    "-1e400": b'{"a": -1e400}',
    "a lone surrogate": b'{"a": "\\ud83d"}',
    "a lone surrogate in a name": b'{"\\udc00": 1}',
    "invalid UTF-8": b'{"a": "\xff"}',
    "only space": b"  ",
    "nested deeply": b"[" * 100_000 + b"]" * 100_000,
    "too many digits": b"1" * 5000,
}


@pytest.mark.parametrize("name", NOT_CANONICAL)
def test_bodies_without_a_canonical_form_are_their_own_identity(name: str) -> None:
    body = NOT_CANONICAL[name]
    with pytest.raises(NotCanonical):
        canonical_form(body)
    assert fingerprint(body) == fingerprint(bytes(body))
    assert fingerprint(body) != fingerprint(body + b" ")
    assert fingerprint(body) != fingerprint(b"{}")
    # Nor do they pass for a document that has one.
    assert fingerprint(body) != hashlib.sha256(body).hexdigest()


def test_which_of_two_values_counts_is_nobodys_guess() -> None:
    first, second = b'{"a":1,"a":2}', b'{"a":2,"a":1}'
    assert len({fingerprint(body) for body in (first, second, b'{"a":1}', b'{"a":2}')}) == 4


def test_an_empty_body() -> None:
    assert fingerprint(b"") == hashlib.sha256(b"").hexdigest()
    assert fingerprint(b"") not in {fingerprint(body) for body in (b"{}", b"null", b'""', b" ")}


# --- The query ------------------------------------------------------------------------------


def test_a_drop_that_purges_is_another_request() -> None:
    plain = fingerprint(b"")
    purging = fingerprint(b"", "purgeRequested=true")
    assert plain != purging
    for query in ("purgeRequested=false", "purgeRequested=FALSE", "purgeRequested=", ""):
        assert fingerprint(b"", query) == plain, query
    for query in ("purgeRequested=TRUE", "purgeRequested=True", "purgeRequested=%74rue"):
        assert fingerprint(b"", query) == purging, query


def test_the_order_of_a_query_means_nothing() -> None:
    assert fingerprint(b"", "b=2&a=1") == fingerprint(b"", "a=1&b=2") != fingerprint(b"", "a=1&b=3")


def test_a_query_does_not_pass_for_a_body() -> None:
    hashes = {
        fingerprint(b'[["a","1"]]'),
        fingerprint(b"", "a=1"),
        fingerprint(b'\n?[["a","1"]]'),
        fingerprint(b"{}", "a=1"),
        fingerprint(b'{}\n?[["a","1"]]'),
    }
    assert len(hashes) == 5


@given(st.text())
def test_any_query_has_a_fingerprint(query: str) -> None:
    assert len(fingerprint(b"{}", query.encode("utf-8", "replace").decode("latin-1"))) == 64


# --- Members that are no part of it ---------------------------------------------------------


def test_members_that_do_not_count() -> None:
    path = ["operation_parameters.config"]
    bodies = [
        b'{"operation_parameters": {"table": "t", "config": {"s3.secret-access-key": "1"}}}',
        b'{"operation_parameters": {"table": "t", "config": {"s3.secret-access-key": "2"}}}',
        b'{"operation_parameters": {"table": "t"}}',
    ]
    assert len({fingerprint(body, without=path) for body in bodies}) == 1
    assert len({fingerprint(body) for body in bodies}) == 3
    other = b'{"operation_parameters": {"table": "u"}}'
    assert fingerprint(other, without=path) != fingerprint(bodies[0], without=path)
    # Only there: a member of that name elsewhere counts.
    assert fingerprint(b'{"config": 1}', without=path) != fingerprint(b"{}", without=path)


@pytest.mark.parametrize("body", [b"[]", b"1", b'{"operation_parameters": [1]}', b"null", b"{}"])
def test_members_that_are_not_there(body: bytes) -> None:
    assert fingerprint(body, without=["operation_parameters.config"]) == fingerprint(body)
