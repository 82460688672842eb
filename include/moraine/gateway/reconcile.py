"""Settles abandoned keys that nobody has come back for, as Moraine's own principal."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from moraine.catalog.client import RestCatalog
from moraine.catalog.endpoints import Endpoint
from moraine.errors import MoraineError
from moraine.gateway.checks import answer_of, check
from moraine.gateway.model import Intent, Kind, State, Verdict
from moraine.gateway.routes import Route, parse, whole_query
from moraine.gateway.service import MOUNT_PATH
from moraine.idempotency.model import Response, Scope
from moraine.idempotency.store import RecordStore
from moraine.log import get_logger
from moraine.operations.purge.tombstones import TombstoneStore
from moraine.settings import CatalogSettings
from moraine.tasks.store import TaskStore

log = get_logger(__name__)

# A client that wants to know comes back before; and no request to a catalog takes that long.
QUIET = timedelta(minutes=5)
_LIMIT = 1000
_LOADS = {
    Kind.TABLE: Endpoint.LOAD_TABLE,
    Kind.VIEW: Endpoint.LOAD_VIEW,
    Kind.NAMESPACE: Endpoint.LOAD_NAMESPACE,
}
# What a replay fetches anew, with the credentials of whoever asks for it.
_SECRETS = ("config", "storage-credentials")


class Settled(StrEnum):
    FINALIZED = "finalized"
    """The change is there."""
    RELEASED = "released"
    """It is not; the key is unknown again."""
    LEFT = "left"
    """It cannot be told now, or the work goes on."""


class Reconciler:
    def __init__(
        self,
        records: RecordStore,
        tasks: TaskStore,
        tombstones: TombstoneStore,
        catalogs: Callable[[str], CatalogSettings],
        realm: str,
    ) -> None:
        self._records = records
        self._tasks = tasks
        self._tombstones = tombstones
        self._catalogs = catalogs
        self._realm = realm

    async def run(self, quiet: timedelta = QUIET) -> Counter[Settled]:
        """Settle what can be settled; how many of each."""
        counts: Counter[Settled] = Counter()
        abandoned = await self._records.abandoned(self._realm, quiet=quiet, limit=_LIMIT)
        for scope, intent, attempts in abandoned:
            try:
                counts[await self._settle(scope, intent, attempts)] += 1
            except MoraineError as error:
                log.warning("idempotency.unsettled", path=scope.resource_path, reason=str(error))
                counts[Settled.LEFT] += 1
        await asyncio.to_thread(self._tombstones.forget_orphans)
        return counts

    async def _settle(self, scope: Scope, intent: dict[str, Any], attempts: int) -> Settled:
        if scope.resource_path.startswith(f"{MOUNT_PATH}/"):
            found = await asyncio.to_thread(self._look_in_catalog, scope, Intent.from_json(intent))
        else:
            found = await asyncio.to_thread(self._look_for_task, intent)
        if found is Settled.LEFT:
            return found
        claim = await self._records.take_over(scope, attempts)
        if claim is None:  # somebody came back for it just now
            return Settled.LEFT
        if isinstance(found, Response):
            await self._records.finalize(claim, found)
            return Settled.FINALIZED
        await self._records.release(claim)
        return Settled.RELEASED

    def _look_in_catalog(self, scope: Scope, intent: Intent) -> Response | Settled:
        route = parse(scope.method, scope.resource_path.removeprefix(MOUNT_PATH))
        assert route.catalog is not None
        first = intent.targets[0]
        if self._tombstones.find(route.catalog, first.namespace, first.name):
            return Settled.LEFT  # a purge goes on, or waits to be finished
        state = self._load(RestCatalog(self._catalogs(route.catalog)), route, intent)
        if check(intent, state) is not Verdict.APPLIED:
            return Settled.RELEASED
        answer = answer_of(intent, state)
        if answer.body is None:
            return Response(answer.status)
        body = {name: value for name, value in answer.body.items() if name not in _SECRETS}
        headers = (("content-type", "application/json"),)
        return Response(answer.status, headers, json.dumps(body).encode())

    def _load(self, catalog: RestCatalog, route: Route, intent: Intent) -> State:
        return {
            target: catalog.read(
                _LOADS[target.kind],
                route.path_of(target, catalog.separator),
                whole_query(target.kind),
            )
            for target in intent.targets
        }

    def _look_for_task(self, intent: dict[str, Any]) -> Settled:
        """A task that is there is found again by whoever asks; one that is not, never was."""
        if intent["operation"] != "submit" or self._tasks.get_many([UUID(intent["task_id"])]):
            return Settled.LEFT
        return Settled.RELEASED
