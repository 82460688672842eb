"""Which tables the gateway hides, kept at hand: a look at the ledger for every read would cost
more than the read."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import anyio.to_thread
import psycopg
from psycopg_pool import PoolTimeout

from moraine.gateway.model import Kind, Target
from moraine.listening import Listener
from moraine.operations.purge.tombstones import CHANNEL, TombstoneStore

Name = tuple[tuple[str, ...], str]
_NOTHING: Mapping[Name, Any] = {}


class HiddenTables:
    """Another process's tombstones are known here as soon as PostgreSQL has announced them.

    If the ledger is away, what was last known holds."""

    def __init__(self, ledger_url: str, store: TombstoneStore) -> None:
        self.store = store
        self._listener = Listener(ledger_url, CHANNEL)
        self._hidden: dict[str, dict[Name, str]] = {}

    async def run(self) -> None:
        """Keep up until cancelled."""
        await self._listener.run(self._look)

    async def refresh(self) -> None:
        with contextlib.suppress(psycopg.Error, PoolTimeout):
            found: dict[str, dict[Name, str]] = defaultdict(dict)
            for tombstone in await anyio.to_thread.run_sync(self.store.all):
                name = tuple(tombstone.namespace), tombstone.table_name
                found[tombstone.catalog_name][name] = str(tombstone.task_id)
            self._hidden = dict(found)

    def any_in(self, catalog: str) -> bool:
        return catalog in self._hidden

    def hides(self, catalog: str, target: Target) -> bool:
        """Also a view: it shares its names with tables."""
        named = target.kind is not Kind.NAMESPACE
        return named and (target.namespace, target.name) in self._hidden.get(catalog, _NOTHING)

    async def _look(self, _announced: list[str] | None) -> None:
        await self.refresh()


def without_hidden(listing: Mapping[str, Any], hidden: HiddenTables, catalog: str) -> Any:
    """A page of tables as the catalog lists them, less those that are as good as gone."""
    identifiers = listing.get("identifiers")
    if not isinstance(identifiers, list):
        return listing
    return {**listing, "identifiers": [i for i in identifiers if not _is(i, hidden, catalog)]}


def _is(identifier: Any, hidden: HiddenTables, catalog: str) -> bool:
    try:
        target = Target(Kind.TABLE, tuple(identifier["namespace"]), identifier["name"])
        return hidden.hides(catalog, target)
    except (KeyError, TypeError):
        return False
