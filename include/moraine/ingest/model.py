"""What comes in through a door, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class State(StrEnum):
    RECEIVING = "receiving"
    STAGED = "staged"
    WRITING = "writing"
    APPLIED = "applied"
    REJECTED = "rejected"

    @property
    def settled(self) -> bool:
        return self in (State.APPLIED, State.REJECTED)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request at a door, before its bytes."""

    key: str
    door: str
    database: str
    table: str
    auto_create: bool
    schema_evolve: bool


@dataclass(frozen=True, slots=True)
class Request:
    """A row of the ledger."""

    key: str
    id: int
    door: str
    database_name: str
    table_name: str
    auto_create: bool
    schema_evolve: bool
    state: State
    fingerprint: str | None
    location: str | None
    body_bytes: int
    body_lines: int
    batch: UUID | None
    failures: int
    snapshot_id: int | None
    extent_count: int | None
    rows_ingested: int | None
    bytes_written: int | None
    error: dict[str, Any] | None
    reserved_at: datetime
    applied_at: datetime | None
    expires_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "state", State(self.state))

    @property
    def subject(self) -> str:
        return f"{self.database_name}.{self.table_name}"


@dataclass(frozen=True, slots=True)
class Applied:
    """What one request came to. A snapshot's summary has it, by key."""

    id: int
    rows_ingested: int
    extent_count: int
    bytes_written: int
    snapshot_id: int = 0
