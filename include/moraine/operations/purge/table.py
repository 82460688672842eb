"""The table of a task, and every way to get at it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import timedelta

from moraine.catalog.access import TableAccess, credentials_of
from moraine.catalog.client import LoadedTable, MetadataMissing
from moraine.errors import CatalogRefused, CatalogUnavailable, TableNotFound
from moraine.operations.purge import safety
from moraine.operations.purge.executor import Order
from moraine.operations.purge.payload import PurgeParameters
from moraine.storage.credentials import Credentials
from moraine.storage.locations import parse_location
from moraine.storage.stores import Storage, StorageLimits
from moraine.tasks.model import Task
from moraine.tasks.worker import Work, Worker

_LONGEST_REQUEST = timedelta(seconds=60)


def parameters_of(task: Task) -> PurgeParameters:
    return PurgeParameters.model_validate(task.task_payload["operation_parameters"])


@dataclass(frozen=True)
class TableAtHand:
    access: TableAccess
    task: Task
    worker: Worker

    @classmethod
    def of(cls, worker: Worker, task: Task) -> TableAtHand:
        identity = parameters_of(task).table_identity
        catalog = worker.catalog(identity.catalog_name)
        access = TableAccess(catalog, tuple(identity.namespace_levels), identity.table_name)
        return cls(access, task, worker)

    def load(self) -> LoadedTable | None:
        """The table as the catalog has it; None when this purge has deleted its root already."""
        if self.task.checkpoint.get("root", {}).get("done"):
            return None
        try:
            return self.access.load()
        except (TableNotFound, CatalogUnavailable, CatalogRefused) as error:
            if self._root_is_gone(error):
                return None
            raise

    def load_pinned(self) -> LoadedTable:
        table = self.load()
        if table is None:
            raise TableNotFound("The table's metadata file is gone.")
        safety.check_unchanged(self.task.checkpoint["table"], table)
        return table

    def storage_for(self, table: LoadedTable) -> functools.partial[Storage]:
        """Opens the table's storage here or on an executor, where credentials are renewed."""
        purge = self.worker.settings.purge
        return functools.partial(
            Storage,
            credentials_of(table, self.access.catalog),
            self.access.credentials,
            limits=StorageLimits(
                batch_size=purge.keys_per_request,
                concurrency=purge.requests_at_once,
                request_timeout=self._longest_request.total_seconds(),
                patience=purge.storage_patience.total_seconds(),
            ),
        )

    def order(self, table: LoadedTable, work: Work) -> Order:
        return Order(
            fence=self.worker.store.fence(work.attempt.claim, self._longest_request),
            storage=self.storage_for(table),
            most_named=self.worker.settings.purge.max_files_named,
        )

    @property
    def _longest_request(self) -> timedelta:
        """So short that a request ends before the lease of its attempt can."""
        lease = self.worker.settings.delegation.task.lease.lost_timeout_duration
        return min(_LONGEST_REQUEST, lease / 4)

    def _root_is_gone(self, error: Exception) -> bool:
        """Without its metadata file a table cannot be loaded, nor are credentials vended for it.

        The purge deletes that file last. If it was about to, and the file is gone, the work is
        done. Where only the catalog gives credentials, its word is taken: that it cannot load
        the table because of this very file.
        """
        if not self.task.checkpoint.get("root"):
            return False
        root: str = self.task.checkpoint["table"]["metadata_location"]
        own = Credentials(config=self.access.catalog.storage_properties)
        if parse_location(root).scheme == "file" or own.vended:
            return Storage(own).size(root) is None
        return isinstance(error, MetadataMissing) or root.rpartition("/")[2] in str(error)
