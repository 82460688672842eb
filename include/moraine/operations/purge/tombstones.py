"""Tables that are being purged and then dropped. To a gateway's clients they are gone already.

A tombstone is there before its task is, and goes when the catalog has dropped the table. If the
purge fails it stays: the table may have lost files. One whose purge deleted nothing can be lifted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import args_row
from psycopg_pool import ConnectionPool

from moraine.errors import FinalError, MoraineError, TaskConflict, WorkerLost
from moraine.operations.purge.order import Phase
from moraine.sql import load_queries
from moraine.tasks.model import Task
from moraine.tasks.store import TAKE_OVER, TaskStore

CHANNEL = "moraine_tombstones"
# A task is written right after its tombstone.
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


_COLUMNS = ", ".join(f"tombstones.{field.name}" for field in fields(Tombstone))
_SQL = {
    name: query.replace(b"{columns}", _COLUMNS.encode())
    for name, query in load_queries("moraine.operations.purge", "tombstones.sql").items()
}


class TombstoneMissing(FinalError):
    """The drop that this purge was a part of has been called off; nothing was deleted."""

    code = "DROP_CALLED_OFF"
    http_status = 409


class NoTombstone(MoraineError):
    """No such table is being purged."""

    code = "NO_TOMBSTONE"
    http_status = 404


class TombstoneStore:
    def __init__(self, pool: ConnectionPool[Any], realm: str) -> None:
        self._pool = pool
        self._realm = realm

    def add(
        self, catalog: str, namespace: tuple[str, ...], table: str, uuid: str, task_id: UUID
    ) -> Tombstone | None:
        """Hide a table; None if it is hidden already."""
        found = self._run(
            "add", **self._name(catalog, namespace, table), table_uuid=uuid, task_id=task_id
        )
        return found[0] if found else None

    def find(self, catalog: str, namespace: tuple[str, ...], table: str) -> Tombstone | None:
        found = self._run("find", **self._name(catalog, namespace, table))
        return found[0] if found else None

    def all(self) -> list[Tombstone]:
        return self._run("list", realm_id=self._realm)

    def of_task(self, task_id: UUID) -> Tombstone | None:
        found = self._run("of_task", task_id=task_id)
        return found[0] if found else None

    def remove(self, task_id: UUID) -> None:
        """The table is gone."""
        self._run("remove", task_id=task_id)

    def forget_orphans(self) -> int:
        return len(self._run("forget_orphans", realm_id=self._realm, age=_ORPHANED_AFTER))

    def lift(self, task_id: UUID, tasks: TaskStore) -> Tombstone:
        """Show the table again. Refused while its purge is under way or has deleted a file."""
        if self.of_task(task_id) is None:
            raise NoTombstone()
        task = tasks.get(task_id)
        if not task.status.terminal:
            raise TaskConflict(
                f"The purge {task_id} is {task.status.wire}. Cancel it first: "
                f"moraine tasks cancel {task_id}."
            )
        if deleted := may_have_deleted(tasks, task):
            raise TaskConflict(
                f"The purge {task_id} has deleted {deleted}: the table cannot be brought back. "
                f"Finish it with: moraine tasks retry {task_id}."
            )
        lifted = self._run("lift", task_id=task_id)
        if not lifted:
            raise TaskConflict(f"The purge {task_id} was started anew meanwhile.")
        return lifted[0]

    def _name(self, catalog: str, namespace: tuple[str, ...], table: str) -> dict[str, Any]:
        return {
            "realm_id": self._realm,
            "catalog_name": catalog,
            "namespace": list(namespace),
            "table_name": table,
        }

    def _run(self, name: str, **parameters: Any) -> list[Tombstone]:
        with self._pool.connection() as connection:
            cursor = connection.cursor(row_factory=args_row(Tombstone))
            found: list[Tombstone] = cursor.execute(_SQL[name], parameters).fetchall()
            return found


def may_have_deleted(tasks: TaskStore, task: Task) -> str:
    """What the attempts at a task have deleted, in words; empty if it is certain that they have
    deleted nothing."""
    if task.checkpoint.get("root") is not None:
        return "all its files"
    counts = tasks.slice_totals(task.task_id)
    begun = [done for stage, done in counts.items() if stage in set(Phase)]
    if files := sum(done.files_done for done in begun):
        return f"{files} files"
    # A worker that was lost in the midst of a slice has not said how far it came.
    lost = any(
        row.reason == TAKE_OVER or row.error_code == WorkerLost.code
        for row in tasks.history(task.task_id)
    )
    return "files that nobody has counted" if begun and lost else ""
