"""Iceberg's FileIO properties, as settings and catalogs give them, turned into strings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """TOML reads `s3.endpoint = "…"`, without quotes, as a table in a table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def as_texts(properties: Any) -> Any:
    """Properties of the settings: numbers and booleans become strings.

    Any other value stays as it is, for pydantic to refuse.
    """
    if not isinstance(properties, Mapping):
        return properties
    return {name: _as_text(value) for name, value in flatten(properties) if value is not None}


def texts_of(properties: object) -> dict[str, str]:
    """Properties that a catalog sent: all values become strings, whatever they are."""
    if not isinstance(properties, Mapping):
        return {}
    return {str(name): str(value) for name, value in as_texts(properties).items()}


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value
