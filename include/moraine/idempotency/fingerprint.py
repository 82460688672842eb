"""What a request says, whatever way it is written down: SHA-256 over its RFC 8785 form.

RFC 8785 writes numbers as doubles, and those cannot hold Iceberg's 63-bit snapshot ids: two ids
would come out as one. So an integer beyond 2^53 is written with all its digits here. For every
document that RFC 8785 can hold, the form is that of the RFC, to the byte.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import rfc8785

_LARGEST = 2**53 - 1
# Neither begins a canonical document, nor stands in one.
_NOT_JSON = b"\x00"
_QUERY = b"\n?"
_FLAGS = {"purgeRequested": False}
"""Parameters that are true or false, and what they are if they are not there."""


class NotCanonical(ValueError):
    """The text is no JSON, or means different things to different readers."""


def fingerprint(body: bytes, query: str = "", *, without: Iterable[str] = ()) -> str:
    """The identity of a request's payload, as lower-case hex.

    A body that has no canonical form is its own identity, byte by byte. `without` names members
    (`a.b`) that are no part of what the request asks for.
    """
    try:
        payload = canonical_form(body, without) if body else b""
    except NotCanonical:
        payload = _NOT_JSON + body
    if meaning := _meaning_of(query):
        payload += _QUERY + meaning
    return hashlib.sha256(payload).hexdigest()


def canonical_form(text: bytes, without: Iterable[str] = ()) -> bytes:
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise NotCanonical(str(error)) from None
    for path in without:
        _remove(document, path.split("."))
    return canonical(document)


def canonical(document: Any) -> bytes:
    """RFC 8785, with integers of any size."""
    large: dict[str, int] = {}
    # Marked by what nobody can have put into a text: it was made just now.
    mark = secrets.token_hex(8)
    try:
        form: bytes = rfc8785.dumps(_without_large(document, mark, large))
    except (rfc8785.CanonicalizationError, UnicodeError, RecursionError) as error:
        raise NotCanonical(str(error)) from None
    for text, number in large.items():
        form = form.replace(f'"{text}"'.encode(), str(number).encode())
    return form


def _without_large(value: Any, mark: str, large: dict[str, int]) -> Any:
    """The value with texts in place of its large integers, each text kept with its number."""
    if isinstance(value, dict):
        return {name: _without_large(one, mark, large) for name, one in value.items()}
    if isinstance(value, list):
        return [_without_large(one, mark, large) for one in value]
    if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        text = f"{mark}:{value}"
        large[text] = value
        return text
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise NotCanonical("an object has a name twice: readers differ in which one they take")
    return found


def _refuse(constant: str) -> Any:
    raise NotCanonical(f"{constant} is no JSON")


def _remove(document: Any, path: list[str]) -> None:
    *above, last = path
    for name in above:
        document = document.get(name) if isinstance(document, Mapping) else None
    if isinstance(document, dict):
        document.pop(last, None)


def _meaning_of(query: str) -> bytes:
    """The parameters in order, without those that only repeat a default."""
    given = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _FLAGS:
            flag = value.strip().lower() == "true"
            if flag == _FLAGS[name]:
                continue
            value = str(flag).lower()
        given.append([name, value])
    return canonical(sorted(given)) if given else b""
