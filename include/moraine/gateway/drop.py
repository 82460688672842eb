"""`DELETE …?purgeRequested=true`: a delegated purge, and then a drop of the metadata."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import uuid6

from moraine.catalog.client import LoadedTable
from moraine.errors import AlreadyInProgress, MoraineError, SyncWaitExceeded, http_status_of
from moraine.failpoints import async_failpoint
from moraine.gateway.errors import TableHidden, error_response
from moraine.gateway.hiding import HiddenTables
from moraine.gateway.model import Intent, Target
from moraine.gateway.mutations import CatalogMutation, PassedOn
from moraine.gateway.upstream import Request
from moraine.idempotency.layer import Finding, NotApplied
from moraine.idempotency.model import Response
from moraine.log import get_logger
from moraine.operations.purge import OPERATION
from moraine.operations.purge.payload import PurgeParameters
from moraine.operations.purge.safety import check_purge_allowed
from moraine.operations.purge.tombstones import Tombstone, may_have_deleted
from moraine.settings import GatewayPurgeSettings
from moraine.tasks.feed import TaskFeed
from moraine.tasks.model import Status, Task
from moraine.tasks.service import Submission, TaskService

log = get_logger(__name__)

InThread = Callable[..., Awaitable[Any]]
DROPPED = Response(204)


class PurgeFailed(MoraineError):
    """The purge of the table failed; its metadata is still there."""

    code = "PURGE_FAILED"

    def __init__(self, task: Task) -> None:
        super().__init__(
            f"The purge of {task.subject} failed: {task.result_summary or task.error_code} "
            f"Its entry in the catalog is still there. The task is {task.task_id}."
        )
        self.status = http_status_of(task.error_code)


@dataclass(frozen=True, slots=True)
class PurgeDesk:
    """Takes orders for drops."""

    settings: GatewayPurgeSettings
    service: TaskService
    feed: TaskFeed
    hidden: HiddenTables
    in_thread: InThread

    async def drop(self, catalog: str, target: Target, table: LoadedTable) -> Response:
        """Hide the table, and have it purged and dropped."""
        check_purge_allowed(table)
        task_id = UUID(int=uuid6.uuid7().int)
        store = self.hidden.store
        tombstone = await self.in_thread(
            store.add, catalog, target.namespace, target.name, table.uuid, task_id
        )
        if tombstone is None:
            return await self.join(catalog, target)
        await self.hidden.refresh()
        await async_failpoint("gateway.drop.hidden")
        try:
            task = await self._admit(tombstone, table)
        except AlreadyInProgress:
            await self.in_thread(store.remove, task_id)
            await self.hidden.refresh()
            raise
        await async_failpoint("gateway.drop.admitted")
        return await self._see_through(task)

    async def join(self, catalog: str, target: Target) -> Response:
        """Somebody has asked for the same before: what comes of that is the answer to both. A
        purge that failed is tried anew."""
        tombstone: Tombstone | None = await self.in_thread(
            self.hidden.store.find, catalog, target.namespace, target.name
        )
        if tombstone is None:
            await self.hidden.refresh()
            raise TableHidden(f"The table {target} does not exist.")
        found: list[Task] = await self.in_thread(self.service.store.get_many, [tombstone.task_id])
        if not found:  # whoever raised the tombstone was killed before it wrote the task
            task = await self._admit(tombstone, None)
        elif found[0].status is Status.FAILURE:
            task = await self.in_thread(self.service.retry, tombstone.task_id)
        else:
            task = found[0]
        return await self._see_through(task)

    async def _admit(self, tombstone: Tombstone, table: LoadedTable | None) -> Task:
        asked = {
            "table_identity": {
                "catalog_name": tombstone.catalog_name,
                "namespace_levels": tombstone.namespace,
                "table_name": tombstone.table_name,
            },
            "metadata": {"table-uuid": tombstone.table_uuid or None},
            "metadata_location": table.metadata_location if table else None,
            "properties": {"dropTable": "true"},
            "tombstone": True,
        }
        submission = Submission(
            OPERATION, PurgeParameters.model_validate(asked), self.service.settings.realm
        )
        task: Task = await self.in_thread(self.service.admit, submission, task_id=tombstone.task_id)
        return task

    async def _see_through(self, task: Task) -> Response:
        if self.settings.mode == "fire-and-forget":
            await self.in_thread(self.service.launch, task)
            return DROPPED
        limit = self.settings.wait_limit.total_seconds()
        with self.feed.subscribe(task.task_id) as subscription:
            await self.in_thread(self.service.launch, task)
            # It may have ended before anybody listened.
            current: Task = await self.in_thread(self.service.store.get, task.task_id)
            ended = current if current.status.terminal else None
            ended = ended or await subscription.until_terminal(limit)
        if ended is None:
            raise SyncWaitExceeded(
                f"The purge is not done after {limit:.0f} s. It goes on as task {task.task_id} "
                "and drops the table when it is done."
            )
        if ended.status is Status.SUCCESS:
            await self.hidden.refresh()
            return DROPPED
        await self._show_again_if_whole(ended)
        raise PurgeFailed(ended)

    async def _show_again_if_whole(self, task: Task) -> None:
        """The caller is told that the drop failed; if nothing was deleted, nothing has changed."""
        if await self.in_thread(may_have_deleted, self.service.store, task):
            return
        try:
            await self.in_thread(self.hidden.store.lift, task.task_id, self.service.store)
        except MoraineError as error:  # somebody started it anew
            log.warning("gateway.drop.still_hidden", task_id=str(task.task_id), reason=str(error))
        await self.hidden.refresh()


class DelegatedDrop(CatalogMutation):
    """A drop whose files Moraine deletes. The caller must be one who may change the table."""

    desk: PurgeDesk

    async def execute(self, intent: dict[str, Any]) -> Response:
        """What goes wrong is an answer as well: some of it is final, and kept."""
        target = Intent.from_json(intent).targets[0]
        try:
            if await self._is_hidden(target):
                return await self.desk.join(self._upstream.name, target)
            table = await self._authorized_load(target)
            return await self.desk.drop(self._upstream.name, target, table)
        except PassedOn as refusal:
            return refusal.response
        except MoraineError as error:
            return error_response(error)

    async def reconcile(self, intent: dict[str, Any]) -> Finding:
        """While there is a tombstone the work goes on, whatever the catalog says of the table."""
        target = Intent.from_json(intent).targets[0]
        if await self._is_hidden(target):
            return NotApplied()
        return await super().reconcile(intent)

    async def _is_hidden(self, target: Target) -> bool:
        found = await self.desk.in_thread(
            self.desk.hidden.store.find, self._upstream.name, target.namespace, target.name
        )
        return found is not None

    async def _authorized_load(self, target: Target) -> LoadedTable:
        """The table, if the catalog lets the caller change it.

        A catalog has no way to ask whether somebody may drop a table. Who may commit to it can
        empty it, so a commit that changes nothing is asked for, with the caller's credentials.
        """
        nothing = {
            "identifier": {"namespace": list(target.namespace), "name": target.name},
            "requirements": [],
            "updates": [],
        }
        answer = await self._upstream.fetch(_posting(self._request), json.dumps(nothing).encode())
        if answer.status >= 300:
            raise PassedOn(answer)
        # Loaded afterwards: some catalogs write a new metadata file for it all the same.
        loaded = await self._reader.load(target)
        if loaded is None:
            raise TableHidden(f"The table {target} does not exist.")
        return LoadedTable.from_json(loaded)


def _posting(request: Request) -> Request:
    """A commit by the same caller, to the table that the request names."""
    same = request.without_headers({"content-type", "content-length"})
    headers = [*same.headers, ("content-type", "application/json")]
    return Request("POST", request.path, "", headers)
