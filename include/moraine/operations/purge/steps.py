"""The steps of a purge, each resumable: what an earlier attempt finished is not done again."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from moraine.catalog.access import credentials_of
from moraine.catalog.client import LoadedTable, RestCatalog, table_locations
from moraine.catalog.siblings import SiblingCheck, find_overlap
from moraine.errors import (
    FilesRemain,
    MoraineError,
    StorageRefused,
    StorageUnavailable,
    WorkerLost,
)
from moraine.failpoints import failpoint
from moraine.log import get_logger
from moraine.operations.purge import deletion, dropping, report, safety
from moraine.operations.purge.executor import Left, Order, SliceWork
from moraine.operations.purge.inventory import Reach, list_outsiders, write_inventory
from moraine.operations.purge.order import ROOT, FileKind
from moraine.operations.purge.plan import Entry, named_by_metadata, version_hint_of
from moraine.operations.purge.table import TableAtHand, parameters_of
from moraine.settings import Settings
from moraine.spark import SessionFactory, session_for
from moraine.storage.files import read_file, task_folder
from moraine.storage.locations import Roots
from moraine.storage.stores import DELETED, MISSING, Failure, Storage
from moraine.tasks.model import Task
from moraine.tasks.worker import Work, Worker

log = get_logger(__name__)

# How long executors may take to see that they are cancelled before their job is interrupted.
_GRACE = 5.0


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
        log.info("purge.acquire", task_id=str(task_id), table=task.subject, owner=worker.owner)
        dropping.require_tombstone(worker, task)
        at_hand = TableAtHand.of(worker, task)
        table = at_hand.load()
        if table is None:
            log.info("purge.resume.without_catalog", task_id=str(task_id))
        elif pinned := task.checkpoint.get("table"):
            safety.check_unchanged(pinned, table)
        else:
            _pin(work, at_hand, table)
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
        at_hand = TableAtHand.of(worker, work.task)
        table = at_hand.load_pinned()
        storage = at_hand.storage_for(table)
        roots = Roots.of(work.task.checkpoint["table"]["roots"])
        work.report(step="plan", files_done=0, files_total=None)
        with session_for(spark, work) as session:
            failpoint("purge.plan.before")
            location = _inventory_location(settings, work.task)
            found = write_inventory(
                session,
                Reach(at_hand.access, roots, storage),
                _named(table, roots, storage()),
                location,
            )
            failpoint("purge.plan.written")
            findings: dict[str, Any] = {}
            most = settings.purge.max_files_named
            if found.outside:
                paths = list_outsiders(session, location, most)
                if settings.purge.outside_files == "fail":
                    safety.refuse_outsiders(paths, found.outside)
                findings |= safety.name_paths("skipped", paths, found.outside)
                findings["skipped"]["reason"] = "outside the table's locations"
        if found.unreadable:
            findings |= safety.name_paths(
                "missing_metadata", found.unreadable[:most], len(found.unreadable)
            )
        summary = report.summarize(location, found, time.monotonic() - started)
        # What is left of slices belongs to an inventory that is lost.
        worker.store.forget_slices(work.attempt.claim)
        work.checkpoint(
            inventory=summary,
            phases={},
            findings={**work.task.checkpoint.get("findings", {}), **findings},
        )
        failpoint("purge.plan.recorded")
        log.info("purge.plan.done", files=summary["files"], inventory=location)


def delete(worker: Worker, task_id: UUID, spark: SessionFactory) -> None:
    """Delete phase by phase, leaves first; a phase that is done stays done. The root is kept."""
    with worker.working_on(task_id) as work:
        task = work.task
        inventory = task.checkpoint["inventory"]
        phases: dict[str, Any] = dict(task.checkpoint.get("phases", {}))
        left = {
            phase: files
            for phase, files in inventory["phases"].items()
            if phase != ROOT and not phases.get(phase, {}).get("done")
        }
        if not left:
            return
        at_hand = TableAtHand.of(worker, task)
        # The last look before the first delete.
        order = at_hand.order(at_hand.load_pinned(), work)
        work.account = functools.partial(report.outcome, worker.store, task)
        work.attempt.report_from(report.Progress(worker.store, task, "delete").measure)
        begun = time.monotonic()
        with _executors(spark, work, worker.settings) as run:
            for stage in deletion.stages(left):
                failpoint(f"purge.delete.{stage[0]}.before")
                started = time.monotonic()
                finished = worker.store.finished_slices(task_id, stage)
                work.checkpoint(phases=phases | {phase: {"done": False} for phase in stage})
                outcomes = deletion.delete_stage(run, stage, finished, order)
                _end_if_stopped(work, outcomes)
                _refuse_failures(outcomes)
                seconds = time.monotonic() - started
                for phase in stage:
                    phases[phase] = {"done": True} | (
                        {"seconds": round(seconds, 3)} if len(stage) == 1 else {}
                    )
                work.checkpoint(phases=phases)
                failpoint(f"purge.delete.{stage[-1]}.after")
                log.info("purge.delete.stage", phases=stage, seconds=round(seconds, 3))
        report.add_seconds(work, "delete", begun)


def verify(worker: Worker, task_id: UUID, spark: SessionFactory) -> None:
    """Look for every file of the inventory, then delete the root. One that is still there is
    never a success."""
    with worker.working_on(task_id) as work:
        task = work.task
        inventory = task.checkpoint["inventory"]
        at_hand = TableAtHand.of(worker, task)
        table = at_hand.load()
        work.account = functools.partial(report.outcome, worker.store, task)
        if table is not None:
            safety.check_unchanged(task.checkpoint["table"], table)
            started = time.monotonic()
            order = at_hand.order(table, work)
            progress = report.Progress(worker.store, task, "verify")
            work.attempt.report_from(progress.measure)
            with _executors(spark, work, worker.settings) as run:
                finished = worker.store.finished_slices(task_id, [deletion.VERIFY])
                outcomes = deletion.find_remaining(run, finished, order)
                _end_if_stopped(work, outcomes)
                if outcomes.failed:
                    # Whatever brought them back, the next attempt deletes them again.
                    work.checkpoint(phases={})
                    worker.store.reopen_slices(work.attempt.claim)
                    raise FilesRemain(
                        f"{outcomes.failed} of {inventory['files']} files are still there, the "
                        f"first is {outcomes.left[0].path}.",
                        details=_lines(outcomes.left),
                        report=_failures(outcomes),
                    )
            failpoint("purge.verify.before")
            report.add_seconds(work, "verify", started)
            if str(ROOT) in inventory["phases"]:
                _delete_root(work, table.metadata_location, order.storage())
                progress.root_done = True
        elif not task.checkpoint["root"].get("done"):
            # It is gone, and only this purge was about to delete it.
            work.checkpoint(root={"deleted": True, "done": True})
        work.checkpoint(verified={"attempt": task.attempt_count})
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
        return worker.succeed(claim, summary, report.dry_run_outcome(task)), True
    if inventory and is_verified(task):
        result = report.outcome(worker.store, task)
        words = _in_words(result)
        if parameters_of(task).properties.drop_table:
            try:
                dropping.drop_from_catalog(worker, task)
            except MoraineError as error:
                return worker.fail(claim, task, error, result), True
            result |= {"table_dropped": True}
            words += " The catalog has dropped the table."
        return worker.succeed(claim, words, result), True
    lost = WorkerLost("A step of this attempt ended without a word; its process was lost.")
    return worker.fail(claim, task, lost, report.outcome(worker.store, task) or None), True


SPARK_STEPS: Mapping[str, Callable[[Worker, UUID, SessionFactory], None]] = {
    "plan": plan,
    "delete": delete,
    "verify": verify,
}


# --- Helpers --------------------------------------------------------------------------------


@contextmanager
def _executors(spark: SessionFactory, work: Work, settings: Settings) -> Iterator[deletion.Run]:
    """Spark's, or this very process for a table so small that Spark would only hold it up."""
    inventory = work.task.checkpoint["inventory"]
    if inventory["files"] <= settings.purge.small_table_files:
        yield functools.partial(deletion.run_here, inventory["location"])
        return
    with session_for(spark, work, patience=_GRACE) as session:

        def run(chosen: deletion.Selection, order: Order, act: SliceWork) -> deletion.Outcomes:
            """Also of a large table the last phases are small."""
            files = sum(inventory["phases"].get(str(phase), 0) for phase in chosen.phases)
            if files <= settings.purge.small_table_files:
                return deletion.run_here(inventory["location"], chosen, order, act)
            return deletion.run_on_spark(session, inventory["location"], chosen, order, act)

        yield run


def _pin(work: Work, at_hand: TableAtHand, table: LoadedTable) -> None:
    """Make sure that this table may be purged, and remember which one it was."""
    settings, asked = at_hand.worker.settings.purge, parameters_of(work.task)
    safety.check_purge_allowed(table)
    findings: dict[str, Any] = {"checks": safety.check_identity(asked, table)}
    places = table_locations(table)
    siblings = find_overlap(
        RestCatalog(at_hand.access.catalog),
        at_hand.access.namespace,
        at_hand.access.table,
        Roots.of(places),
        scope=settings.sibling_check,
        limit=settings.sibling_limit,
    )
    safety.refuse_overlap(siblings)
    findings["checks"]["siblings"] = _check_in_words(siblings)
    roots = Roots.of([*places, *credentials_of(table, at_hand.access.catalog).prefixes])
    work.checkpoint(
        table={
            "uuid": table.uuid,
            "metadata_location": table.metadata_location,
            "location": table.location,
            "roots": roots.listed,
        },
        findings=findings,
    )


def _check_in_words(check: SiblingCheck) -> str:
    words = f"{check.checked} other tables were compared, none lies in the same place."
    return words if check.complete else f"{words} {check.skipped}".strip()


def _named(table: LoadedTable, roots: Roots, storage: Storage) -> list[Entry]:
    """What the metadata names, and the one file beside it that it does not."""

    def read(path: str) -> bytes | None:
        return storage.read(path) if roots.contains(path) else None

    entries = list(named_by_metadata(table, read))
    hint = version_hint_of(table.metadata_location)
    if roots.contains(hint) and (size := storage.size(hint)) is not None:
        entries.append(Entry(hint, FileKind.VERSION_HINT, size))
    return entries


def _delete_root(work: Work, location: str, storage: Storage) -> None:
    """The very last file. Once it is gone the catalog cannot load the table any more."""
    failpoint("purge.root.before")
    work.checkpoint(root={"deleted": False})
    [outcome] = storage.delete([location])
    if isinstance(outcome, Failure):
        error = StorageRefused if outcome.refused else StorageUnavailable
        raise error(f"The metadata file {location} could not be deleted: {outcome.reason}")
    failpoint("purge.root.deleted")
    if storage.remaining([location]):
        raise FilesRemain(f"The metadata file {location} is still there.", details=location)
    work.checkpoint(
        root={"deleted": outcome is DELETED, "missing": outcome is MISSING, "done": True}
    )


def _end_if_stopped(work: Work, outcomes: deletion.Outcomes) -> None:
    if outcomes.stopped:
        work.attempt.check(ask=True)
        raise WorkerLost("The executors did not find the task in this worker's hands.")


def _refuse_failures(outcomes: deletion.Outcomes) -> None:
    if outcomes.failed:
        error = StorageRefused if outcomes.refused else StorageUnavailable
        first = outcomes.left[0]
        raise error(
            f"{outcomes.failed} files could not be deleted; the first: {first.path}: "
            f"{first.reason}",
            details=_lines(outcomes.left),
            report=_failures(outcomes),
        )


def _failures(outcomes: deletion.Outcomes) -> dict[str, Any]:
    named = [{"path": one.path, "reason": one.reason} for one in outcomes.left]
    return {"failed": {"files": outcomes.failed, "paths": named}}


def _lines(left: list[Left]) -> str:
    return "\n".join(f"{one.path}: {one.reason}" for one in left)


def _in_words(result: Mapping[str, Any]) -> str:
    words = f"{result['files_deleted']} files deleted, none is left."
    if skipped := result.get("skipped"):
        words += f" {skipped['files']} files outside the table's locations were not touched."
    if missing := result.get("missing_metadata"):
        words += (
            f" {missing['files']} manifests were gone before: what only they named is not known."
        )
    return words


def _inventory_location(settings: Settings, task: Task) -> str:
    """A place of the attempt's own: a lost attempt may still be writing to the one before."""
    return f"{task_folder(settings.workspace, task.task_id)}/inventory-{task.version}"
