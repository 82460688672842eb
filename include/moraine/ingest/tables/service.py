"""The tables that ingest writes to, through PyIceberg: created, widened and committed to.

A commit names the keys whose rows it adds, and asserts the snapshot that it is based on. So a key
in the table proves that its rows are there; and a writer that does not find the key, and commits on
that very snapshot, is the only one that adds them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from uuid import UUID

import requests
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

from moraine.catalog.places import allowed_places, is_allowed, own_places
from moraine.errors import CatalogRefused, CatalogUnavailable, LedgerUnavailable
from moraine.ingest.columns import Column, ColumnKind, ColumnType
from moraine.ingest.errors import CommitContended, TableExists, UnknownTable, UnsupportedTable
from moraine.ingest.model import TableId
from moraine.ingest.store import TableStore
from moraine.ingest.tables.catalog import IngestCatalog
from moraine.ingest.tables.schemas import (
    DEFAULT_COLUMNS,
    PROMOTED,
    Promotion,
    check_columns,
    columns_of,
    comment_of,
    iceberg_type,
    schema_of,
)
from moraine.log import get_logger
from moraine.settings import CatalogSettings
from moraine.storage.files import UnsupportedStorage
from moraine.storage.locations import Roots, parse_location
from moraine.tasks.retry import RetryPolicy

log = get_logger(__name__)

_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "commit.manifest-merge.enabled": "true",
    # Every hundredth commit merges the manifests of those before it.
    "commit.manifest.min-count-to-merge": "100",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
_WIDEN_ATTEMPTS, _LOAD_ATTEMPTS = 20, 9
# 20 ms, 40 ms, 80 ms, … up to 2 s, and up to half of it more.
_RETRY = RetryPolicy(
    max_attempts=_WIDEN_ATTEMPTS,
    initial_backoff=timedelta(milliseconds=20),
    multiplier=2,
    max_backoff=timedelta(seconds=2),
    jitter=0.5,
)
_NO_RETRIES = {"commit.retry.num-retries": "0"}
_FORMAT = "write.format.default"


@dataclass(frozen=True, repr=False)
class IngestTables:
    """The tables of one catalog. Threads may share it.

    Tables created and commits made here are recorded in the store, if there is one; without it
    nothing is ever removed from those tables.
    """

    name: str
    settings: CatalogSettings
    store: TableStore | None = None

    def load(self, database: str, table: str) -> Table:
        with _translated_errors():
            try:
                found: Table = self._catalog.load_table((*database.split("."), table))
                return found
            except (NoSuchTableError, NoSuchNamespaceError):
                raise UnknownTable(
                    f"There is no table {database}.{table}; create it first, or allow its creation "
                    "(X-Auto-Create over REST, auto-create in the settings of other doors)."
                ) from None

    def create(
        self, database: str, table: str, columns: Sequence[Column] = DEFAULT_COLUMNS
    ) -> Table:
        check_columns(columns)
        levels = tuple(database.split("."))
        with _translated_errors():
            try:
                self._catalog.create_namespace_if_not_exists(levels)
            except NamespaceAlreadyExistsError:
                log.debug("ingest.namespace.exists", database=database)
            try:
                made: Table = self._catalog.create_table(
                    (*levels, table), schema_of(columns), properties=_PROPERTIES
                )
            except TableAlreadyExistsError:
                raise TableExists(f"There is a table {database}.{table} already.") from None
        self._note_made(made)
        return made

    def load_or_create(
        self, database: str, table: str, columns: Sequence[Column] = DEFAULT_COLUMNS
    ) -> Table:
        try:
            return self.load(database, table)
        except UnknownTable:
            try:
                return self.create(database, table, columns)
            except TableExists:  # another caller created it meanwhile
                return self.load(database, table)

    def widen(
        self,
        table: Table,
        names: Iterable[str],
        type: ColumnType = ColumnType(ColumnKind.TEXT),
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

        for attempt in range(1, _WIDEN_ATTEMPTS + 1):
            with _translated_errors():
                try:
                    change(table)
                    return table
                except (CommitFailedException, ValueError):
                    # ValueError: PyIceberg found that the schema changed meanwhile.
                    _pause_after(attempt)
                    table = self._reload(table)
        raise CommitContended()

    def promote(self, database: str, table: str, promotion: Promotion) -> Promotion:
        """Add the column of a promoted field, and write the field to it. Idempotent."""
        found = self.load(database, table)
        checked = promotion.checked(f"{database}.{table}", columns_of(found.schema()))
        column = {f"{PROMOTED}{checked.field}": checked.column}
        self.widen(found, [checked.column], checked.type, column)
        return checked

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
        """Commit the files in one snapshot and return the new table; None if `may_commit` refuses.
        `properties` are set by the same commit.

        `may_commit` is called before every attempt, with the table that the attempt is based on. An
        attempt whose outcome is unknown is followed by another call, never by a blind retry: if it
        lands late, it asserts a snapshot that is no longer the newest.
        """
        for attempt in range(attempts):
            if attempt:
                _pause_after(attempt)
                table = self._reload_with_retries(table)
            self.check_writable(table)  # a commit writes manifests to the table's current folders
            if not may_commit(table):
                return None
            try:
                commit = _commit(table, files, summary, properties(table))
                if self.store is not None:
                    self.store.note_commit(self._id_of(table), *commit)
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

    def check_writable(self, table: Table) -> None:
        """Raise UnsupportedTable if ingest must not write to the folders of the table.

        A table's properties may choose folders in the store of its metadata, and no other store:
        they must not direct Moraine's credentials, or local disks, which need none. On a local disk
        the settings have to allow the folder.
        """
        if table.metadata.properties.get(_FORMAT, "parquet").lower() != "parquet":
            raise UnsupportedTable(f"Ingest writes Parquet; the table's {_FORMAT} is another.")
        allowed = Roots.of(self.settings.allowed_locations)
        home = _store_of(table.metadata_location)
        locations = table.location_provider()
        for folder in (locations.data_path, locations.metadata_path):
            store = _store_of(folder)
            if store is not None and store[0] == "file":
                if not is_allowed(folder, table.metadata_location, allowed):
                    raise UnsupportedTable(
                        "The table or a folder that it writes to is on a local disk that is not in "
                        "the catalog's allowed-locations."
                    )
            elif store is None or store != home:
                raise UnsupportedTable(
                    "The table's location, write.data.path or write.metadata.path leads to another "
                    "store than that of its metadata."
                )

    def own_roots(self, table: Table) -> Roots:
        """The folders in which files of the table may be deleted. Raises LocationNotAllowed."""
        allowed = allowed_places(self.name, self.settings, self._catalog.properties)
        metadata = table.metadata
        return own_places(metadata.location, metadata.properties, table.metadata_location, allowed)

    def commits_to(self, table: Table) -> dict[int, UUID]:
        """The commits to a table that was created here: the uuid of each, by snapshot."""
        return self.store.commits(self._id_of(table)) if self.store is not None else {}

    def forget_commits(self, table: Table) -> None:
        """Forget commits whose snapshots the table no longer has."""
        if self.store is not None:
            kept = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
            self.store.forget_commits(self._id_of(table), kept)

    def _note_made(self, table: Table) -> None:
        try:
            if self.store is not None:
                self.store.note_made(self._id_of(table))
        except LedgerUnavailable:  # the table exists; its snapshots will not be expired
            log.warning("ingest.table.not_noted", table=".".join(table.name()))

    def _id_of(self, table: Table) -> TableId:
        *levels, name = table.name()
        return TableId(self.name, ".".join(levels), name, table.metadata.table_uuid)

    def _reload(self, table: Table) -> Table:
        return self.load(".".join(table.name()[:-1]), table.name()[-1])

    def _reload_with_retries(self, table: Table) -> Table:
        for attempt in range(1, _LOAD_ATTEMPTS):
            try:
                return self._reload(table)
            except CatalogUnavailable:
                _pause_after(attempt)
        return self._reload(table)

    @cached_property
    def _catalog(self) -> IngestCatalog:
        return IngestCatalog(self.name, self.settings)


def _commit(
    table: Table,
    files: Sequence[DataFile],
    summary: Mapping[str, str],
    properties: Mapping[str, str],
) -> tuple[int, UUID]:
    """The snapshot, and the uuid in the names of the metadata files that were written for it."""
    # PyIceberg would retry by itself, without asking `may_commit`. And it copies the metadata over
    # and over, which with a hundred snapshots takes longer than the rest. This shortened copy is
    # never sent to the catalog, whose answer has all of it again.
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
    return append.snapshot_id, append.commit_uuid


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Translate PyIceberg's errors to Moraine's."""
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


def _pause_after(attempt: int) -> None:
    pause = _RETRY.backoff(attempt).total_seconds()
    time.sleep(pause * (1 + _RETRY.jitter * random.random()))  # noqa: S311


def _store_of(location: str) -> tuple[str, str] | None:
    """Scheme and bucket; None for a store that Moraine does not support."""
    try:
        return parse_location(location).store
    except UnsupportedStorage:
        return None
