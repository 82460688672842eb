"""Tombstones: tables that are being purged and then dropped. The gateway hides them from clients.

A tombstone is added before its task, and removed when the catalog has dropped the table. If the
purge fails, the tombstone stays: the table may have lost files. If the purge deleted nothing, the
tombstone can be lifted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg_pool import ConnectionPool

from moraine.access.model import QualifiedName
from moraine.errors import FinalError, MoraineError, TaskConflict
from moraine.ledger.queries import Queries, load_queries
from moraine.tasks.model import Task
from moraine.tasks.store import TaskStore

_SQL = load_queries("moraine.drops", "tombstones.sql")
CHANNEL = "moraine_tombstones"
DELETING_MARK = "deleting"
"""In the checkpoint of a purge. It is written before the first delete and stays: without it, no
file is gone. `lift` reads it in SQL, too."""
# A task is added right after its tombstone, so by then its process has died in between.
_ORPHANED_AFTER = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Tombstone:
    realm_id: str
    catalog_name: str
    namespace: list[str]
    table_name: str
    table_uuid: str
    task_id: UUID
    created_at: datetime
    principal: str
    """Who had the table dropped."""

    @property
    def table(self) -> QualifiedName:
        return QualifiedName(self.catalog_name, tuple(self.namespace), self.table_name)


class TombstoneMissing(FinalError, code="DROP_CALLED_OFF", http_status=409):
    """The drop that this purge was a part of has been called off; nothing was deleted."""


class NoTombstone(MoraineError, code="NO_TOMBSTONE", http_status=404):
    """No such table is being purged."""


class TombstoneStore:
    def __init__(
        self, pool: ConnectionPool[Any], realm: str, *, patience: timedelta = timedelta(0)
    ) -> None:
        self._queries = Queries(pool, _SQL, patience=patience.total_seconds())
        self._realm = realm

    def add(
        self,
        catalog: str,
        namespace: tuple[str, ...],
        table: str,
        uuid: str,
        task_id: UUID,
        principal: str = "",
    ) -> Tombstone | None:
        """Hide a table; None if it is hidden already."""
        added = self._queries.run_as(
            Tombstone,
            "add",
            **self._name(catalog, namespace, table),
            table_uuid=uuid,
            task_id=task_id,
            principal=principal,
        )
        if added.first is None and added.retried:
            return self.of_task(task_id)  # the try that broke may have written it
        return added.first

    def find(self, catalog: str, namespace: tuple[str, ...], table: str) -> Tombstone | None:
        name = self._name(catalog, namespace, table)
        return self._queries.run_as(Tombstone, "find", **name).first

    def all(self) -> list[Tombstone]:
        return self._run("list", realm_id=self._realm)

    def of_task(self, task_id: UUID) -> Tombstone | None:
        return self._queries.run_as(Tombstone, "of_task", task_id=task_id).first

    def remove(self, task_id: UUID) -> None:
        """The table is gone."""
        self._run("remove", task_id=task_id)

    def forget_orphans(self) -> int:
        return len(self._run("forget_orphans", realm_id=self._realm, age=_ORPHANED_AFTER))

    def lift(self, task_id: UUID, tasks: TaskStore) -> Tombstone:
        """Show the table again. Refused while its purge is under way or has deleted a file."""
        tombstone = self.of_task(task_id)
        if tombstone is None:
            raise NoTombstone()
        task = tasks.get(task_id)
        if not task.status.terminal:
            raise TaskConflict(
                f"The purge {task_id} is {task.status.wire}. Cancel it first: "
                f"moraine tasks cancel {task_id}."
            )
        if may_have_deleted(task):
            raise TaskConflict(
                f"The purge {task_id} has begun to delete: the table cannot be brought back. "
                f"Finish it with: moraine tasks retry {task_id}."
            )
        lifted = self._queries.run_as(Tombstone, "lift", task_id=task_id)
        if lifted.first is None and not (lifted.retried and self.of_task(task_id) is None):
            raise TaskConflict(f"The purge {task_id} was restarted meanwhile.")
        return tombstone

    def _name(self, catalog: str, namespace: tuple[str, ...], table: str) -> dict[str, Any]:
        return {
            "realm_id": self._realm,
            "catalog_name": catalog,
            "namespace": list(namespace),
            "table_name": table,
        }

    def _run(self, name: str, **parameters: Any) -> list[Tombstone]:
        return self._queries.run_as(Tombstone, name, **parameters).rows


def may_have_deleted(task: Task) -> bool:
    """Whether an attempt at the purge has begun to delete."""
    return bool(task.checkpoint.get(DELETING_MARK))
