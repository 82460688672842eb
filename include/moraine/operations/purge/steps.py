"""The steps of a purge, each resumable: what an earlier attempt finished is not done again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from moraine.catalog.client import LoadedTable, RestCatalog
from moraine.errors import (
    CatalogNotConfigured,
    CatalogUnavailable,
    FilesRemain,
    StorageRefused,
    TableNotFound,
    WorkerLost,
)
from moraine.failpoints import failpoint
from moraine.log import get_logger
from moraine.operations.purge import job, safety
from moraine.operations.purge.order import PHASE_OF, Phase
from moraine.operations.purge.payload import PurgeParameters
from moraine.operations.purge.plan import Entry, named_by_metadata
from moraine.settings import CatalogSettings, Settings
from moraine.spark import SessionFactory, session_for
from moraine.storage.files import file_size, read_file, task_folder
from moraine.tasks.model import Task
from moraine.tasks.worker import Work, Worker

log = get_logger(__name__)


def parameters_of(task: Task) -> PurgeParameters:
    return PurgeParameters.model_validate(task.task_payload["operation_parameters"])


def is_dry_run(task: Task) -> bool:
    return parameters_of(task).properties.dry_run


def is_verified(task: Task) -> bool:
    """Whether the attempt under way has found every file gone."""
    return bool(task.checkpoint.get("verified", {}).get("attempt") == task.attempt_count)


def acquire(worker: Worker, task_id: UUID) -> Task | None:
    """Lease the task, ask the catalog for the table, pin it. None: there is nothing to do."""
    task = worker.claim(task_id)
    if task is None:
        return None
    failpoint("purge.acquire.claimed")
    with worker.working_on(task_id) as work:
        asked = parameters_of(task)
        log.info("purge.acquire", task_id=str(task_id), table=task.subject, owner=worker.owner)
        table = _load(worker.settings, asked, task)
        if table is None:
            log.info("purge.resume.without_catalog", task_id=str(task_id))
        elif pinned := task.checkpoint.get("table"):
            safety.check_unchanged(pinned, table)
        else:
            safety.check_purge_allowed(table)
            safety.check_identity(asked, table)
            work.checkpoint(
                table={
                    "uuid": table.uuid,
                    "metadata_location": table.metadata_location,
                    "location": table.location,
                    "roots": safety.table_roots(table),
                }
            )
        failpoint("purge.acquire.pinned")
        return work.start()


def plan(worker: Worker, task_id: UUID, spark: SessionFactory) -> None:
    """Write the inventory of every reachable file."""
    settings = worker.settings
    with worker.working_on(task_id) as work:
        known = work.task.checkpoint.get("inventory")
        if known and read_file(f"{known['location']}/_SUCCESS") is not None:
            log.info("purge.plan.resumed", inventory=known["location"], files=known["files"])
            return
        started = time.monotonic()
        asked = parameters_of(work.task)
        table = _load_pinned(settings, asked, work.task)
        work.report(step="plan", files_done=0, files_total=None)
        with session_for(spark, work) as session:
            failpoint("purge.plan.before")
            location = _inventory_location(settings, work.task)
            identity = asked.table_identity
            name = job.spark_table(
                session,
                identity.catalog_name,
                _catalog(settings, asked),
                [*identity.namespace_levels, identity.table_name],
            )
            roots = work.task.checkpoint["table"]["roots"]
            counts, outside = job.write_inventory(session, name, _sized(table), roots, location)
            failpoint("purge.plan.written")
            if outside:
                paths = job.list_outsiders(session, location, roots, _most(settings))
                safety.refuse_outsiders(paths, outside)
        work.checkpoint(inventory=_summarize(location, counts, time.monotonic() - started))
        failpoint("purge.plan.recorded")
        log.info("purge.plan.done", files=sum(count.files for count in counts), inventory=location)


def delete(worker: Worker, task_id: UUID, spark: SessionFactory) -> None:
    """Delete phase by phase, leaves first; a phase that is done stays done."""
    settings = worker.settings
    with worker.working_on(task_id) as work:
        inventory = work.task.checkpoint["inventory"]
        phases: dict[str, Any] = dict(work.task.checkpoint.get("phases", {}))
        if not phases:
            # The last look before the first delete.
            _load_pinned(settings, parameters_of(work.task), work.task)
        progress = _Progress(work, inventory, phases)
        left = {
            phase: files
            for phase, files in inventory["phases"].items()
            if not phases.get(phase, {}).get("done")
        }
        with session_for(spark, work) as session:
            for stage in job.stages(left):
                failpoint(f"purge.delete.{stage[0]}.before")
                resumed = {phase for phase in stage if phase in phases}
                for phase in stage:
                    phases[phase] = {"deleted": 0, "missing": 0, "bytes": 0, "done": False}
                work.checkpoint(phases=phases)
                failed: list[str] = []
                files = sum(left[phase] for phase in stage)
                for outcome in job.delete_stage(session, inventory["location"], stage, files):
                    work.attempt.check()
                    _add(phases[outcome.phase], outcome, resumed=outcome.phase in resumed)
                    failed += outcome.failed[: _most(settings) - len(failed)]
                    progress.show(outcome.phase)
                    failpoint(f"purge.delete.{outcome.phase}.batch")
                if failed:
                    raise StorageRefused(
                        f"Files could not be deleted; the first: {failed[0]}",
                        details="\n".join(failed),
                    )
                for phase in stage:
                    phases[phase]["done"] = True
                work.checkpoint(phases=phases)
                failpoint(f"purge.delete.{stage[-1]}.after")
                log.info("purge.delete.stage", phases=stage, files=files)


def verify(worker: Worker, task_id: UUID, spark: SessionFactory) -> None:
    """Look for every file of the inventory. One that is still there is never a success."""
    settings = worker.settings
    with worker.working_on(task_id) as work:
        inventory = work.task.checkpoint["inventory"]
        with session_for(spark, work) as session:
            remaining, paths = job.find_remaining(
                session,
                inventory["location"],
                inventory["files"],
                _most(settings),
            )
        if remaining:
            # Whatever brought them back, the next attempt deletes them again.
            work.checkpoint(phases={})
            raise FilesRemain(
                f"{remaining} of {inventory['files']} files are still there, the first is "
                f"{paths[0]}.",
                details="\n".join(paths),
            )
        failpoint("purge.verify.before")
        work.checkpoint(verified={"attempt": work.task.attempt_count})
        failpoint("purge.verify.after")
        log.info("purge.verify.done", files=inventory["files"], remaining=0)


def settle(worker: Worker, task_id: UUID) -> tuple[Task, bool]:
    """Write down what came of the attempt, unless the step that failed has done so.

    Also tells whether the attempt was this worker's at all.
    """
    task = worker.store.get(task_id)
    claim = worker.held_claim(task)
    if claim is None:
        return task, task.lease_owner == worker.owner
    failpoint("purge.settle.before")
    inventory = task.checkpoint.get("inventory")
    if inventory and is_dry_run(task):
        summary = f"Dry run: {inventory['files']} files would be deleted."
        return worker.succeed(claim, summary, _result(inventory, {}, dry_run=True)), True
    if inventory and is_verified(task):
        result = _result(inventory, task.checkpoint["phases"], dry_run=False)
        summary = f"{result['files_deleted']} files deleted, none is left."
        return worker.succeed(claim, summary, result), True
    lost = WorkerLost("A step of this attempt ended without a word; its process was lost.")
    return worker.fail(claim, task, lost), True


SPARK_STEPS: Mapping[str, Callable[[Worker, UUID, SessionFactory], None]] = {
    "plan": plan,
    "delete": delete,
    "verify": verify,
}


# --- Helpers --------------------------------------------------------------------------------


class _Progress:
    """Files and bytes done over all phases, as the ledger shows them."""

    def __init__(self, work: Work, inventory: dict[str, Any], phases: dict[str, Any]) -> None:
        self._work, self._inventory, self._phases = work, inventory, phases

    def show(self, phase: Phase) -> None:
        done = self._phases.values()
        self._work.report(
            step="delete",
            phase=str(phase),
            files_done=sum(entry["deleted"] + entry["missing"] for entry in done),
            files_total=self._inventory["files"],
            bytes_done=sum(entry["bytes"] for entry in done),
            bytes_total=self._inventory["bytes"],
        )


def _add(done: dict[str, Any], outcome: job.BatchOutcome, *, resumed: bool) -> None:
    """Files that an interrupted attempt deleted are missing now; they count as deleted."""
    done["deleted"] += outcome.deleted + (outcome.missing if resumed else 0)
    done["missing"] += 0 if resumed else outcome.missing
    done["bytes"] += outcome.bytes + (outcome.missing_bytes if resumed else 0)


def _catalog(settings: Settings, asked: PurgeParameters) -> CatalogSettings:
    name = asked.table_identity.catalog_name
    if name not in settings.catalogs:
        raise CatalogNotConfigured(
            f"No catalog {name!r} is configured here; known are "
            f"{', '.join(sorted(settings.catalogs)) or 'none'}. Add [catalogs.{name}] with its uri."
        )
    return settings.catalogs[name]


def _load(settings: Settings, asked: PurgeParameters, task: Task) -> LoadedTable | None:
    """The table as the catalog has it; None when an earlier attempt deleted its root already."""
    identity = asked.table_identity
    try:
        return RestCatalog(_catalog(settings, asked)).load_table(
            identity.namespace_levels, identity.table_name
        )
    except (TableNotFound, CatalogUnavailable):
        # Without its metadata file a table cannot be loaded. The purge deletes that file last,
        # so if it had begun to delete and the file is gone, only the rest of the work is left.
        pinned = task.checkpoint.get("table")
        begun = task.checkpoint.get("phases", {}).get(Phase.CURRENT_METADATA)
        if pinned and begun and read_file(pinned["metadata_location"]) is None:
            return None
        raise


def _load_pinned(settings: Settings, asked: PurgeParameters, task: Task) -> LoadedTable:
    table = _load(settings, asked, task)
    if table is None:
        raise TableNotFound("The table's metadata file is gone.")
    safety.check_unchanged(task.checkpoint["table"], table)
    return table


def _sized(table: LoadedTable) -> list[Entry]:
    return [
        Entry(entry.path, entry.kind, entry.size or file_size(entry.path))
        for entry in named_by_metadata(table, read_file)
    ]


def _inventory_location(settings: Settings, task: Task) -> str:
    """A place of the attempt's own: a lost attempt may still be writing to the one before."""
    return f"{task_folder(settings.workspace, task.task_id)}/inventory-{task.version}"


def _summarize(location: str, counts: list[job.KindCount], seconds: float) -> dict[str, Any]:
    phases: dict[str, int] = {}
    for count in counts:
        phase = str(PHASE_OF[count.kind])
        phases[phase] = phases.get(phase, 0) + count.files
    return {
        "location": location,
        "files": sum(count.files for count in counts),
        "bytes": sum(count.bytes for count in counts),
        "kinds": {str(c.kind): {"files": c.files, "bytes": c.bytes} for c in counts},
        "phases": phases,
        "seconds": round(seconds, 3),
    }


def _result(inventory: dict[str, Any], phases: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "files_deleted": sum(phase["deleted"] for phase in phases.values()),
        "bytes_deleted": sum(phase["bytes"] for phase in phases.values()),
        "files_already_missing": sum(phase["missing"] for phase in phases.values()),
        "files_found": inventory["files"],
        "bytes_found": inventory["bytes"],
        "by_kind": inventory["kinds"],
        "inventory": inventory["location"],
    }


def _most(settings: Settings) -> int:
    return settings.purge.max_files_named
