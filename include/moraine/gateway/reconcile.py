"""Settles abandoned keys whose clients do not come back, as Moraine's own principal."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any

from moraine.catalog.client import RestCatalog
from moraine.drops.tombstones import TombstoneStore
from moraine.gateway.checks import check
from moraine.gateway.model import GATEWAY_PATH, Intent, State, Verdict
from moraine.gateway.mutations import answer_from
from moraine.iceberg.endpoints import Endpoint
from moraine.iceberg.model import VENDED_FIELDS, ObjectKind
from moraine.iceberg.paths import CatalogPaths, parse, split_path, whole_query
from moraine.idempotency.cleanup import with_records
from moraine.idempotency.model import Response, Scope
from moraine.idempotency.store import RecordStore
from moraine.ledger.pools import open_pool
from moraine.log import get_logger
from moraine.orchestration.connections import catalog_settings, ledger_url
from moraine.settings import CatalogSettings, get_settings

log = get_logger(__name__)

# A client that wants the outcome retries sooner, and no request to a catalog takes that long.
QUIET = timedelta(minutes=5)
_LIMIT = 1000
_LOADS = {
    ObjectKind.TABLE: Endpoint.LOAD_TABLE,
    ObjectKind.VIEW: Endpoint.LOAD_VIEW,
    ObjectKind.NAMESPACE: Endpoint.LOAD_NAMESPACE,
}


class Settled(StrEnum):
    FINALIZED = "finalized"
    """The change is there."""
    LEFT = "left"
    """It is not, or that is unknown now, or the work goes on. A late repetition needs the record:
    what was there before, and that this is not the first attempt."""


class Reconciler:
    def __init__(
        self,
        records: RecordStore,
        tombstones: TombstoneStore,
        catalogs: Callable[[str], CatalogSettings],
        realm: str,
    ) -> None:
        self._records = records
        self._tombstones = tombstones
        self._catalogs = catalogs
        self._realm = realm

    async def run(self, quiet: timedelta = QUIET) -> Counter[Settled]:
        """Settle what can be settled; counts by outcome."""
        counts: Counter[Settled] = Counter()
        abandoned = await self._records.abandoned(self._realm, quiet=quiet, limit=_LIMIT)
        for scope, intent, attempts in abandoned:
            try:
                counts[await self._settle(scope, intent, attempts)] += 1
            except Exception as error:
                # One bad record must not block all others.
                log.warning(
                    "idempotency.unsettled",
                    path=scope.resource_path,
                    error=type(error).__name__,
                    reason=str(error),
                )
                counts[Settled.LEFT] += 1
        await asyncio.to_thread(self._tombstones.forget_orphans)
        return counts

    async def _settle(self, scope: Scope, intent: dict[str, Any], attempts: int) -> Settled:
        if not scope.resource_path.startswith(f"{GATEWAY_PATH}/"):
            return Settled.LEFT  # a repetition finds the task, or adds it
        found = await asyncio.to_thread(self._look_in_catalog, scope, Intent.from_json(intent))
        if found is None:
            return Settled.LEFT
        claim = await self._records.take_over(scope, attempts)
        if claim is None:  # its client has just retried
            return Settled.LEFT
        await self._records.finalize(claim, found)
        return Settled.FINALIZED

    def _look_in_catalog(self, scope: Scope, intent: Intent) -> Response | None:
        """The answer to a request whose change is there; None if it is not."""
        address = split_path(scope.resource_path.removeprefix(GATEWAY_PATH))
        name, first = address.catalog or "", intent.targets[0]
        if self._tombstones.find(name, first.namespace, first.name):
            return None  # the purge is under way, or failed and can be retried
        catalog = RestCatalog(self._catalogs(name))
        paths = CatalogPaths.of(catalog.prefix, catalog.separator)
        parse(scope.method, address, paths)  # raises if the catalog's paths have changed
        state = self._load(catalog, paths, intent)
        if check(intent, state) is not Verdict.APPLIED:
            return None
        # A replay adds the credentials of its own caller.
        return answer_from(intent, state, without=VENDED_FIELDS)

    def _load(self, catalog: RestCatalog, paths: CatalogPaths, intent: Intent) -> State:
        return {
            target: catalog.read(
                _LOADS[target.kind],
                paths.path_of(target),
                whole_query(target.kind),
            )
            for target in intent.targets
        }


def reconcile_keys() -> dict[str, int]:
    """For Dags: settle the keys of requests whose owner is lost; counts by outcome."""
    settings, url = get_settings(), ledger_url()

    async def run(records: RecordStore) -> dict[str, int]:
        with open_pool(url, size=2) as pool:
            tombstones = TombstoneStore(pool, settings.realm)
            reconciler = Reconciler(records, tombstones, catalog_settings, settings.realm)
            return {settled.value: count for settled, count in (await reconciler.run()).items()}

    return with_records(url, run)
