"""Iceberg's FileIO properties, as settings have them: which are secret, and what form they take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from moraine.log import is_secret_name

# The words of a name that tell of a secret, unless the last one says that it is only about one.
_SECRET_WORDS = {
    "credential",
    "credentials",
    "jaas",
    "key",
    "password",
    "sas",
    "secret",
    "string",
    "token",
}
_PLAIN_ENDINGS = {
    "algorithm",
    "enabled",
    "endpoint",
    "impl",
    "location",
    "mechanism",
    "mechanisms",
    "provider",
    "uri",
    "username",
}


def is_secret_property(name: str) -> bool:
    """Whether a property, say `s3.secret-access-key`, is one to keep to oneself."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    if words[-1] in _PLAIN_ENDINGS:
        return False
    return bool(_SECRET_WORDS & set(words)) or is_secret_name(name)


def flatten(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """TOML reads `s3.endpoint = "…"`, without quotes, as a table in a table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def as_texts(properties: Any) -> Any:
    """Iceberg's properties are strings, whatever a file has them as."""
    if not isinstance(properties, Mapping):
        return properties
    return {name: _as_text(value) for name, value in flatten(properties) if value is not None}


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value
