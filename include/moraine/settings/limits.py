"""Settings of what one client may cost: requests at once, slow bodies, and memory."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from moraine.settings.values import Duration, Section


class ApiLimitSettings(Section):
    """What one client of the APIs may cost one process."""

    requests_per_client: int = Field(
        256, ge=1, description="Requests of one client address to the delegation API at once"
    )
    body_grace: Duration = Field(
        timedelta(seconds=30),
        description="How long a body may pause, and how long it may be slower than the rate",
    )
    min_body_rate: int = Field(4096, ge=1, description="Bytes a second that a body must bring")


class GatewayLimitSettings(Section):
    """What one client and one catalog may cost one process of the gateway."""

    requests_per_client: int = Field(
        100, ge=1, description="Requests of one client address at once"
    )
    requests_per_catalog: int = Field(400, ge=1, description="Requests to one catalog at once")
    connections_per_catalog: int = Field(
        120, ge=1, description="The part of gateway.max-connections that one catalog may use"
    )
    connection_wait: Duration = Field(
        timedelta(seconds=10), description="How long a request waits for a free connection"
    )
    buffered_bytes: int = Field(
        256 << 20, ge=1, description="Bodies that one process holds in memory, all together"
    )
    answer_bytes: int = Field(
        128 << 20, ge=1, description="Maximum answer of a catalog that the gateway has to read"
    )
    body_grace: Duration = Field(
        timedelta(seconds=30),
        description="How long a body may pause, and how long it may be slower than the rate",
    )
    min_body_rate: int = Field(4096, ge=1, description="Bytes a second that a body must bring")
    send_wait: Duration = Field(
        timedelta(minutes=1), description="How long a client may leave its answer unread"
    )
