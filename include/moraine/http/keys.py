"""The `Idempotency-Key` header: one well-formed key, or none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal
from uuid import UUID

from moraine.errors import BadRequest

HEADER = "Idempotency-Key"
Format = Literal["any", "uuid", "uuid7"]

PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class InvalidKey(BadRequest):
    """The Idempotency-Key is malformed."""

    code = "INVALID_IDEMPOTENCY_KEY"


def parse_key(values: Sequence[str], form: Format) -> str | None:
    """The key in these values of the header; None if there are none."""
    if not values:
        return None
    if len(values) > 1:
        raise InvalidKey(f"{HEADER} is given {len(values)} times; send it once.")
    key = values[0].strip(" \t")
    if not PATTERN.fullmatch(key):
        raise InvalidKey(
            f"{HEADER} must have 1 to 255 letters, digits, '_', '.' or '-', and begin with a "
            "letter or digit."
        )
    if form == "any":
        return key
    if not _UUID.fullmatch(key) or (form == "uuid7" and UUID(key).version != 7):
        wanted = "a UUID" if form == "uuid" else "a UUID of version 7"
        raise InvalidKey(f"{HEADER} must be {wanted} here.")
    # RFC 9562: the letters of a UUID have no case.
    return key.lower()
