"""The steps of a purge, each resumable: what an earlier attempt finished is not done again."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from moraine.catalog.client import LoadedTable, MetadataMissing
from moraine.drops.tombstones import TombstoneMissing, TombstoneStore
from moraine.errors import (
    MoraineError,
    StorageRefused,
    StorageUnavailable,
    TableNotFound,
    WorkerLost,
)
from moraine.failpoints import failpoint
from moraine.log import get_logger
from moraine.operations.purge import metadata, report
from moraine.operations.purge.errors import FilesRemain, InventoryChanged
from moraine.operations.purge.inventory import read_digests, render_digests
from moraine.operations.purge.job import (
    Executors,
    Inventory,
    Outcomes,
    TableFiles,
    list_outside_files,
    write_inventory,
)
from moraine.operations.purge.model import (
    ROOT,
    VERIFY,
    Checkpoint,
    EarlierPurge,
    Findings,
    InventorySummary,
    ListedFiles,
    PhaseState,
    PinnedTable,
    RootState,
    Verification,
    parameters_of,
)
from moraine.operations.purge.target import PurgeTarget, names_file
from moraine.settings import Settings
from moraine.spark.session import SessionFactory
from moraine.storage.files import read_file
from moraine.storage.stores import DELETED, MISSING, Failure, Storage
from moraine.tasks.job import session_for
from moraine.tasks.model import Claim, Task, task_folder
from moraine.tasks.worker import Work, Worker
from moraine.words import counted

log = get_logger(__name__)


def is_dry_run(task: Task) -> bool:
    return parameters_of(task).properties.dry_run


def is_verified(task: Task) -> bool:
    """Whether the current attempt has found every file gone."""
    verified = Checkpoint.of(task).verified
    return verified is not None and verified.attempt == task.attempt_count


# --- Acquire --------------------------------------------------------------------------------


def acquire(worker: Worker, task_id: UUID) -> Task | None:
    """Lease the task, load the table from the catalog, pin it. None: there is nothing to do."""
    task = worker.claim(task_id)
    if task is None:
        return None
    failpoint("purge.acquire.claimed")
    with worker.working_on(task_id) as work:
        log.info("purge.acquire", task_id=str(task_id), table=task.subject, owner=worker.owner)
        _require_tombstone(worker, task)
        target = PurgeTarget.of(worker, task)
        try:
            table = target.load()
        except TableNotFound as error:
            if not _answer_with_earlier(work, error):
                raise
            return work.start()
        if table is None:
            log.info("purge.resume.without_catalog", task_id=str(task_id))
        elif Checkpoint.of(task).table:
            target.refuse_change(table)
        else:
            _pin(work, target, table)
        failpoint("purge.acquire.pinned")
        return work.start()


def _require_tombstone(worker: Worker, task: Task) -> None:
    """A drop that was called off must not be purged. Once the root is about to go, the drop cannot
    be called off, and the tombstone may be gone as well."""
    if not parameters_of(task).tombstone or Checkpoint.of(task).root:
        return
    if _tombstones(worker).of_task(task.task_id) is None:
        raise TombstoneMissing()


def _answer_with_earlier(work: Work, error: TableNotFound) -> bool:
    """If the answer to a purge was lost, its caller asks again, and the table is gone. The result
    of the first purge is the answer to the second, too; unless the missing file is not the one
    that the first deleted, but that of a table which was created under the same name since."""
    found = None if is_dry_run(work.task) else report.find_same_purge(work.store, work.task)
    if found is None:
        return False
    table = Checkpoint.of(found).pinned
    if isinstance(error, MetadataMissing) and not names_file(error, table.metadata_location):
        return False
    log.info("purge.done_before", task_id=str(work.task.task_id), earlier=str(found.task_id))
    earlier = EarlierPurge(task_id=found.task_id, result=found.result or {})
    _save(work, Checkpoint(earlier=earlier, table=table))
    return True


def _pin(work: Work, target: PurgeTarget, table: LoadedTable) -> None:
    """Make sure that this table may be purged, and record which one it was."""
    metadata.check_purge_allowed(table)
    checks = metadata.check_identity(parameters_of(work.task), table)
    roots = target.own_folders(table)
    target.survey_neighbours(work)
    pinned = PinnedTable(
        uuid=table.uuid,
        metadata_location=table.metadata_location,
        location=table.location,
        roots=roots.listed,
    )
    _save(work, Checkpoint(table=pinned, findings=Findings(checks=checks)))


# --- Plan -----------------------------------------------------------------------------------


def plan(worker: Worker, task_id: UUID, spark: SessionFactory) -> None:
    """Write the inventory of every reachable file, and check that no other table needs one."""
    settings = worker.settings
    with worker.working_on(task_id) as work:
        checkpoint = Checkpoint.of(work.task)
        if checkpoint.earlier:
            return
        known = checkpoint.inventory
        if known and known.digest and read_file(f"{known.location}/_SUCCESS") is not None:
            log.info("purge.plan.resumed", inventory=known.location, files=known.files)
            return
        started = time.monotonic()
        target = PurgeTarget.of(worker, work.task)
        table = target.load_pinned()
        roots = target.own_folders(table)
        storage = target.storage_for(table, roots)
        work.report(step="plan", files_done=0, files_total=None)
        named = target.named_files(table, roots, storage())
        # Before any of them is read: a writer of the table chose where they are.
        refuse = functools.partial(_refuse_outside, settings)
        refuse([file.path for file in named if not roots.contains(file.path)])
        with session_for(spark, work) as session:
            failpoint("purge.plan.before")
            location = _inventory_location(settings, work.task)
            files = TableFiles(target.access, roots, storage)
            found = write_inventory(session, files, named, location, refuse)
            failpoint("purge.plan.written")
            limit = settings.purge.max_files_named
            outside = list_outside_files(session, location, limit) if found.outside else []
        findings = _findings(settings, found, outside)
        checks = {"neighbours": target.refuse_shared_files(roots, location, found.digests)}
        findings["checks"] = checkpoint.findings.checks | checks
        digest = hashlib.sha256(render_digests(found.digests)).hexdigest()
        summary = InventorySummary.of(location, found.kinds, time.monotonic() - started, digest)
        # Slices in the ledger belong to an earlier inventory, which is lost.
        worker.store.forget_slices(work.attempt.claim)
        updated = checkpoint.findings.model_copy(update=findings)
        _save(work, Checkpoint(inventory=summary, phases={}, findings=updated))
        failpoint("purge.plan.recorded")
        log.info("purge.plan.done", files=summary.files, inventory=location)


def _refuse_outside(settings: Settings, paths: list[str]) -> None:
    if settings.purge.outside_files == "fail":
        metadata.refuse_outside_files(paths, settings.purge.max_files_named)


def _findings(settings: Settings, found: Inventory, outside: list[str]) -> dict[str, Any]:
    """Raises if there are files outside the table's folders and the settings do not allow that."""
    limit = settings.purge.max_files_named
    findings: dict[str, Any] = {}
    if found.outside:
        if settings.purge.outside_files == "fail":
            metadata.refuse_outside_files(outside, limit, total=found.outside)
        reason = "outside the table's locations"
        findings["skipped"] = ListedFiles(files=found.outside, paths=outside, reason=reason)
    if gone := found.unreadable:
        findings["missing_metadata"] = ListedFiles(files=len(gone), paths=gone[:limit])
    return findings


def _inventory_location(settings: Settings, task: Task) -> str:
    """A folder for this attempt only: a lost attempt may still be writing to another."""
    return f"{task_folder(settings.workspace, task.task_id)}/inventory-{task.version}"


# --- Delete ---------------------------------------------------------------------------------


def delete(worker: Worker, task_id: UUID, spark: SessionFactory) -> None:
    """Delete phase by phase, leaves first; a phase that is done stays done. The root is kept.

    Before each phase the table is loaded again: if it was written to meanwhile, no more of its
    files are deleted.
    """
    with worker.working_on(task_id) as work:
        task = work.task
        checkpoint = Checkpoint.of(task)
        if checkpoint.earlier or is_dry_run(task):
            return
        inventory, phases = checkpoint.planned, dict(checkpoint.phases)
        left = checkpoint.unfinished_phases
        if not left:
            return
        target = PurgeTarget.of(worker, task)
        roots = target.own_folders(target.load_pinned())
        target.survey_new_neighbours()
        digests = _planned_digests(inventory)
        target.refuse_shared_files(roots, inventory.location, digests)
        work.account = functools.partial(report.outcome, worker.store, task)
        work.attempt.report_from(report.Progress(worker.store, task, "delete").measure)
        begun = time.monotonic()
        with Executors.open(spark, work, inventory, _small(worker)) as executors:
            for phase in left:
                failpoint(f"purge.delete.{phase}.before")
                started = time.monotonic()
                assignment = target.assignment(target.load_pinned(), work, roots, digests)
                finished = worker.store.finished_slices(task_id, [phase])
                # The mark is durable before the first delete: without it, no file is gone.
                marked = phases | {phase: PhaseState(done=False)}
                _save(work, Checkpoint(deleting=True, phases=marked))
                failpoint(f"purge.delete.{phase}.marked")
                outcomes = executors.delete_phase(phase, finished, assignment)
                _refuse_changed(outcomes)
                _end_if_stopped(work, outcomes)
                _refuse_failures(outcomes)
                seconds = round(time.monotonic() - started, 3)
                phases[phase] = PhaseState(done=True, seconds=seconds)
                _save(work, Checkpoint(phases=phases))
                failpoint(f"purge.delete.{phase}.after")
                log.info("purge.delete.phase", phase=phase, seconds=seconds)
        _save_seconds(work, "delete", begun)


# --- Verify ---------------------------------------------------------------------------------


def verify(worker: Worker, task_id: UUID, spark: SessionFactory) -> None:
    """Look for every file of the inventory, then delete the root. If a file is still there, the
    attempt fails."""
    with worker.working_on(task_id) as work:
        task = work.task
        checkpoint = Checkpoint.of(task)
        if checkpoint.earlier or is_dry_run(task):
            return
        target = PurgeTarget.of(worker, task)
        table = target.load()
        work.account = functools.partial(report.outcome, worker.store, task)
        if table is not None:
            _verify_files(worker, work, target, table, spark)
        elif not checkpoint.root_is_done:
            # The file is gone, and this purge was about to delete it.
            _save(work, Checkpoint(root=RootState(deleted=True, done=True)))
        _save(work, Checkpoint(verified=Verification(attempt=task.attempt_count)))
        failpoint("purge.verify.after")
        log.info("purge.verify.done", files=checkpoint.planned.files, remaining=0)


def _verify_files(
    worker: Worker, work: Work, target: PurgeTarget, table: LoadedTable, spark: SessionFactory
) -> None:
    inventory = Checkpoint.of(work.task).planned
    target.refuse_change(table)
    started = time.monotonic()
    digests = _planned_digests(inventory)
    assignment = target.assignment(table, work, target.own_folders(table), digests)
    progress = report.Progress(worker.store, work.task, VERIFY)
    work.attempt.report_from(progress.measure)
    with Executors.open(spark, work, inventory, _small(worker)) as executors:
        finished = worker.store.finished_slices(work.task.task_id, [VERIFY])
        outcomes = executors.find_remaining(finished, assignment)
        _refuse_changed(outcomes)
        _end_if_stopped(work, outcomes)
        if outcomes.failed:
            # Whatever restored them, the next attempt deletes them again.
            _save(work, Checkpoint(phases={}))
            worker.store.reopen_slices(work.attempt.claim)
            raise FilesRemain(
                f"{outcomes.failed} of {counted(inventory.files, 'file')} still there, the first "
                f"is {outcomes.remaining[0].path}.",
                details=outcomes.lines,
                report=outcomes.report,
            )
    failpoint("purge.verify.before")
    _save_seconds(work, "verify", started)
    if ROOT in inventory.phases:
        # Looking for many files takes long, and the table can still be written to.
        _delete_root(work, target.load_pinned().metadata_location, assignment.storage())
        progress.root_done = True


def _delete_root(work: Work, location: str, storage: Storage) -> None:
    """The very last file. Once it is gone the catalog cannot load the table any more."""
    failpoint("purge.root.before")
    _save(work, Checkpoint(deleting=True, root=RootState(deleted=False)))
    [outcome] = storage.delete([location])
    if isinstance(outcome, Failure):
        error = StorageRefused if outcome.refused else StorageUnavailable
        raise error(f"The metadata file {location} could not be deleted: {outcome.reason}")
    failpoint("purge.root.deleted")
    if storage.remaining([location]):
        raise FilesRemain(f"The metadata file {location} is still there.", details=location)
    done = RootState(deleted=outcome is DELETED, missing=outcome is MISSING, done=True)
    _save(work, Checkpoint(root=done))


# --- Settle ---------------------------------------------------------------------------------


def settle(worker: Worker, task_id: UUID) -> tuple[Task, bool]:
    """Record the end of the attempt, unless the step that failed has done so.

    Also returns whether this worker made the attempt at all.
    """
    task = worker.store.get(task_id)
    claim = worker.held_claim(task)
    if claim is None:
        return task, task.lease_owner == worker.owner
    failpoint("purge.settle.before")
    checkpoint = Checkpoint.of(task)
    inventory = checkpoint.inventory
    if checkpoint.earlier:
        return _settle_with_earlier(worker, claim, task, checkpoint.earlier), True
    if inventory and is_dry_run(task):
        summary = f"Dry run: {counted(inventory.files, 'file')} would be deleted."
        return worker.succeed(claim, summary, report.dry_run_outcome(checkpoint)), True
    result = report.outcome(worker.store, task)
    if inventory and is_verified(task):
        return _succeed(worker, claim, task, report.describe_outcome(result), result), True
    lost = WorkerLost("A step of this attempt ended without a report; its process was lost.")
    return worker.fail(claim, task, lost, result or None), True


def _settle_with_earlier(worker: Worker, claim: Claim, task: Task, earlier: EarlierPurge) -> Task:
    result = {**earlier.result, "purged_by": str(earlier.task_id)}
    words = f"{report.describe_outcome(result)} That was done by task {earlier.task_id}."
    return _succeed(worker, claim, task, words, result)


def _succeed(worker: Worker, claim: Claim, task: Task, words: str, result: dict[str, Any]) -> Task:
    """The files are gone; a purge that is a drop ends when the catalog has dropped the table."""
    if parameters_of(task).properties.drop_table:
        try:
            _drop_from_catalog(worker, task)
        except MoraineError as error:
            return worker.fail(claim, task, error, result)
        result |= {"table_dropped": True}
        words += " The catalog has dropped the table."
    return worker.succeed(claim, words, result)


def _drop_from_catalog(worker: Worker, task: Task) -> None:
    """Drop the table's entry. This is idempotent: a crash may come before or after each line."""
    failpoint("purge.drop.before")
    if PurgeTarget.of(worker, task).drop_entry():
        log.info("purge.drop.done", task_id=str(task.task_id), table=task.subject)
    failpoint("purge.drop.after")
    _tombstones(worker).remove(task.task_id)


SPARK_STEPS: Mapping[str, Callable[[Worker, UUID, SessionFactory], None]] = {
    "plan": plan,
    "delete": delete,
    "verify": verify,
}


# --- Helpers of several steps ---------------------------------------------------------------


def _save(work: Work, changes: Checkpoint) -> None:
    work.checkpoint(**changes.to_json())


def _save_seconds(work: Work, step: str, started: float) -> None:
    """How long a step took, in the attempt that ended it."""
    known = Checkpoint.of(work.task).seconds
    _save(work, Checkpoint(seconds={**known, step: round(time.monotonic() - started, 3)}))


def _small(worker: Worker) -> int:
    return worker.settings.purge.small_table_files


def _tombstones(worker: Worker) -> TombstoneStore:
    store = worker.store
    return TombstoneStore(store.pool, worker.settings.realm, patience=store.patience)


def _planned_digests(inventory: InventorySummary) -> dict[str, str]:
    if not inventory.digest:
        # The next attempt plans again.
        raise WorkerLost("An earlier version of Moraine planned this purge and did not end it.")
    return read_digests(inventory)


def _refuse_changed(outcomes: Outcomes) -> None:
    if outcomes.changed:
        raise InventoryChanged(outcomes.changed[0])


def _end_if_stopped(work: Work, outcomes: Outcomes) -> None:
    if outcomes.stopped:
        work.attempt.check(ask=True)
        raise WorkerLost("The executors found that this worker does not hold the task.")


def _refuse_failures(outcomes: Outcomes) -> None:
    if outcomes.failed:
        error = StorageRefused if outcomes.refused else StorageUnavailable
        first = outcomes.remaining[0]
        raise error(
            f"{counted(outcomes.failed, 'file')} could not be deleted; the first: {first.path}: "
            f"{first.reason}",
            details=outcomes.lines,
            report=outcomes.report,
        )
