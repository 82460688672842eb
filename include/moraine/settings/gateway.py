"""Settings of the gateway in front of the catalogs, and of idempotency keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from moraine.settings.limits import GatewayLimitSettings
from moraine.settings.values import Address, Duration, Section


class CleanupSettings(Section):
    enabled: bool = True
    batch: int = Field(1000, ge=1, description="Records removed by one statement")


class IdempotencySettings(Section):
    """Requests with an Idempotency-Key."""

    enabled: bool = True
    lifetime: Duration = Field(
        timedelta(minutes=30), description="How long clients may reuse a key, as advertised"
    )
    grace: Duration = Field(
        timedelta(minutes=5), description="How much longer a key is kept, for late requests"
    )
    key_format: Literal["any", "uuid", "uuid7"] = "any"
    check_payload: bool = Field(True, description="Refuse a key with a different payload")
    wait: Duration = Field(
        timedelta(seconds=45),
        description="How long a duplicate waits for the result of the first request",
    )
    lease: Duration = Field(
        timedelta(seconds=30),
        description="How long after the last heartbeat an execution counts as lost",
    )
    max_stored_bytes: int = Field(
        4 << 20, ge=0, description="A larger compressed answer is rebuilt from the catalog"
    )
    cleanup: CleanupSettings = CleanupSettings()

    @field_validator("lifetime", "lease")
    @classmethod
    def _positive(cls, given: timedelta) -> timedelta:
        if not given:
            raise ValueError("must be longer than zero")
        return given

    @property
    def heartbeat(self) -> timedelta:
        return self.lease / 3

    @model_validator(mode="after")
    def _outlasts_a_lost_owner(self) -> Self:
        """A duplicate must still be waiting when the lease of a dead owner expires: then it takes
        over and finds out the outcome, instead of answering that the outcome is unknown."""
        least = self.lease + self.heartbeat
        if self.wait <= least:
            raise ValueError(
                "wait must be longer than lease and a heartbeat (a third of it) together, which "
                f"is {least.total_seconds():g}s; raise wait or lower lease"
            )
        return self


class GatewayPurgeSettings(Section):
    """How a DELETE with purgeRequested=true is handled."""

    task_type: Literal["delegated", "local"] = "delegated"
    mode: Literal["synchronous", "fire-and-forget"] = "synchronous"
    wait_limit: Duration = Field(
        timedelta(hours=1), description="How long a synchronous drop may take"
    )


class GatewaySettings(Section):
    """The gateway in front of the configured catalogs."""

    enabled: bool = True
    default_catalog: str = Field("", description="The catalog below /catalog/v1")
    public_uri: Address = Field(
        "", description="The address of /catalog for clients, if not the one that they request"
    )
    require_token: bool = Field(
        False, description="Refuse requests without a token that Moraine itself accepts"
    )
    max_body_bytes: int = Field(64 << 20, ge=1)
    max_keyed_body_bytes: int = Field(
        16 << 20, ge=1, description="Maximum body of a request with an Idempotency-Key"
    )
    max_connections: int = Field(
        200, ge=1, description="Connections of one process to all catalogs"
    )
    present_certificate: bool = Field(
        False,
        description="Present the certificate of `catalogs.NAME.tls` for every caller. Only for a "
        "catalog that takes callers' rights from their tokens alone",
    )
    connect_timeout: Duration = timedelta(seconds=5)
    read_timeout: Duration = Field(
        timedelta(minutes=2), description="How long a catalog may send nothing"
    )
    limits: GatewayLimitSettings = GatewayLimitSettings()
    purge: GatewayPurgeSettings = GatewayPurgeSettings()
