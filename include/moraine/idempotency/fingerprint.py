"""The identity of a request's payload, however it is written: SHA-256 over its RFC 8785 form.

RFC 8785 writes numbers as doubles, which cannot hold Iceberg's 63-bit snapshot ids: two ids would
get one form. So an integer beyond 2^53 is written with all its digits here. For every document that
RFC 8785 can represent, the form is that of the RFC, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import rfc8785

# Neither occurs in a canonical document.
_NOT_JSON = b"\x00"
_QUERY = b"\n?"
_FLAGS = {"purgeRequested": False}
"""Boolean parameters and their defaults."""


class NotCanonical(ValueError):
    """The text is not JSON, or parsers disagree on its meaning."""


def fingerprint(body: bytes, query: str = "", *, without: Iterable[str] = ()) -> str:
    """The identity of a request's payload, as lower-case hex.

    A body without a canonical form is identified by its bytes. `without` names members (`a.b`) that
    are not part of the identity.
    """
    try:
        payload = canonical_form(body, without) if body else b""
    except NotCanonical:
        payload = _NOT_JSON + body
    if meaning := _meaning_of(query):
        payload += _QUERY + meaning
    return hashlib.sha256(payload).hexdigest()


def canonical_form(text: bytes, without: Iterable[str] = ()) -> bytes:
    marked = _Marked()
    try:
        document = json.loads(
            text, object_pairs_hook=_object, parse_float=marked.take, parse_constant=_refuse
        )
        for path in without:
            _remove(document, path.split("."))
        return marked.put_back(_written(document))
    except (ValueError, RecursionError) as error:
        raise NotCanonical(str(error)) from None


class _Marked:
    """Python writes some numbers differently from RFC 8785. They are replaced by marked strings
    until the document is written. The mark is random, so it cannot occur in the document."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        self._is_used = False

    def take(self, literal: str) -> float | int | str:
        number = float(literal)
        form = rfc8785.dumps(number).decode()
        if form.lstrip("-").isdecimal():
            return int(form)
        if form == repr(number):
            return number
        self._is_used = True
        return f"{self._mark}:{form}"

    def put_back(self, form: bytes) -> bytes:
        if not self._is_used:
            return form
        return re.sub(f'"{self._mark}:([^"]+)"'.encode(), rb"\1", form)


def _written(document: Any) -> bytes:
    """Write in one pass. The names of each object must be sorted, and the numbers must be ones that
    Python writes as the RFC does. Integers keep all their digits."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object with its names in the order of the RFC: by UTF-16 code units."""
    found = dict(sorted(pairs, key=_utf_16))
    if len(found) < len(pairs):
        raise NotCanonical("an object has a name twice: parsers differ in which value they take")
    return found


def _utf_16(pair: tuple[str, Any]) -> bytes:
    return pair[0].encode("utf-16be")


def _refuse(constant: str) -> Any:
    raise NotCanonical(f"{constant} is not JSON")


def _remove(document: Any, path: list[str]) -> None:
    *above, last = path
    for name in above:
        document = document.get(name) if isinstance(document, Mapping) else None
    if isinstance(document, dict):
        document.pop(last, None)


def _meaning_of(query: str) -> bytes:
    """The parameters, sorted, without those that equal their default."""
    given = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _FLAGS:
            flag = value.strip().lower() == "true"
            if flag == _FLAGS[name]:
                continue
            value = str(flag).lower()
        given.append([name, value])
    return _written(sorted(given)) if given else b""
