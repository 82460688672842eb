"""Whether another table references or contains a file that is to be deleted.

The writers of another table set its location, so a location counts only with care: one that has
other tables in it, or is as wide as what is allowed for the catalog, does not own the files in it.
References always count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from moraine.catalog.client import LoadedTable
from moraine.catalog.places import is_allowed
from moraine.neighbours.errors import LocationShared
from moraine.neighbours.model import Canonical, TableName
from moraine.neighbours.survey import Surveyor
from moraine.storage.locations import Roots

_PATHS_AT_ONCE = 100_000

Files = Callable[[], "Iterable[pa.Array[Any]]"]
"""Returns the files to be deleted, in batches; it may be called several times."""


@dataclass(frozen=True)
class Shared:
    """The files that another table needs."""

    table: TableName
    files: int
    first: str
    names_them: bool

    def __str__(self) -> str:
        does = "names" if self.names_them else "contains"
        return f"{self.table} {does} {self.files} of them, the first is {self.first}"


def refuse_shared(surveyor: Surveyor, own: TableName, roots: Roots, files: Files) -> int:
    """Raise if another table needs one of the files. Returns how many tables were compared."""
    canonical = Canonical()
    places = filter(None, map(canonical.place, roots.listed))
    near = [name for name in surveyor.store.overlapping(places) if name != own]
    found = list(filter(None, (_shared(surveyor, own, name, roots, files) for name in near)))
    if found:
        raise LocationShared(
            f"{len(found)} other tables of the catalog need some of these files: {found[0]}; "
            "nothing was deleted. Drop or move that table, then retry.",
            details="\n".join(map(str, found)),
        )
    return len(near)


def _shared(
    surveyor: Surveyor, own: TableName, name: TableName, roots: Roots, files: Files
) -> Shared | None:
    table = surveyor.load(name)
    if table is None:
        return None
    named = _names_inside(surveyor.files_of(name, table), roots)
    shared = _count(name, files, _is_one_of(named), names_them=True) if len(named) else None
    if shared is None and (place := _owned_place(surveyor, own, name, table)):
        canonical = Canonical()
        shared = _count(name, files, lambda paths: pc.starts_with(canonical.paths(paths), place))
    return shared


def _owned_place(surveyor: Surveyor, own: TableName, name: TableName, table: LoadedTable) -> str:
    """The table's location, if the files in it count as the table's own; else empty."""
    if not is_allowed(table.location, table.metadata_location, surveyor.allowed):
        return ""
    place = Canonical().place(table.location)
    inside = surveyor.store.located_in(place, limit=3)
    return "" if set(inside) - {own, name} else place


def _names_inside(named: Iterator[str], roots: Roots) -> pa.Array[Any]:
    """Of the files that a table references, those in these folders."""
    canonical = Canonical()
    kept: list[pa.Array[Any]] = [pa.array([], pa.string())]
    while batch := list(islice(named, _PATHS_AT_ONCE)):
        paths: Any = pa.array(batch, pa.string())
        kept.append(canonical.paths(paths.filter(pc.invert(roots.outside(paths)))))
    return pa.concat_arrays(kept)


def _is_one_of(named: pa.Array[Any]) -> Callable[[pa.Array[Any]], Any]:
    canonical = Canonical()
    return lambda paths: pc.is_in(canonical.paths(paths), named)


def _count(
    name: TableName,
    files: Files,
    is_shared: Callable[[pa.Array[Any]], Any],
    *,
    names_them: bool = False,
) -> Shared | None:
    count, first = 0, ""
    for paths in files():
        shared: Any = paths.filter(is_shared(paths))
        if len(shared):
            count += len(shared)
            first = first or str(shared[0])
    return Shared(name, count, first, names_them) if count else None
