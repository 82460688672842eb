"""The index of a catalog's tables in the ledger: the only module with its SQL."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from psycopg_pool import ConnectionPool

from moraine.ledger.queries import Queries, load_queries
from moraine.neighbours.model import Look, Seen, TableName, places_around

_SQL = load_queries("moraine.neighbours", "queries.sql")


class SurveyStore:
    """The index of one catalog. All statements are idempotent, and retried for `patience` while the
    database does not answer."""

    def __init__(
        self,
        pool: ConnectionPool[Any],
        realm: str,
        catalog: str,
        *,
        patience: timedelta = timedelta(0),
    ) -> None:
        self._queries = Queries(pool, _SQL, patience=patience.total_seconds())
        self._catalog = {"realm_id": realm, "catalog_name": catalog}

    def known(self) -> dict[TableName, Seen]:
        return {
            _name(row): Seen(row["metadata_location"], row["sequence_number"], row["age"])
            for row in self._run("known")
        }

    def write(self, look: Look) -> None:
        self._run(
            "write",
            table_key=look.name.key,
            namespace=list(look.name.namespace),
            table_name=look.name.name,
            metadata_location=look.metadata_location,
            sequence_number=look.sequence_number,
            location=look.location,
            places=list(look.places),
            keeps_places=look.keeps_places,
        )

    def touch(self, names: Iterable[TableName]) -> None:
        if keys := [name.key for name in names]:
            self._run("touch", table_keys=keys)

    def forget(self, names: Iterable[TableName]) -> None:
        if keys := [name.key for name in names]:
            self._run("forget", table_keys=keys)

    def overlapping(self, places: Iterable[str]) -> list[TableName]:
        """Tables with files in these folders, in their parents or below them."""
        own = sorted(places)
        around = {folder for place in own for folder in places_around(place)}
        found = self._run("overlapping", places=own, around=sorted(around))
        return sorted(map(_name, found))

    def located_in(self, place: str, *, limit: int) -> list[TableName]:
        """Tables whose location is inside a folder."""
        return list(map(_name, self._run("located_in", place=place, limit=limit)))

    def _run(self, name: str, **parameters: Any) -> list[dict[str, Any]]:
        return self._queries.run(name, **self._catalog, **parameters)


def _name(row: dict[str, Any]) -> TableName:
    return TableName(tuple(row["namespace"]), row["table_name"])
