"""The tables that ingest writes to, through pyiceberg: made, widened and committed to.

A commit names the keys whose rows it brings, and asserts the snapshot that it was made on. So
whoever finds a key in the table knows that its rows are there; and whoever does not, and commits on
that very snapshot, knows that nobody else brings them too.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from requests.auth import AuthBase

from moraine.catalog.auth import auth_for
from moraine.errors import CatalogRefused, CatalogUnavailable
from moraine.ingest.columns import Column, ColumnType, Kind
from moraine.ingest.errors import NoSuchTable, TableExists
from moraine.ingest.model import Applied
from moraine.ingest.schemas import (
    DEFAULT_COLUMNS,
    check_columns,
    columns_of,
    comment_of,
    iceberg_type,
    schema_of,
)
from moraine.log import get_logger
from moraine.settings import CatalogSettings

log = get_logger(__name__)

KEYS = "moraine.ingest.keys"
"""Of a snapshot: the keys whose rows it brought, with what each came to."""
BATCH = "moraine.ingest.batch"
"""Of a snapshot: the batch that it committed."""
MADE_HERE = "moraine.ingest.made"
_PROPERTIES = {
    MADE_HERE: "true",
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "commit.manifest-merge.enabled": "true",
    # Every hundredth commit merges the manifests of those before it.
    "commit.manifest.min-count-to-merge": "100",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_NO_RETRIES = {"commit.retry.num-retries": "0"}
_LONGEST_PAUSE = 2.0


class CommitContended(CatalogUnavailable):
    """Others commit to the table so often that this commit found no room."""


class IngestTables:
    """The tables of one catalog. Threads may share it."""

    def __init__(self, name: str, settings: CatalogSettings) -> None:
        self._name = name
        self._settings = settings
        self._catalog: RestCatalog | None = None

    def load(self, database: str, table: str) -> Table:
        with _told_apart():
            try:
                found: Table = self._opened().load_table((*database.split("."), table))
                return found
            except (NoSuchTableError, NoSuchNamespaceError):
                raise NoSuchTable(
                    f"There is no table {database}.{table}; make it first, or let it be made "
                    "(X-Auto-Create over REST, auto-create in the settings of other doors)."
                ) from None

    def create(
        self,
        database: str,
        table: str,
        columns: Sequence[Column] = DEFAULT_COLUMNS,
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        check_columns(columns)
        levels = tuple(database.split("."))
        with _told_apart():
            catalog = self._opened()
            try:
                catalog.create_namespace_if_not_exists(levels)
            except NamespaceAlreadyExistsError:
                log.debug("ingest.namespace.exists", database=database)
            try:
                made: Table = catalog.create_table(
                    (*levels, table),
                    schema_of(columns),
                    properties={**_PROPERTIES, **(properties or {})},
                )
                return made
            except TableAlreadyExistsError:
                raise TableExists(f"There is a table {database}.{table} already.") from None

    def load_or_create(
        self, database: str, table: str, columns: Sequence[Column] = DEFAULT_COLUMNS
    ) -> Table:
        try:
            return self.load(database, table)
        except NoSuchTable:
            try:
                return self.create(database, table, columns)
            except TableExists:  # somebody else was quicker
                return self.load(database, table)

    def widen(
        self,
        table: Table,
        names: Iterable[str],
        type: ColumnType = ColumnType(Kind.TEXT),
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        """Add the columns that are still missing, all in one commit."""

        def change(table: Table) -> None:
            there = {column.name for column in columns_of(table.schema())}
            missing = [name for name in names if name not in there]
            with table.transaction() as transaction:
                with transaction.update_schema() as update:
                    for name in missing:
                        update.add_column(name, iceberg_type(type, -1), doc=comment_of(type))
                if properties:
                    transaction.set_properties(dict(properties))

        for pause in _pauses(attempts=20):
            with _told_apart():
                try:
                    change(table)
                    return table
                except (CommitFailedException, ValueError):
                    # ValueError: pyiceberg's own look at a schema that changed meanwhile.
                    time.sleep(pause)
                    table = self._reload(table)
        raise CommitContended()

    def append(
        self,
        table: Table,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        may_commit: Callable[[Table], bool],
        *,
        attempts: int,
        properties: Callable[[Table], Mapping[str, str]] = lambda _: {},
    ) -> Table | None:
        """Commit the files in one snapshot; the table as it is then. None: not permitted any more.
        `properties` are set by the same commit.

        `may_commit` is asked before every attempt, with the table that the attempt is made on. An
        attempt whose outcome is unknown is followed by another such question, never by a blind
        repetition: should it land late, it asserts a snapshot that is no longer the newest.
        """
        fresh = True
        for pause in _pauses(attempts):
            if not fresh:
                time.sleep(pause)
                table = self._reload_patiently(table)
            fresh = False
            if not may_commit(table):
                return None
            try:
                _commit(table, files, summary, properties(table))
                return table
            except CommitFailedException:
                log.info("ingest.commit.conflict", table=".".join(table.name()))
            except (RESTError, requests.RequestException) as error:
                log.warning(
                    "ingest.commit.unknown",
                    table=".".join(table.name()),
                    error=type(error).__name__,
                )
        raise CommitContended()

    def _reload(self, table: Table) -> Table:
        return self.load(".".join(table.name()[:-1]), table.name()[-1])

    def _reload_patiently(self, table: Table) -> Table:
        for pause in _pauses(attempts=8):
            try:
                return self._reload(table)
            except CatalogUnavailable:
                time.sleep(pause)
        return self._reload(table)

    def _opened(self) -> RestCatalog:
        if self._catalog is None:
            auth = auth_for(self._settings)
            properties: dict[str, Any] = {
                "uri": self._settings.uri,
                "header.X-Iceberg-Access-Delegation": "vended-credentials",
                **({"warehouse": self._settings.warehouse} if self._settings.warehouse else {}),
                **self._settings.storage_properties,
            }
            catalog = _catalog_with(auth)
            self._catalog = catalog(self._name, **properties)
        return self._catalog


def _catalog_with(auth: AuthBase) -> type[RestCatalog]:
    """pyiceberg asks for the configuration as soon as it is made: the principal goes in first."""

    class Authenticated(RestCatalog):
        def _create_session(self) -> requests.Session:
            session = super()._create_session()
            session.auth = auth
            return session

        @staticmethod
        def _delete_old_metadata(*_: Any) -> None:
            """The catalog does that."""

    return Authenticated


def _commit(
    table: Table,
    files: Sequence[DataFile],
    summary: Mapping[str, str],
    properties: Mapping[str, str],
) -> None:
    # pyiceberg would try again by itself, without the question whether it still may. And it copies
    # all it knows of the table over and over, which with a hundred snapshots takes longer than the
    # rest. This is our copy of the metadata; the catalog does not hear of it, and answers with all.
    metadata = table.metadata
    table.metadata = metadata.model_copy(
        update={
            "properties": {**metadata.properties, **_NO_RETRIES},
            "snapshots": [current] if (current := metadata.current_snapshot()) else [],
            "snapshot_log": [],
            "metadata_log": [],
        }
    )
    with table.transaction() as transaction:
        if properties:
            transaction.set_properties(dict(properties))
        update = transaction.update_snapshot(snapshot_properties=dict(summary))
        with update.merge_append() as append:
            for file in files:
                append.append_data_file(file)


def keys_in(table: Table) -> dict[tuple[str, int], Applied]:
    """What the table's snapshots say that they brought, by key and reservation."""
    found: dict[tuple[str, int], Applied] = {}
    for snapshot in table.metadata.snapshots:
        text = snapshot.summary.additional_properties.get(KEYS) if snapshot.summary else None
        if text is None:
            continue
        for key, (number, rows, extents, size) in _parse_keys(text).items():
            found[key, number] = Applied(number, rows, extents, size, snapshot.snapshot_id)
    return found


@lru_cache(maxsize=1000)
def _parse_keys(text: str) -> dict[str, list[int]]:
    """Snapshots do not change, and every commit looks at all of them."""
    parsed: dict[str, list[int]] = json.loads(text)
    return parsed


def batches_in(table: Table) -> set[str]:
    return {
        snapshot.summary.additional_properties[BATCH]
        for snapshot in table.metadata.snapshots
        if snapshot.summary and BATCH in snapshot.summary.additional_properties
    }


def keys_summary(applied: Mapping[str, Applied]) -> dict[str, str]:
    told = {
        key: [one.id, one.rows_ingested, one.extent_count, one.bytes_written]
        for key, one in applied.items()
    }
    return {KEYS: json.dumps(told, separators=(",", ":"))}


@contextmanager
def _told_apart() -> Iterator[None]:
    """A catalog's errors in our own terms."""
    try:
        yield
    except requests.RequestException as error:
        raise CatalogUnavailable(
            "The catalog does not answer.", details=type(error).__name__
        ) from error
    except CommitFailedException:
        raise
    except RESTError as error:
        kind = type(error).__name__
        if kind in ("ForbiddenError", "UnauthorizedError", "OAuthError", "BadRequestError"):
            raise CatalogRefused("The catalog refused.", details=str(error)[:500]) from error
        raise CatalogUnavailable("The catalog failed.", details=kind) from error


def _pauses(attempts: int) -> Iterator[float]:
    for attempt in range(attempts):
        yield min(_LONGEST_PAUSE, 0.02 * 2**attempt) * (0.5 + random.random())  # noqa: S311
