"""Stands in until the intake is here: only the names that the doors use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arrival:
    """A batch of NDJSON at one of the doors."""

    key: str
    door: str
    database: str
    table: str
    auto_create: bool
    schema_evolve: bool
