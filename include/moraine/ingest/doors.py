"""What the doors of an API process share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from psycopg_pool import AsyncConnectionPool

from moraine.api.auth import Access, Authenticator
from moraine.ingest.intake import Intake, SettledFeed
from moraine.ingest.ledger import DoorLedger
from moraine.ingest.otlp.door import OtlpDoor
from moraine.ingest.otlp.grpc_service import serving
from moraine.ingest.otlp.http_routes import OtlpHttp
from moraine.ingest.rate import RateLimit
from moraine.ingest.tables import IngestTables
from moraine.settings import Settings

DAG = "ingest_write"
"""Who may run it may write."""


@dataclass(frozen=True, slots=True)
class Ingest:
    settings: Settings
    intake: Intake
    feed: SettledFeed
    rate: RateLimit

    @property
    def tables(self) -> IngestTables:
        name = self.settings.ingest_catalog
        return IngestTables(name, self.settings.catalog(name))


@asynccontextmanager
async def serve_otlp(ingest: Ingest, authenticator: Authenticator) -> AsyncIterator[OtlpHttp]:
    """The OTLP door: over gRPC while the context lasts, and what its HTTP routes need."""
    settings = ingest.settings.ingest.otlp
    door = OtlpDoor(ingest.intake, settings.database, settings.table)

    async def authorize(token: str | None) -> None:
        ingest.settings.catalog(ingest.settings.ingest_catalog)  # or say that there is none
        await authenticator.check_header(token and f"Bearer {token}", Access.EXECUTE, DAG)

    async with AsyncExitStack() as stack:
        if settings.grpc_port:
            await stack.enter_async_context(
                serving(
                    door,
                    authorize,
                    settings.host,
                    settings.grpc_port,
                    max_message_bytes=settings.max_body_bytes,
                    share_port=True,
                )
            )
        yield OtlpHttp(door, authorize, settings.max_body_bytes)


def open_doors(settings: Settings, pool: AsyncConnectionPool[Any]) -> Ingest:
    ledger = DoorLedger(pool)
    feed = SettledFeed(settings.ledger.url.get_secret_value(), ledger)
    intake = Intake(settings.ingest, ledger, feed, settings.workspace)
    limits = settings.ingest.rest
    return Ingest(settings, intake, feed, RateLimit(limits.requests_per_second, limits.burst))
