"""What the doors of an API process share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg_pool import AsyncConnectionPool

from moraine.ingest.intake import Intake, SettledFeed
from moraine.ingest.ledger import DoorLedger
from moraine.ingest.rate import RateLimit
from moraine.ingest.tables import IngestTables
from moraine.settings import Settings


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


def open_doors(settings: Settings, pool: AsyncConnectionPool[Any]) -> Ingest:
    ledger = DoorLedger(pool)
    feed = SettledFeed(settings.ledger.url.get_secret_value(), ledger)
    intake = Intake(settings.ingest, ledger, feed, settings.workspace)
    limits = settings.ingest.rest
    return Ingest(settings, intake, feed, RateLimit(limits.requests_per_second, limits.burst))
