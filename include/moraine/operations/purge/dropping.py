"""The end of a purge that is a drop: the table's entry in the catalog goes after its files."""

from __future__ import annotations

import contextlib

from moraine.catalog.client import MetadataMissing, RestCatalog
from moraine.errors import CatalogRefused, CatalogUnavailable, TableNotFound
from moraine.failpoints import failpoint
from moraine.log import get_logger
from moraine.operations.purge.table import TableAtHand, parameters_of
from moraine.operations.purge.tombstones import TombstoneMissing, TombstoneStore
from moraine.tasks.model import Task
from moraine.tasks.worker import Worker

log = get_logger(__name__)


def require_tombstone(worker: Worker, task: Task) -> None:
    """A drop that somebody called off must not be purged after all. Once the files are gone it
    cannot be called off, and the tombstone may be gone as well."""
    if not parameters_of(task).tombstone or task.checkpoint.get("root"):
        return
    if _tombstones(worker).of_task(task.task_id) is None:
        raise TombstoneMissing()


def drop_from_catalog(worker: Worker, task: Task) -> None:
    """Drop the entry, once the files are gone. Made for being repeated: a crash may come before
    or after each line."""
    failpoint("purge.drop.before")
    at_hand = TableAtHand.of(worker, task)
    catalog = RestCatalog(at_hand.access.catalog)
    if _is_still_there(catalog, at_hand, task):
        with contextlib.suppress(TableNotFound):
            catalog.drop_table(at_hand.access.namespace, at_hand.access.table)
        log.info("purge.drop.done", task_id=str(task.task_id), table=task.subject)
    failpoint("purge.drop.after")
    _tombstones(worker).remove(task.task_id)


def _is_still_there(catalog: RestCatalog, at_hand: TableAtHand, task: Task) -> bool:
    """Whether the name still stands for the purged table. Its metadata file is gone, so a table
    that can be loaded is another one, which somebody made there since."""
    access = at_hand.access
    try:
        loaded = catalog.load_table(access.namespace, access.table, vend=False, snapshots="refs")
    except MetadataMissing:
        return True
    except TableNotFound:
        return False
    except (CatalogUnavailable, CatalogRefused):
        # Many catalogs fail at the metadata file that is gone. Whether the entry is there, the
        # drop itself tells.
        return True
    return bool(loaded.uuid == task.checkpoint["table"]["uuid"])


def _tombstones(worker: Worker) -> TombstoneStore:
    return TombstoneStore(worker.store.pool, worker.settings.realm)
