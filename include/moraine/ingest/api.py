"""What ingest adds to an API process: the REST and OTLP doors with what they share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from moraine.access.guard import Guard
from moraine.access.model import Action, Caller, Principal, QualifiedName
from moraine.http.context import Context
from moraine.http.limits import LimitCounts
from moraine.ingest.otlp.grpc_server import GrpcLimits, serving
from moraine.ingest.otlp.routes import OtlpHttp
from moraine.ingest.otlp.service import OtlpDoor
from moraine.ingest.rest.rate import RateLimit
from moraine.ingest.service import IngestService, SettledFeed
from moraine.ingest.store import DoorStore, TableStore
from moraine.ingest.tables.service import IngestTables
from moraine.settings import Settings

WRITE_DAG = "ingest_write"
"""An Airflow user who may run this Dag may write."""


@dataclass(frozen=True, slots=True)
class Ingest:
    settings: Settings
    service: IngestService
    feed: SettledFeed
    rate: RateLimit
    table_store: TableStore

    @property
    def tables(self) -> IngestTables:
        name = self.settings.ingest_catalog
        return IngestTables(name, self.settings.catalog(name), self.table_store)

    def name_of(self, database: str, table: str) -> QualifiedName:
        """A table's whole name, for the policy. Raises if no catalog is configured."""
        self.require_catalog()
        return QualifiedName(self.settings.ingest_catalog, tuple(database.split(".")), table)

    def require_catalog(self) -> None:
        """Raise if no catalog is configured."""
        self.settings.catalog(self.settings.ingest_catalog)


class IngestContext(Context, Protocol):
    """What the routes of ingest need from their process."""

    @property
    def ingest(self) -> Ingest: ...
    @property
    def otlp(self) -> OtlpHttp: ...


def open_ingest(
    settings: Settings, pool: AsyncConnectionPool[Any], threads_pool: ConnectionPool[Any]
) -> Ingest:
    store = DoorStore(pool)
    feed = SettledFeed(settings.ledger.address, store)
    service = IngestService(settings.ingest, store, feed, settings.workspace)
    limits = settings.ingest.rest
    rate = RateLimit(limits.requests_per_second, limits.burst)
    return Ingest(settings, service, feed, rate, TableStore(threads_pool))


@asynccontextmanager
async def serve_otlp(
    ingest: Ingest, guard: Guard, counts: LimitCounts | None = None
) -> AsyncIterator[OtlpHttp]:
    """The OTLP door: over gRPC inside the context. Yields what the HTTP routes need."""
    settings = ingest.settings.ingest.otlp
    door = OtlpDoor(ingest.service, settings.database, settings.table)

    async def authorize(caller: Caller) -> Principal:
        principal = await guard.identify(caller, Action.WRITE_OTLP)
        table = ingest.name_of(settings.database, settings.table)
        await guard.authorize(principal, Action.WRITE_OTLP, table)
        return principal

    async with AsyncExitStack() as stack:
        if settings.grpc_port:
            await stack.enter_async_context(
                serving(
                    door,
                    authorize,
                    settings.host,
                    settings.grpc_port,
                    limits=GrpcLimits(
                        settings.max_body_bytes,
                        settings.max_connections,
                        settings.requests_at_once,
                        ingest.settings.ingest.rest.requests_per_client,
                        settings.read_timeout.total_seconds(),
                    ),
                    counts=counts,
                    share_port=True,
                    tls=ingest.settings.otlp_tls,
                )
            )
        yield OtlpHttp(door, authorize, settings.max_body_bytes)
