"""Whether another live table has files where a table has its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from moraine.catalog.client import CatalogFailed, MetadataMissing, RestCatalog, table_locations
from moraine.errors import CatalogRefused, TableNotFound
from moraine.storage.files import UnsupportedStorage
from moraine.storage.locations import Roots

Scope = Literal["namespace", "catalog", "off"]
_Identifier = tuple[tuple[str, ...], str]


@dataclass(frozen=True)
class SiblingCheck:
    checked: int = 0
    """Tables whose locations were compared."""
    unreadable: int = 0
    """Tables that the catalog lists and cannot load, or that lie where Moraine cannot look."""
    complete: bool = True
    """Whether every table in scope was compared."""
    skipped: str = ""
    """Why it is not complete."""
    overlapping: tuple[tuple[str, str], ...] = ()
    """The name and location of each table that shares a folder."""


def find_overlap(
    catalog: RestCatalog,
    namespace: Sequence[str],
    table: str,
    roots: Roots,
    *,
    scope: Scope,
    limit: int,
    concurrency: int = 8,
) -> SiblingCheck:
    """Compare the table's roots with those of up to `limit` other tables."""
    if scope == "off":
        return SiblingCheck(complete=False, skipped="The check is switched off.")
    own = tuple(namespace)
    try:
        listed = list(_list_siblings(catalog, own, table, scope))
    except CatalogRefused as error:
        return SiblingCheck(complete=False, skipped=f"The tables cannot be listed. {error}")
    chosen = listed[:limit]
    looks = _look_at_all(catalog, chosen, roots, concurrency)
    unreadable = looks.count(None)
    reasons = []
    if len(listed) > limit:
        reasons.append(f"Of {len(listed)} other tables, {limit} were looked at.")
    if unreadable:
        reasons.append(f"{unreadable} tables could not be read.")
    return SiblingCheck(
        checked=sum(look is not None and look.live for look in looks),
        unreadable=unreadable,
        complete=not reasons,
        skipped=" ".join(reasons),
        overlapping=tuple((look.name, look.location) for look in looks if look and look.overlaps),
    )


@dataclass(frozen=True)
class _Look:
    name: str
    location: str = ""
    overlaps: bool = False
    live: bool = True


def _list_siblings(
    catalog: RestCatalog, own: tuple[str, ...], table: str, scope: Scope
) -> Iterator[_Identifier]:
    others = catalog.list_namespaces() if scope == "catalog" else ()
    # One's own first: what the limit leaves out is then farthest away.
    for levels in dict.fromkeys(itertools.chain([own], others)):
        try:
            for name in catalog.list_tables(levels):
                if (levels, name) != (own, table):
                    yield levels, name
        except TableNotFound:
            continue  # dropped meanwhile


def _look_at_all(
    catalog: RestCatalog, siblings: Sequence[_Identifier], roots: Roots, concurrency: int
) -> list[_Look | None]:
    def look(sibling: _Identifier) -> _Look | None:
        return _look_at(catalog, sibling, roots)

    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="siblings")
    try:
        return list(pool.map(look, siblings))
    finally:
        # If one finds the catalog gone, the others need not wait for it as well.
        pool.shutdown(cancel_futures=True)


def _look_at(catalog: RestCatalog, sibling: _Identifier, roots: Roots) -> _Look | None:
    levels, name = sibling
    whole_name = ".".join([*levels, name])
    try:
        loaded = catalog.load_table(levels, name, vend=False, snapshots="refs")
    except (MetadataMissing, CatalogFailed, CatalogRefused):
        return None
    except TableNotFound:
        return _Look(whole_name, live=False)
    try:
        overlaps = Roots.of(table_locations(loaded)).overlaps(roots)
    except UnsupportedStorage:
        return None
    return _Look(whole_name, loaded.location, overlaps)
