"""`DELETE …?purgeRequested=true`: a delegated purge, and then a drop of the metadata."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import uuid6

from moraine.access.guard import Authorizer
from moraine.access.model import Action, Principal, QualifiedName
from moraine.catalog.client import LoadedTable
from moraine.drops.hiding import HiddenTables
from moraine.drops.tombstones import Tombstone, may_have_deleted
from moraine.errors import (
    AlreadyInProgress,
    Cancelled,
    MoraineError,
    SyncWaitExceeded,
    http_status_of,
)
from moraine.failpoints import async_failpoint
from moraine.gateway.errors import (
    TableHidden,
    UpstreamUnreachable,
    error_response,
    without_stack,
)
from moraine.gateway.intake import Content
from moraine.gateway.model import Intent
from moraine.gateway.mutations import CatalogMutation
from moraine.gateway.upstream import AWAY, REFUSALS, CatalogRequest, PassedOn, Upstream
from moraine.iceberg.model import Identifier, ObjectKind
from moraine.iceberg.paths import Route
from moraine.idempotency.model import Response, Scope
from moraine.idempotency.service import Finding, NotApplied
from moraine.log import get_logger
from moraine.operations.purge import OPERATION
from moraine.operations.purge.metadata import check_purge_allowed
from moraine.operations.purge.model import Checkpoint, PurgeParameters
from moraine.operations.purge.report import find_earlier_success
from moraine.settings import GatewayPurgeSettings
from moraine.tasks.feed import TaskRuns
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


class PurgeCancelled(MoraineError):
    """The purge of the table was cancelled; only an operator starts it again."""

    code = "PURGE_CANCELLED"
    http_status = 409

    def __init__(self, task: Task) -> None:
        super().__init__(
            f"The purge of {task.subject} was cancelled. To finish it: moraine tasks retry "
            f"{task.task_id}. To bring the table back, if nothing was deleted: moraine tables "
            "undrop CATALOG NAMESPACE.TABLE."
        )


@dataclass(frozen=True, slots=True)
class PurgeDesk:
    """Hides tables, and has them purged and dropped."""

    settings: GatewayPurgeSettings
    service: TaskService
    runs: TaskRuns
    hidden: HiddenTables
    authorizer: Authorizer
    in_thread: InThread

    async def find(self, catalog: str, target: Identifier) -> Tombstone | None:
        found: Tombstone | None = await self.in_thread(
            self.hidden.store.find, catalog, target.namespace, target.name
        )
        return found

    async def authorize(self, principal: Principal, catalog: str, target: Identifier) -> None:
        """The catalog knows the caller. The policy must allow the purge as well."""
        table = _table(catalog, target)
        await self.authorizer.authorize(principal, Action.EXECUTE_TASKS, table, "drop")

    async def drop(
        self, principal: Principal, catalog: str, target: Identifier, table: LoadedTable
    ) -> Response:
        """Hide the table, and have it purged and dropped."""
        check_purge_allowed(table)
        task_id = UUID(int=uuid6.uuid7().int)
        store = self.hidden.store
        tombstone = await self.in_thread(
            store.add,
            catalog,
            target.namespace,
            target.name,
            table.uuid,
            task_id,
            principal.name,
        )
        if tombstone is None:
            return await self.join(principal, catalog, target)
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

    async def join(self, principal: Principal, catalog: str, target: Identifier) -> Response:
        """A drop of the table was requested before: its outcome answers both requests. A failed
        purge is restarted, because this caller may change the table."""
        tombstone = await self.find(catalog, target)
        if tombstone is None:
            await self.hidden.refresh()
            raise TableHidden(f"The table {target} does not exist.")
        task = await self._task_of(tombstone)
        if task is None:  # the process died after the tombstone and before the task
            task = await self._admit(tombstone, None)
        elif task.status is Status.FAILURE:
            task = await self._restart(task, principal)
        return await self._see_through(task)

    async def await_outcome(
        self, principal: Principal, catalog: str, target: Identifier
    ) -> Response | None:
        """The same for a caller known only to see the table's namespace: None if the caller would
        also need the right to change the table."""
        tombstone = await self.find(catalog, target)
        task = await self._task_of(tombstone) if tombstone else None
        if task is None:
            return None
        if task.status is Status.FAILURE:
            if not _has_no_files_left(task):
                return None
            task = await self._restart(task, principal)
        return await self._see_through(task)

    async def purged_before(self, catalog: str, target: Identifier) -> Task | None:
        """The task of this ledger that purged a table of this name, if there is one."""
        subject = str(_table(catalog, target))
        store, realm = self.service.store, self.service.settings.realm
        found: Task | None = await self.in_thread(find_earlier_success, store, realm, subject)
        return found

    async def await_other(self, running: AlreadyInProgress) -> None:
        """Wait for a purge that was requested over the API; it does not drop the table."""
        if running.task_id is None or self.settings.mode == "fire-and-forget":
            raise running
        task: Task = await self.in_thread(self.service.store.get, running.task_id)
        await self._see_through(task)

    async def _task_of(self, tombstone: Tombstone) -> Task | None:
        found: list[Task] = await self.in_thread(self.service.store.get_many, [tombstone.task_id])
        return found[0] if found else None

    async def _restart(self, task: Task, principal: Principal) -> Task:
        if task.error_code == Cancelled.code:
            raise PurgeCancelled(task)
        restarted: Task = await self.in_thread(self.service.retry, task.task_id, principal.name)
        return restarted

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
            OPERATION,
            PurgeParameters.model_validate(asked),
            self.service.settings.realm,
            tombstone.principal,
        )
        task: Task = await self.in_thread(self.service.admit, submission, task_id=tombstone.task_id)
        return task

    async def _see_through(self, task: Task) -> Response:
        if self.settings.mode == "fire-and-forget":
            await self.in_thread(self.service.launch, task)
            return DROPPED
        limit = self.settings.wait_limit.total_seconds()
        ended = await self.runs.run_to_end(task, limit)
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
        """The answer is that the drop failed; if no file was deleted, the table must be visible."""
        if may_have_deleted(task):
            return
        try:
            await self.in_thread(self.hidden.store.lift, task.task_id, self.service.store)
        except MoraineError as error:  # the purge was restarted meanwhile
            log.warning("gateway.drop.still_hidden", task_id=str(task.task_id), reason=str(error))
        await self.hidden.refresh()


def _table(catalog: str, target: Identifier) -> QualifiedName:
    return QualifiedName(catalog, target.namespace, target.name)


def _is_about(answer: Response, purge: Task) -> bool:
    """Whether the catalog fails to read the metadata file that this purge deleted: a newer table of
    the same name has another one."""
    root = Checkpoint.of(purge).pinned.metadata_location.rpartition("/")[2]
    return root.encode() in answer.body


def _says_no_such_table(answer: Response) -> bool:
    return answer.status == 404 and b"NoSuch" in answer.body


def _has_no_files_left(task: Task) -> bool:
    """Whether only the table's entry in the catalog is left to drop."""
    return Checkpoint.of(task).root_is_done


class DelegatedDrop(CatalogMutation):
    """A drop whose files Moraine deletes, for a caller who may change the table.

    A catalog has no way to ask whether a caller may drop a table. A caller who may commit to the
    table can empty it, so the gateway first sends a commit that changes nothing, with the caller's
    credentials. Only then does it read the ledger.
    """

    _trial: Response
    _tried_as_hidden: bool

    def __init__(
        self,
        desk: PurgeDesk,
        scope: Scope,
        route: Route,
        upstream: Upstream,
        request: CatalogRequest,
        content: Content,
        principal: Principal,
    ) -> None:
        super().__init__(scope, route, upstream, request, content)
        self._desk = desk
        self._principal = principal

    async def authorize(self) -> None:
        """Raise PassedOn for a caller whom the catalog refuses."""
        await self._try(self._desk.hidden.hides(self._upstream.name, self._route.target))

    async def _try(self, hidden: bool) -> None:
        commit = (_impossible if hidden else _empty)(self._route.target)
        request = _posting(self._request)
        self._tried_as_hidden = hidden
        self._trial = await self._upstream.fetch_whole(request, json.dumps(commit).encode())
        if self._trial.status in REFUSALS | AWAY:
            raise PassedOn(self._trial)

    async def execute(self, intent: dict[str, Any]) -> Response:
        """Errors become answers too: some are final, and kept with the key."""
        catalog, target = self._upstream.name, Intent.from_json(intent).targets[0]
        try:
            hidden = await self._desk.find(catalog, target) is not None
            if hidden is not self._tried_as_hidden:  # it has changed since
                await self._try(hidden)
            await self._desk.authorize(self._principal, catalog, target)
            if not self._may_change:
                return await self._await_outcome(catalog, target)
            if hidden:
                return await self._desk.join(self._principal, catalog, target)
            try:
                table = await self._load(target)
                return await self._desk.drop(self._principal, catalog, target, table)
            except AlreadyInProgress as running:
                await self._desk.await_other(running)
                return await self._drop_entry()
        except PassedOn as refusal:
            return refusal.response
        except MoraineError as error:
            return error_response(error)

    async def reconcile(self, intent: dict[str, Any]) -> Finding:
        """While there is a tombstone the purge goes on, whatever the catalog says."""
        target = Intent.from_json(intent).targets[0]
        if await self._desk.find(self._upstream.name, target) is not None:
            return NotApplied()
        return await super().reconcile(intent)

    @property
    def _may_change(self) -> bool:
        """Whether the commit reached the table: the impossible commit ends in a conflict there."""
        conflict = self._tried_as_hidden and self._trial.status == 409
        return self._trial.status < 300 or conflict

    async def _await_outcome(self, catalog: str, target: Identifier) -> Response:
        """The catalog cannot load the table any more, or says so to an unknown caller."""
        try:
            namespace = await self._reader.load(Identifier(ObjectKind.NAMESPACE, target.namespace))
        except (PassedOn, UpstreamUnreachable):
            namespace = None
        if namespace is None:
            return self._trial
        if outcome := await self._desk.await_outcome(self._principal, catalog, target):
            return outcome
        earlier = await self._desk.purged_before(catalog, target)
        if earlier is not None and _is_about(self._trial, earlier):
            return await self._drop_entry()
        if earlier is not None and (earlier.result or {}).get("table_dropped"):
            return DROPPED if _says_no_such_table(self._trial) else without_stack(self._trial)
        return without_stack(self._trial)

    async def _drop_entry(self) -> Response:
        """The files are gone; the catalog drops the table's entry, if the caller may do that."""
        request = replace(self._request, query="purgeRequested=false")
        answer = await self._upstream.fetch(request)
        return DROPPED if _says_no_such_table(answer) else without_stack(answer)

    async def _load(self, target: Identifier) -> LoadedTable:
        # After the commit: some catalogs write a new metadata file even for an empty one.
        loaded = await self._reader.load(target)
        if loaded is None:
            raise TableHidden(f"The table {target} does not exist.")
        return LoadedTable.from_json(loaded)


def _empty(target: Identifier) -> dict[str, Any]:
    return {
        "identifier": {"namespace": list(target.namespace), "name": target.name},
        "requirements": [],
        "updates": [],
    }


def _impossible(target: Identifier) -> dict[str, Any]:
    """For a table that is being purged: a new metadata file would make the purge fail."""
    no_table = {"type": "assert-table-uuid", "uuid": str(UUID(int=0))}
    return {**_empty(target), "requirements": [no_table]}


def _posting(request: CatalogRequest) -> CatalogRequest:
    """A commit by the same caller, to the table that the request names."""
    same = request.without_headers({"content-type", "content-length"})
    headers = [*same.headers, ("content-type", "application/json")]
    return CatalogRequest("POST", request.path, "", headers)
