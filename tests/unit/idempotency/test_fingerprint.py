"""What makes two requests the same: RFC 8785, and what goes beyond it."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
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
def test_fingerprint_of_published_documents(name: str) -> None:
    text, expected = VECTORS[name]
    assert canonical_form(text.encode()) == expected.encode()
    assert canonical_form(expected.encode()) == expected.encode()
    assert fingerprint(text.encode()) == hashlib.sha256(expected.encode()).hexdigest()


@pytest.mark.parametrize("bits", NUMBERS)
def test_fingerprint_of_published_numbers(bits: str) -> None:
    [number] = struct.unpack(">d", bytes.fromhex(bits))
    # As any program writes a double that it reads back as the same one.
    assert canonical_form(repr(number).encode()) == NUMBERS[bits].encode()


def test_fingerprint_is_the_hash_of_the_canonical_form_in_lower_case_hex() -> None:
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
def test_fingerprint_ignores_order_space_and_escapes(document: Any) -> None:
    plain = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    spelled = json.dumps(_reversed(document), indent=3, ensure_ascii=True).encode()
    assert fingerprint(b" \n" + spelled + b"\t\r\n") == fingerprint(plain)


@given(_JSON, _JSON)
def test_fingerprint_differs_for_different_documents(one: Any, other: Any) -> None:
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
def test_fingerprint_of_the_spellings_of_a_number(text: str) -> None:
    assert canonical_form(text.encode()) == b"1"


# --- Large integers -------------------------------------------------------------------------


@given(st.integers(2**53 + 1, 2**63 - 1), st.integers(1, 1023), st.sampled_from([1, -1]))
def test_fingerprint_distinguishes_ids_that_are_the_same_double(
    first: int, distance: int, sign: int
) -> None:
    second = first + distance
    pair = [f'{{"snapshot-id": {sign * number}}}'.encode() for number in (first, second)]
    assert fingerprint(pair[0]) != fingerprint(pair[1])


def test_fingerprint_distinguishes_two_ids_that_round_to_one_double() -> None:
    one, other = 3497810964824022504, 3497810964824022505
    assert float(one) == float(other)
    assert fingerprint(b'{"id":%d}' % one) != fingerprint(b'{"id":%d}' % other)
    assert canonical_form(b'{"id": %d}' % one) == b'{"id":%d}' % one


@pytest.mark.parametrize(
    "number",
    [2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63, pytest.param(10**400, id="10**400")],
)
def test_fingerprint_keeps_all_digits_of_integers(number: int) -> None:
    assert canonical_form(str(number).encode()) == str(number).encode()


def test_fingerprint_distinguishes_an_integer_from_the_text_of_its_digits() -> None:
    large = 2**60 + 1
    assert fingerprint(b'{"a":%d}' % large) != fingerprint(b'{"a":"%d"}' % large)


def test_fingerprint_of_integers_in_every_place() -> None:
    form = b'[9007199254740993,{"a":[9007199254740993,-9007199254740993]}]'
    assert canonical_form(form) == form


def test_fingerprint_of_as_many_large_integers_as_a_body_can_hold() -> None:
    """Each is written once: a pass over the document for each of them would take days."""
    form = b'{"snapshot-ids":[%s]}' % b",".join(b"%d" % (2**60 + n) for n in range(300_000))
    assert canonical_form(form) == form


# --- The identities that ledgers hold -------------------------------------------------------


def defined(document: Any) -> bytes:
    """The definition: RFC 8785 as its library writes it, and integers beyond it in full."""
    large: dict[str, int] = {}

    def without_large(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without_large(one) for name, one in value.items()}
        if isinstance(value, list):
            return [without_large(one) for one in value]
        if isinstance(value, int) and not -(2**53) < value < 2**53:
            large[f"9f0c41d2b7e85a36:{value}"] = value
            return f"9f0c41d2b7e85a36:{value}"
        return value

    form: bytes = rfc8785.dumps(without_large(document))
    for text, number in large.items():
        form = form.replace(f'"{text}"'.encode(), str(number).encode())
    return form


@given(_JSON)
@example([1e16, 1e21, 1e-4, 1e-5, -1.5e-6, 1e-7, 1.25e-10, 5e-324, -0.0, 0.1, 2.0**60])
@example({"\U0001f602": 1, "\ufb33": 2, "a\x7f\x00\u2028": '\x1f\\/"\b\f\n\r\t\x7f'})
def test_fingerprint_of_a_request_stays_the_same_between_versions(document: Any) -> None:
    for text in (json.dumps(document), json.dumps(document, ensure_ascii=False, indent=1)):
        assert canonical_form(text.encode()) == defined(document)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_fingerprint_of_a_number_stays_the_same_between_versions(number: float) -> None:
    for text in (repr(number), f"{number:.17e}"):
        assert canonical_form(text.encode()) == rfc8785.dumps(number)


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
def test_fingerprint_of_a_body_without_canonical_form_is_of_its_bytes(name: str) -> None:
    body = NOT_CANONICAL[name]
    with pytest.raises(NotCanonical):
        canonical_form(body)
    assert fingerprint(body) == fingerprint(bytes(body))
    assert fingerprint(body) != fingerprint(body + b" ")
    assert fingerprint(body) != fingerprint(b"{}")
    # Nor do they pass for a document that has one.
    assert fingerprint(body) != hashlib.sha256(body).hexdigest()


def test_fingerprint_finds_no_canonical_form_with_a_repeated_name() -> None:
    first, second = b'{"a":1,"a":2}', b'{"a":2,"a":1}'
    assert len({fingerprint(body) for body in (first, second, b'{"a":1}', b'{"a":2}')}) == 4


def test_fingerprint_of_an_empty_body() -> None:
    assert fingerprint(b"") == hashlib.sha256(b"").hexdigest()
    assert fingerprint(b"") not in {fingerprint(body) for body in (b"{}", b"null", b'""', b" ")}


# --- The query ------------------------------------------------------------------------------


def test_fingerprint_of_a_drop_that_purges_differs() -> None:
    plain = fingerprint(b"")
    purging = fingerprint(b"", "purgeRequested=true")
    assert plain != purging
    for query in ("purgeRequested=false", "purgeRequested=FALSE", "purgeRequested=", ""):
        assert fingerprint(b"", query) == plain, query
    for query in ("purgeRequested=TRUE", "purgeRequested=True", "purgeRequested=%74rue"):
        assert fingerprint(b"", query) == purging, query


def test_fingerprint_ignores_the_order_of_a_query() -> None:
    assert fingerprint(b"", "b=2&a=1") == fingerprint(b"", "a=1&b=2") != fingerprint(b"", "a=1&b=3")


def test_fingerprint_distinguishes_a_query_from_a_body() -> None:
    hashes = {
        fingerprint(b'[["a","1"]]'),
        fingerprint(b"", "a=1"),
        fingerprint(b'\n?[["a","1"]]'),
        fingerprint(b"{}", "a=1"),
        fingerprint(b'{}\n?[["a","1"]]'),
    }
    assert len(hashes) == 5


@given(st.text())
def test_fingerprint_exists_for_any_query(query: str) -> None:
    assert len(fingerprint(b"{}", query.encode("utf-8", "replace").decode("latin-1"))) == 64


# --- Members that are no part of it ---------------------------------------------------------


def test_fingerprint_ignores_some_members() -> None:
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
def test_fingerprint_accepts_that_ignored_members_are_missing(body: bytes) -> None:
    assert fingerprint(body, without=["operation_parameters.config"]) == fingerprint(body)
