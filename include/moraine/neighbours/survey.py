"""Keeps the index of a catalog's tables up to date: lists all, examines those it must."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

from moraine.catalog.access import credentials_of
from moraine.catalog.client import (
    CatalogFailed,
    LoadedTable,
    NoSuchPage,
    RestCatalog,
)
from moraine.catalog.places import claimed_paths, is_allowed
from moraine.errors import CatalogRefused, StorageRefused, TableNotFound
from moraine.log import get_logger
from moraine.neighbours.errors import NeighboursUnknown
from moraine.neighbours.model import Canonical, Look, Seen, TableName, merge_places
from moraine.neighbours.names import NamedFiles
from moraine.neighbours.store import SurveyStore
from moraine.settings import CatalogSettings
from moraine.storage.locations import Roots
from moraine.storage.stores import Storage

log = get_logger(__name__)

_AT_ONCE = 8


@dataclass(frozen=True)
class Surveyor:
    """Examines the tables of one catalog as Moraine's own principal."""

    catalog: RestCatalog
    settings: CatalogSettings
    allowed: Roots
    store: SurveyStore
    is_purged: Callable[[TableName], bool]
    """Whether this ledger has purged the files of a table: then it references none."""

    def survey(
        self,
        *,
        max_age: timedelta,
        looks: int,
        without: TableName | None = None,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> int:
        """Bring the index up to date. Returns how many tables the catalog has.

        It examines tables that are new or whose entry is older than `max_age`, and the `looks`
        tables with the oldest entries. Raises if one of them cannot be examined. `without` is the
        table that the others are compared with.
        """
        known = self.store.known()
        pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="survey")
        try:
            listed = self._list(pool)
            self.store.forget(known.keys() - listed)
            chosen = _choose(listed - {without}, known, max_age, looks)
            found = pool.map(lambda name: self._look(name, known.get(name)), chosen)
            unchanged = []
            for done, (name, look) in enumerate(zip(chosen, found, strict=True), start=1):
                if look is None:
                    unchanged.append(name)
                else:
                    self.store.write(look)
                progress(done, len(chosen))
        finally:
            # If the catalog fails for one table, the others need not wait for it too.
            pool.shutdown(cancel_futures=True)
        self.store.touch(unchanged)
        log.info("neighbours.surveyed", tables=len(listed), looks=len(chosen))
        return len(listed)

    def load(self, name: TableName, *, vend: bool = True) -> LoadedTable | None:
        """The table, or None if it or its metadata file is gone: then it references nothing."""
        try:
            return self.catalog.load_table(name.namespace, name.name, vend=vend)
        except NoSuchPage as error:
            raise _unknown(name, error) from error
        except TableNotFound:
            return None
        except (CatalogFailed, CatalogRefused) as error:
            if self.is_purged(name):
                return None
            raise _unknown(name, error) from error

    def files_of(self, name: TableName, table: LoadedTable, *, after: int = -1) -> Iterator[str]:
        """Every file that a table references."""
        folders = [table.location, *claimed_paths(table.properties)]
        here = table.metadata_location
        own = Roots.of(one for one in folders if is_allowed(one, here, self.allowed))
        try:
            with Storage(credentials_of(table, self.settings)) as storage:
                yield from NamedFiles(table, storage, self.allowed, own, after)
        except (StorageRefused, KeyError, TypeError, AttributeError) as error:
            # A catalog may accept metadata that is not valid.
            raise _unknown(name, error) from error

    def _list(self, pool: ThreadPoolExecutor) -> set[TableName]:
        namespaces = dict.fromkeys(self.catalog.list_namespaces())
        return {name for names in pool.map(self._list_namespace, namespaces) for name in names}

    def _list_namespace(self, levels: tuple[str, ...]) -> list[TableName]:
        try:
            return [TableName(levels, name) for name in self.catalog.list_tables(levels)]
        except NoSuchPage:
            raise
        except TableNotFound:
            return []  # the namespace was dropped since it was listed

    def _look(self, name: TableName, seen: Seen | None) -> Look | None:
        """None if the table has not changed since it was examined."""
        table = self.load(name, vend=False)
        if table is None:
            return Look.dead(name)
        if seen and seen.metadata_location == table.metadata_location:
            return None
        table = self.load(name)
        return Look.dead(name) if table is None else self._read(name, table, seen)

    def _read(self, name: TableName, table: LoadedTable, seen: Seen | None) -> Look:
        canonical = Canonical()
        after = seen.sequence_number if seen and _follows(table, seen) else -1
        location = ""
        if is_allowed(table.location, table.metadata_location, self.allowed):
            location = canonical.place(table.location)
        folders = {table.location, *claimed_paths(table.properties)}
        folders |= {path.rpartition("/")[0] for path in self.files_of(name, table, after=after)}
        places = {canonical.place(folder) for folder in folders} - {"", location}
        inside = location or "\0"
        elsewhere = merge_places(place for place in places if not place.startswith(inside))
        return Look(
            name,
            table.metadata_location,
            int(table.metadata.get("last-sequence-number") or -1),
            location,
            [location, *elsewhere] if location else elsewhere,
            keeps_places=after >= 0,
        )


def _choose(
    listed: set[TableName], known: dict[TableName, Seen], max_age: timedelta, looks: int
) -> Sequence[TableName]:
    new = sorted(listed - known.keys())
    by_age = sorted(listed & known.keys(), key=lambda name: known[name].age, reverse=True)
    old = [name for rank, name in enumerate(by_age) if rank < looks or known[name].age > max_age]
    return [*new, *old]


def _follows(table: LoadedTable, seen: Seen) -> bool:
    """Whether the version in the index is in this version's metadata log."""
    log = table.metadata.get("metadata-log") or ()
    return any(entry.get("metadata-file") == seen.metadata_location for entry in log)


def _unknown(name: TableName, error: Exception) -> NeighboursUnknown:
    return NeighboursUnknown(
        f"The table {name} of the same catalog could not be loaded, so it is unknown whether it "
        f"needs some of these files; nothing was deleted. {error} Let Moraine's principal read it, "
        "or drop it if it is broken, then retry."
    )
