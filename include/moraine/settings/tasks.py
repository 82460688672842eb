"""Settings of delegated tasks, and of purge, the operation they carry out."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from pydantic import Field, field_validator

from moraine.settings.values import Duration, Section


class RetrySettings(Section):
    """The retry policy of a task type; an omitted value comes from `default`."""

    max_attempts: int | None = Field(None, ge=1)
    initial_backoff_duration: Duration | None = None
    backoff_multiplier: float | None = Field(None, ge=1)
    max_backoff_duration: Duration | None = None
    jitter: float | None = Field(None, ge=0, le=1)


class LeaseSettings(Section):
    lost_timeout_duration: Duration = Field(
        timedelta(hours=1), description="How long after the last heartbeat a lease expires"
    )
    heartbeat_interval: Duration = timedelta(seconds=2)


class TaskSettings(Section):
    lease: LeaseSettings = LeaseSettings()
    retention: Duration = Field(
        timedelta(days=30), description="How long a finished task stays in the ledger"
    )
    cleanup_batch: int = Field(1000, ge=1, description="Tasks removed by one statement")
    sweep_batch: int = Field(100, ge=1, description="Tasks examined by one sweep")


class SynchronousSettings(Section):
    wait_limit: Duration = timedelta(hours=1)


_BUILT_IN_RETRY = {
    "default": RetrySettings(
        max_attempts=5,
        initial_backoff_duration=timedelta(seconds=30),
        backoff_multiplier=2.0,
        max_backoff_duration=timedelta(hours=1),
        jitter=0.1,
    ),
    "TABLE_PURGE": RetrySettings(max_attempts=10, initial_backoff_duration=timedelta(minutes=1)),
}


class DelegationSettings(Section):
    """Delegated tasks."""

    retry: dict[str, RetrySettings] = Field(default_factory=dict, validate_default=True)
    task: TaskSettings = TaskSettings()
    synchronous: SynchronousSettings = SynchronousSettings()

    @field_validator("retry")
    @classmethod
    def _fill_from_defaults(cls, given: dict[str, RetrySettings]) -> dict[str, RetrySettings]:
        """Override the built-in policies with those that are set.

        Environment variables have no case, so a type may be given twice: as the file spells it and
        in lower case from the environment. The latter sorts last, so the environment wins.
        """
        policies = dict(_BUILT_IN_RETRY)
        for key in sorted(given):
            name = key if key == "default" else key.upper()
            policies[name] = policies.get(name, RetrySettings()).model_copy(
                update=given[key].model_dump(exclude_none=True)
            )
        return policies


class PurgeSettings(Section):
    """How tables are purged."""

    max_files_named: int = Field(
        100, ge=1, description="Maximum of failed paths in a task's result"
    )
    outside_files: Literal["fail", "skip"] = Field(
        "fail", description="What to do with files outside the table's locations"
    )
    neighbour_check: Literal["catalog", "off"] = Field(
        "catalog", description="Whether to refuse to delete files that other tables need"
    )
    neighbour_max_age: Duration = Field(
        timedelta(hours=1), description="How old the index may be about another table"
    )
    neighbour_looks: int = Field(
        200, ge=0, description="Tables that every purge examines again, the oldest entries first"
    )
    small_table_files: int = Field(
        1000, ge=0, description="Maximum of files that are deleted without a Spark job"
    )
    requests_at_once: int = Field(
        4, ge=1, le=64, description="Concurrent bulk deletes of one Spark task"
    )
    keys_per_request: int = Field(1000, ge=1, le=1000, description="Keys in one bulk delete")
    storage_patience: Duration = Field(
        timedelta(minutes=2), description="How long to wait for a store that throttles"
    )
