"""The contract of values: what each column type accepts, and what is stored.

A rule gets a value that is not null, with its text as sent, and returns what Arrow stores.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date
from typing import Any

import numpy as np

from moraine.ingest.coercion.json_lines import Unfit, has_lone_surrogate
from moraine.ingest.columns import ColumnKind, ColumnType

Rule = Callable[[Any, str], Any]
"""(value, raw) -> what is stored; raises Unfit."""

_INTEGER = re.compile(r"-?[0-9]+")
_MAX_DIGITS = 20
NANOSECONDS = 1_000_000_000
_EARLIEST, _LATEST = -(2**63), 2**63 - 1
_DAY = 86_400
_EPOCH = date(1970, 1, 1).toordinal()
_RFC_3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_WITHOUT_ZONE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}[0-9.]*)?")


def rule_of(column_type: ColumnType) -> Rule:
    if column_type.kind is ColumnKind.VECTOR:
        return _vector_of(column_type.length)
    return _RULES[column_type.kind]


def expectation(column_type: ColumnType) -> str:
    """What an error message says was expected."""
    return _EXPECTED.get(column_type.kind, str(column_type)).format(length=column_type.length)


def microseconds(nanoseconds: int) -> int:
    """As stored: rounded towards the past, which keeps the order of events."""
    if not _EARLIEST <= nanoseconds <= _LATEST:
        raise Unfit("outside 1677-09-21 to 2262-04-11")
    return nanoseconds // 1000


def parse_rfc3339(text: str) -> int:
    """Microseconds since 1970: RFC 3339, within the range of 64-bit nanoseconds."""
    found = _RFC_3339.fullmatch(text)
    if not found:
        if _WITHOUT_ZONE.fullmatch(text):
            raise Unfit("the time zone is missing")
        raise Unfit("not in the form of RFC 3339")
    year, month, day, hour, minute, second = map(int, found.group(1, 2, 3, 4, 5, 6))
    fraction, sign, zone_hours, zone_minutes = found.group(7, 8, 9, 10)
    try:
        days = date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        raise Unfit("there is no such date") from None
    if hour > 23 or minute > 59 or second > 60:
        raise Unfit("there is no such time of day")
    seconds = days * _DAY + hour * 3600 + minute * 60 + second
    if sign:
        if int(zone_hours) > 23 or int(zone_minutes) > 59:
            raise Unfit("there is no such time zone")
        offset = int(zone_hours) * 3600 + int(zone_minutes) * 60
        seconds -= offset if sign == "+" else -offset
    # No table can store a leap second: it becomes the next second, as in POSIX.
    if second == 60 and seconds % _DAY != 0:
        raise Unfit("a leap second is at 23:59:60 UTC only")
    return microseconds(seconds * NANOSECONDS + int((fraction or "")[:9].ljust(9, "0")))


def _bool(value: Any, _raw: str) -> bool:
    if type(value) is not bool:
        raise Unfit("neither true nor false")
    return value


def _integer(value: Any, raw: str) -> int:
    if type(value) is not float:
        raise Unfit("not a number")
    if not _INTEGER.fullmatch(raw):
        raise Unfit("written with a fraction or an exponent")
    if len(raw) > _MAX_DIGITS:
        raise Unfit("out of range")
    return int(raw)


def _integer_of(bits: int) -> Rule:
    smallest, largest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def integer(value: Any, raw: str) -> int:
        number = _integer(value, raw)
        if not smallest <= number <= largest:
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


_RULES: dict[ColumnKind, Rule] = {
    ColumnKind.BOOL: _bool,
    ColumnKind.INT: _integer_of(32),
    ColumnKind.LONG: _integer_of(64),
    ColumnKind.REAL: _real,
    ColumnKind.STRING: _string,
    ColumnKind.TEXT: _text,
    ColumnKind.TIMESTAMP: _timestamp,
    ColumnKind.DYNAMIC: _dynamic,
    ColumnKind.FOREIGN: _foreign,
}
_EXPECTED = {
    ColumnKind.BOOL: "bool: true or false",
    ColumnKind.INT: "int: a whole number of 32 bits",
    ColumnKind.LONG: "long: a whole number of 64 bits",
    ColumnKind.REAL: "real: a number",
    ColumnKind.TIMESTAMP: "timestamp: RFC 3339 with a time zone, or whole nanoseconds since 1970",
    ColumnKind.VECTOR: "vector({length}): an array of {length} numbers",
}
