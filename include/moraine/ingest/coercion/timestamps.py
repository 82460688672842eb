"""Points in time: RFC 3339, or nanoseconds since 1970, within what 64 bits of nanoseconds hold."""

from __future__ import annotations

import re
from datetime import date

from moraine.ingest.coercion.rejection import Unfit

NANOSECONDS = 1_000_000_000
_EARLIEST, _LATEST = -(2**63), 2**63 - 1
_DAY = 86_400
_EPOCH = date(1970, 1, 1).toordinal()
_RFC_3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_WITHOUT_ZONE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2}[0-9.]*)?")


def microseconds(nanoseconds: int) -> int:
    """As stored: the rest is cut towards the past, so that the order of events stays."""
    if not _EARLIEST <= nanoseconds <= _LATEST:
        raise Unfit("outside 1677-09-21 to 2262-04-11")
    return nanoseconds // 1000


def parse_rfc3339(text: str) -> int:
    """Microseconds since 1970."""
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
    # Nothing after us can store a leap second: it becomes the second after it, as in POSIX.
    if second == 60 and seconds % _DAY != 0:
        raise Unfit("a leap second is at 23:59:60 UTC only")
    return microseconds(seconds * NANOSECONDS + int((fraction or "")[:9].ljust(9, "0")))
