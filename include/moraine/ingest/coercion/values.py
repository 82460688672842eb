"""The contract of values: what each type of column takes, and what is kept of it.

Each rule gets a value that is not null and its text as sent, and answers with what Arrow stores.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from moraine.ingest.coercion.json_lines import has_lone_surrogate
from moraine.ingest.coercion.rejection import Unfit
from moraine.ingest.coercion.timestamps import microseconds, parse_rfc3339
from moraine.ingest.columns import ColumnType, Kind

Rule = Callable[[Any, str], Any]
"""(value, raw) -> what is stored; raises Unfit."""

_INTEGER = re.compile(r"-?[0-9]+")
_LONGEST_INTEGER = 20


def rule_of(column_type: ColumnType) -> Rule:
    if column_type.kind is Kind.VECTOR:
        return _vector_of(column_type.length)
    return _RULES[column_type.kind]


def expectation(column_type: ColumnType) -> str:
    """What an error says was expected."""
    return _EXPECTED.get(column_type.kind, str(column_type)).format(length=column_type.length)


def _bool(value: Any, _raw: str) -> bool:
    if type(value) is not bool:
        raise Unfit("neither true nor false")
    return value


def _integer(value: Any, raw: str) -> int:
    if type(value) is not float:
        raise Unfit("not a number")
    if not _INTEGER.fullmatch(raw):
        raise Unfit("written with a fraction or an exponent")
    if len(raw) > _LONGEST_INTEGER:
        raise Unfit("out of range")
    return int(raw)


def _integer_of(bits: int) -> Rule:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def integer(value: Any, raw: str) -> int:
        number = _integer(value, raw)
        if not least <= number <= most:
            raise Unfit("out of range")
        return number

    return integer


def _real(value: Any, _raw: str) -> float:
    if type(value) is not float:
        raise Unfit("not a number")
    if not math.isfinite(value):
        raise Unfit("too large for a double")
    return value


def _string(value: Any, _raw: str) -> str:
    if type(value) is not str:
        raise Unfit("a declared string column takes strings only")
    if has_lone_surrogate(value):
        raise Unfit("half of a surrogate pair")
    return value


def _text(value: Any, raw: str) -> str:
    return _string(value, raw) if type(value) is str else raw


def _timestamp(value: Any, raw: str) -> int:
    if type(value) is str:
        return parse_rfc3339(value)
    if type(value) is not float:
        raise Unfit("neither a string nor a number")
    return microseconds(_integer(value, raw))


def _vector_of(length: int) -> Rule:
    def vector(value: Any, _raw: str) -> list[float]:
        if type(value) is not list:
            raise Unfit("not an array")
        if len(value) != length:
            raise Unfit(f"it has {len(value)} elements")
        for position, element in enumerate(value, 1):
            if type(element) is not float:
                raise Unfit(f"element {position} is not a number")
        with np.errstate(over="ignore"):
            fits = np.isfinite(np.array(value, np.float64).astype(np.float32))
        if not fits.all():
            raise Unfit(f"element {int(fits.argmin()) + 1} is too large for a float")
        return value

    return vector


def _dynamic(_value: Any, raw: str) -> bytes:
    return raw.encode()


def _foreign(_value: Any, _raw: str) -> None:
    raise Unfit("ingest does not write columns of this type")


_RULES: dict[Kind, Rule] = {
    Kind.BOOL: _bool,
    Kind.INT: _integer_of(32),
    Kind.LONG: _integer_of(64),
    Kind.REAL: _real,
    Kind.STRING: _string,
    Kind.TEXT: _text,
    Kind.TIMESTAMP: _timestamp,
    Kind.DYNAMIC: _dynamic,
    Kind.FOREIGN: _foreign,
}
_EXPECTED = {
    Kind.BOOL: "bool: true or false",
    Kind.INT: "int: a whole number of 32 bits",
    Kind.LONG: "long: a whole number of 64 bits",
    Kind.REAL: "real: a number",
    Kind.TIMESTAMP: "timestamp: RFC 3339 with a time zone, or whole nanoseconds since 1970",
    Kind.VECTOR: "vector({length}): an array of {length} numbers",
}
