"""Which tables the gateway hides, in memory: a query of the ledger for every read would cost more
than the read."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import anyio.to_thread

from moraine.drops.tombstones import CHANNEL, TombstoneStore
from moraine.errors import LedgerUnavailable
from moraine.iceberg.model import Identifier, ObjectKind
from moraine.ledger.listener import Listener

Name = tuple[tuple[str, ...], str]
_NOTHING: Mapping[Name, Any] = {}


class HiddenTables:
    """Tombstones of other processes are known here as soon as PostgreSQL has announced them.

    While the ledger is unavailable, the last known ones are used."""

    def __init__(self, ledger_url: str, store: TombstoneStore) -> None:
        self.store = store
        self._listener = Listener(ledger_url, CHANNEL)
        self._hidden: dict[str, dict[Name, str]] = {}

    async def run(self) -> None:
        """Follow the announcements until cancelled."""
        await self._listener.run(lambda _announced: self.refresh())

    async def refresh(self) -> None:
        with contextlib.suppress(LedgerUnavailable):
            found: dict[str, dict[Name, str]] = defaultdict(dict)
            for tombstone in await anyio.to_thread.run_sync(self.store.all):
                name = tuple(tombstone.namespace), tombstone.table_name
                found[tombstone.catalog_name][name] = str(tombstone.task_id)
            self._hidden = dict(found)

    def any_in(self, catalog: str) -> bool:
        return catalog in self._hidden

    def hides(self, catalog: str, target: Identifier) -> bool:
        """True also for a view of that name: views and tables share one set of names."""
        has_name = target.kind is not ObjectKind.NAMESPACE
        return has_name and (target.namespace, target.name) in self._hidden.get(catalog, _NOTHING)


def without_hidden(listing: Mapping[str, Any], hidden: HiddenTables, catalog: str) -> Any:
    """A page of tables as the catalog lists them, without the hidden ones."""
    identifiers = listing.get("identifiers")
    if not isinstance(identifiers, list):
        return listing
    return {
        **listing,
        "identifiers": [i for i in identifiers if not _is_hidden(i, hidden, catalog)],
    }


def _is_hidden(identifier: Any, hidden: HiddenTables, catalog: str) -> bool:
    try:
        target = Identifier(ObjectKind.TABLE, tuple(identifier["namespace"]), identifier["name"])
        return hidden.hides(catalog, target)
    except (KeyError, TypeError):
        return False
