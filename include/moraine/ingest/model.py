"""Requests of ingest, their bytes and their outcomes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from moraine.access.model import Principal
from moraine.ingest.errors import InvalidName

_NAME = re.compile(r"[^\x00-\x1f\x7f/\\\s.][^\x00-\x1f\x7f/\\.]{0,254}")

_DIGEST = 32


class State(StrEnum):
    RECEIVING = "receiving"
    STAGED = "staged"
    WRITING = "writing"
    APPLIED = "applied"
    REJECTED = "rejected"

    @property
    def settled(self) -> bool:
        return self in (State.APPLIED, State.REJECTED)


def door_principal(realm: str, name: str) -> Principal:
    """A door whose senders have no names: what it takes, it takes on its own behalf."""
    return Principal(realm, "moraine", name)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request at a door, without its bytes."""

    key: str
    """The ledger's key: unique for principal and table, because tables name it in snapshots."""
    door: str
    database: str
    table: str
    auto_create: bool
    schema_evolve: bool
    principal: str
    client_key: str
    """What the sender calls it."""

    @classmethod
    def of(
        cls,
        principal: Principal,
        client_key: str,
        door: str,
        database: str,
        table: str,
        *,
        auto_create: bool,
        schema_evolve: bool,
    ) -> Arrival:
        """A sender's request. The same key of another sender, or for another table, is a different
        one, so that no sender can guess or block the keys of others."""
        scope = "\n".join((principal.realm, principal.name, database, table))
        digest = hashlib.sha256(scope.encode()).hexdigest()[:_DIGEST]
        return cls(
            f"{digest}:{client_key}",
            door,
            database,
            table,
            auto_create,
            schema_evolve,
            principal.name,
            client_key,
        )


@dataclass(frozen=True, slots=True)
class StagedBody:
    """Bytes that have arrived. Small bodies are kept in the ledger, large ones in a file."""

    fingerprint: str
    size: int
    lines: int
    inline: bytes | None = None
    location: str | None = None


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """A row of the ledger."""

    key: str
    id: int
    door: str
    principal: str
    client_key: str
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


@dataclass(frozen=True, slots=True)
class AppliedRequest:
    """The result of one committed request. The snapshot's summary has it under the key."""

    id: int
    rows_ingested: int
    extent_count: int
    bytes_written: int
    snapshot_id: int = 0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Requests that wait to be written."""

    requests: int
    bytes: int
    age: float
    failing: int
    """Requests whose last attempt failed."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The room that requests take which wait to be written or are still received."""

    requests: int = 0
    bytes: int = 0

    def fills(self, requests: float, bytes: float) -> bool:
        """Whether a request more would be too much."""
        return self.requests >= max(1, requests) or self.bytes >= max(1, bytes)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    max_requests: int
    max_bytes: int
    max_rows: int


@dataclass(frozen=True, slots=True)
class TableId:
    """A table under its name: a copy that is registered under another name has the same uuid."""

    catalog: str
    database: str
    table: str
    uuid: UUID


def check_names(database: str, table: str) -> None:
    """Dots separate the levels of a database; a table's name has none."""
    for what, names in (("database", database.split(".")), ("table", [table])):
        if not all(map(_NAME.fullmatch, names)):
            raise InvalidName(
                f"That is no name of a {what}: 1 to 255 characters, none of them a slash, a dot "
                "or a control character."
            )
