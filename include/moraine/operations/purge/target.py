"""The table of a purge: how it is loaded, what of it may be deleted, how it is dropped."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property

from moraine.catalog.access import TableAccess, credentials_of
from moraine.catalog.client import LoadedTable, MetadataMissing, NoSuchPage, RestCatalog
from moraine.catalog.places import allowed_places, own_places
from moraine.errors import CatalogRefused, CatalogUnavailable, TableNotFound
from moraine.neighbours.check import refuse_shared
from moraine.neighbours.model import TableName
from moraine.neighbours.store import SurveyStore
from moraine.neighbours.survey import Surveyor
from moraine.operations.purge import metadata, report
from moraine.operations.purge.executor_work import Assignment
from moraine.operations.purge.inventory import paths_to_delete
from moraine.operations.purge.metadata import NamedFile
from moraine.operations.purge.model import Checkpoint, FileKind, parameters_of
from moraine.storage.credentials import Credentials
from moraine.storage.locations import Roots, parse_location
from moraine.storage.stores import Storage, StorageLimits
from moraine.tasks.model import Task
from moraine.tasks.worker import Work, Worker

_MAX_REQUEST = timedelta(seconds=60)


@dataclass(frozen=True)
class PurgeTarget:
    access: TableAccess
    task: Task
    worker: Worker

    @classmethod
    def of(cls, worker: Worker, task: Task) -> PurgeTarget:
        identity = parameters_of(task).table_identity
        catalog = worker.catalog(identity.catalog_name)
        access = TableAccess(catalog, tuple(identity.namespace_levels), identity.table_name)
        return cls(access, task, worker)

    # --- Load it ----------------------------------------------------------------------------

    def load(self) -> LoadedTable | None:
        """The table as the catalog has it; None when this purge has deleted its root already."""
        if self._checkpoint.root_is_done:
            return None
        try:
            return self.access.load()
        except (TableNotFound, CatalogUnavailable, CatalogRefused) as error:
            if self._root_is_gone(error):
                return None
            raise

    def load_pinned(self) -> LoadedTable:
        """The table, if it is still as it was when it was pinned."""
        table = self.load()
        if table is None:
            raise MetadataMissing()
        self.refuse_change(table)
        return table

    def refuse_change(self, table: LoadedTable) -> None:
        store, task = self.worker.store, self.task
        metadata.refuse_change(
            self._checkpoint.pinned, table, lambda: report.describe_deleted(store, task)
        )

    def _root_is_gone(self, error: Exception) -> bool:
        """Whether this purge has deleted the root, though it could not record that.

        Without its metadata file a table cannot be loaded, and no credentials are vended for it.
        The purge deletes that file last. If it was about to, and the file is gone, the work is
        done. Where only the catalog gives credentials, its error is the evidence: it cannot load
        the table because this very file is missing.
        """
        if self._checkpoint.root is None:
            return False
        root = self._checkpoint.pinned.metadata_location
        own = Credentials(config=self.access.catalog.storage_properties)
        if parse_location(root).scheme == "file" or own.vended:
            return Storage(own).size(root) is None
        return isinstance(error, MetadataMissing) or names_file(error, root)

    @property
    def _checkpoint(self) -> Checkpoint:
        return Checkpoint.of(self.task)

    def named_files(self, table: LoadedTable, roots: Roots, storage: Storage) -> list[NamedFile]:
        """The files that the metadata names, and the one beside it that it does not name."""

        def read(path: str) -> bytes | None:
            return storage.read(path) if roots.contains(path) else None

        files = list(metadata.named_by_metadata(table, read))
        hint = metadata.version_hint_of(table.metadata_location)
        if roots.contains(hint) and (size := storage.size(hint)) is not None:
            files.append(NamedFile(hint, FileKind.VERSION_HINT, size))
        return files

    # --- Delete its files -------------------------------------------------------------------

    def storage_for(self, table: LoadedTable, bounds: Roots) -> functools.partial[Storage]:
        """Opens the table's storage here or on an executor, where credentials are renewed. It
        deletes nothing outside the bounds."""
        purge = self.worker.settings.purge
        return functools.partial(
            Storage,
            credentials_of(table, self.access.catalog),
            self.access.credentials,
            bounds=bounds,
            limits=StorageLimits(
                batch_size=purge.keys_per_request,
                concurrency=purge.requests_at_once,
                request_timeout=self._max_request.total_seconds(),
                patience=purge.storage_patience.total_seconds(),
            ),
        )

    def assignment(
        self, table: LoadedTable, work: Work, bounds: Roots, digests: Mapping[str, str]
    ) -> Assignment:
        fence = self.worker.store.fence(work.attempt.claim, self._max_request)
        if own := self.worker.settings.ledger.executor_url:
            fence = replace(fence, ledger=own)
        return Assignment(
            fence=fence,
            storage=self.storage_for(table, bounds),
            digests=digests,
            max_named=self.worker.settings.purge.max_files_named,
        )

    @property
    def _max_request(self) -> timedelta:
        """Short enough that a request ends before the lease of its attempt can expire."""
        lease = self.worker.settings.delegation.task.lease.lost_timeout_duration
        return min(_MAX_REQUEST, lease / 4)

    # --- Which files are its own ------------------------------------------------------------

    def own_folders(self, table: LoadedTable) -> Roots:
        """The table's folders, as far as the catalog or the operator lets Moraine delete there."""
        return own_places(
            table.location, table.properties, table.metadata_location, self._surveyor.allowed
        )

    def survey_neighbours(self, work: Work) -> None:
        """Bring the index of the catalog's tables up to date. The first time that takes long."""
        if not self._checks_neighbours:
            return
        purge = self.worker.settings.purge
        self._surveyor.survey(
            max_age=purge.neighbour_max_age,
            looks=purge.neighbour_looks,
            without=self._name,
            progress=lambda done, total: work.report(
                step="acquire", tables_done=done, tables_total=total
            ),
        )

    def survey_new_neighbours(self) -> None:
        """Only the tables that were added to the catalog since the survey."""
        if self._checks_neighbours:
            self._surveyor.survey(max_age=timedelta.max, looks=0, without=self._name)

    def refuse_shared_files(self, roots: Roots, inventory: str, digests: Mapping[str, str]) -> str:
        """Raise if another table names or contains a file of the inventory. Returns what was
        checked, as a sentence for people."""
        if not self._checks_neighbours:
            return "not checked: purge.neighbour-check is off"
        files = functools.partial(paths_to_delete, inventory, digests)
        near = refuse_shared(self._surveyor, self._name, roots, files)
        return f"{near} other tables have files in the same folders, and none needs one of these."

    @property
    def _name(self) -> TableName:
        return TableName(self.access.namespace, self.access.table)

    @property
    def _checks_neighbours(self) -> bool:
        return self.worker.settings.purge.neighbour_check == "catalog"

    @cached_property
    def _surveyor(self) -> Surveyor:
        settings, store, realm = self.access.catalog, self.worker.store, self.worker.settings.realm
        name = parameters_of(self.task).table_identity.catalog_name
        catalog = RestCatalog(settings)
        return Surveyor(
            catalog,
            settings,
            allowed_places(name, settings, catalog.properties),
            SurveyStore(store.pool, realm, name, patience=store.patience),
            lambda table: report.was_purged(store, realm, name, table),
        )

    # --- Drop it ----------------------------------------------------------------------------

    def drop_entry(self) -> bool:
        """Drop the table's entry in the catalog, once its files are gone. False: there is none."""
        catalog = RestCatalog(self.access.catalog)
        if not self.is_in_catalog(catalog):
            return False
        with contextlib.suppress(TableNotFound):
            catalog.drop_table(self.access.namespace, self.access.table)
        return True

    def is_in_catalog(self, catalog: RestCatalog) -> bool:
        """Whether the name still stands for the purged table. Anything but a clear answer is an
        error and is retried: a table that was created under the name since must not be dropped."""
        purged = self._checkpoint.pinned
        try:
            loaded = catalog.load_table(self.access.namespace, self.access.table, vend=False)
        except MetadataMissing:
            return True
        except NoSuchPage as error:
            raise CatalogUnavailable(
                "Whether the catalog still has the table is unknown.", details=str(error)
            ) from error
        except TableNotFound:
            return False
        except (CatalogUnavailable, CatalogRefused) as error:
            # Many catalogs fail at the metadata file that is gone.
            if names_file(error, purged.metadata_location):
                return True
            raise
        # A catalog that has the metadata in a cache may still load it.
        if loaded.uuid and purged.uuid:
            return loaded.uuid == purged.uuid
        return loaded.metadata_location == purged.metadata_location


def names_file(error: Exception, path: str) -> bool:
    """Whether a catalog's error is about this very file."""
    words = f"{error} {getattr(error, 'details', None) or ''}"
    return path.rpartition("/")[2] in words
