"""What a task is: its states, the transitions between them, and the records around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID


class Status(StrEnum):
    SUBMITTED = "SUBMITTED"
    ACQUIRING_RESOURCES = "ACQUIRING_RESOURCES"
    RUNNING = "RUNNING"
    RETRY_SCHEDULED = "RETRY_SCHEDULED"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"

    @property
    def wire(self) -> str:
        """The name that callers see. The ledger keeps its own."""
        return _WIRE_NAMES.get(self, self.value)

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


_WIRE_NAMES = {
    Status.SUBMITTED: "QUEUED",
    Status.SUCCESS: "COMPLETED_SUCCESS",
    Status.FAILURE: "FAILED_TERMINAL",
}
STATUS_BY_NAME: Mapping[str, Status] = {
    name: status for status in Status for name in (status.value, status.wire)
}
"""Callers may use either name."""

TERMINAL = frozenset({Status.SUCCESS, Status.FAILURE})
LEASED = frozenset({Status.ACQUIRING_RESOURCES, Status.RUNNING})

# A leased state may follow a leased state: a worker takes over a task whose lease expired.
TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.SUBMITTED: LEASED | {Status.FAILURE},
    Status.ACQUIRING_RESOURCES: LEASED | {Status.RETRY_SCHEDULED, Status.FAILURE},
    Status.RUNNING: LEASED | {Status.SUCCESS, Status.RETRY_SCHEDULED, Status.FAILURE},
    Status.RETRY_SCHEDULED: LEASED | {Status.RETRY_SCHEDULED, Status.FAILURE},
    Status.SUCCESS: frozenset(),
    Status.FAILURE: frozenset({Status.SUBMITTED}),
}


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task that is not in the ledger yet."""

    task_id: UUID
    realm_id: str
    task_type: str
    task_payload: dict[str, Any]
    subject: str
    """What the task is about, for people and filters: `catalog.namespace.table`."""
    exclusive: bool = False
    """At most one live task of this type may have this subject."""
    correlation_id: str | None = None
    principal: str = ""
    """On whose behalf it runs."""


@dataclass(frozen=True, slots=True)
class Task:
    """The current state of a task."""

    task_id: UUID
    version: int
    parent_id: UUID | None
    realm_id: str
    task_type: str
    task_payload: dict[str, Any]
    subject: str
    status: Status
    received_timestamp: datetime
    created_ts: datetime
    last_status_change_ts: datetime
    attempt_count: int
    next_scheduled_run_ts: datetime | None
    lease_owner: str | None
    lease_acquired_ts: datetime | None
    lease_expires_ts: datetime | None
    cancel_requested_ts: datetime | None
    progress: dict[str, Any] | None
    checkpoint: dict[str, Any]
    result: dict[str, Any] | None
    error_code: str | None
    result_summary: str | None
    result_extended: str | None
    correlation_id: str | None
    reason: str
    """Why it is in this state."""
    principal: str
    """On whose behalf it runs: who submitted it, or who had it run again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", Status(self.status))

    @property
    def next_attempt(self) -> int:
        return self.attempt_count + 1


@dataclass(frozen=True, slots=True)
class TaskVersion:
    """One immutable row of a task's history: the state after a transition, and its reason."""

    version: int
    status: Status
    last_status_change_ts: datetime
    attempt_count: int
    reason: str
    next_scheduled_run_ts: datetime | None
    lease_owner: str | None
    error_code: str | None
    result_summary: str | None
    result_extended: str | None
    principal: str
    """Who caused this version."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", Status(self.status))


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to work on one attempt of a task.

    Every write of the attempt names the version it holds. A worker that takes the task over raises
    the version, so a worker that lost its lease cannot overwrite its successor.
    """

    task_id: UUID
    version: int
    owner: str


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks a listing shows."""

    status: Status | None = None
    task_type: str | None = None
    subject: str | None = None
    realm_id: str | None = None
    parent_id: UUID | None = None
    received_from: datetime | None = None
    received_until: datetime | None = None


def task_folder(workspace: str, task_id: UUID) -> str:
    """Where a task keeps what is too large for the ledger. It is removed with the task."""
    return f"{workspace.rstrip('/')}/tasks/{task_id}"
