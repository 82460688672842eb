"""What the ledger says about purges: progress while one runs, its outcome, and earlier ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from moraine.access.model import QualifiedName
from moraine.log import get_logger
from moraine.neighbours.model import TableName
from moraine.operations.purge.model import (
    ROOT,
    VERIFY,
    Checkpoint,
    FileKind,
    Phase,
    PhaseState,
    parameters_of,
)
from moraine.tasks.model import Status, Task, TaskFilter
from moraine.tasks.slices import Counts
from moraine.tasks.store import TaskStore
from moraine.words import counted

log = get_logger(__name__)

_TASK_TYPE = "TABLE_PURGE"
# Some of them may be dry runs, which delete nothing.
_EARLIER_TASKS = 50


class Progress:
    """Files and bytes done over all phases, the rate of this attempt, and the time left."""

    def __init__(self, store: TaskStore, task: Task, step: str) -> None:
        self._store, self._task, self._step = store, task, step
        self._inventory = Checkpoint.of(task).planned
        self._started = time.monotonic()
        self.root_done = False
        """The root is in no slice: it is deleted when all other files are verified."""
        self._before = self._done(store.slice_totals(task.task_id)).files_done
        self._last: dict[str, Any] | None = None

    def measure(self) -> dict[str, Any]:
        totals = self._store.slice_totals(self._task.task_id)
        done = self._done(totals)
        files = self._inventory.files
        seconds = time.monotonic() - self._started
        rate = (done.files_done - self._before) / seconds if seconds > 0 else 0.0
        progress: dict[str, Any] = {
            "step": self._step,
            "phase": self._phase(totals),
            "files_done": done.files_done,
            "files_total": files,
            "bytes_done": done.bytes_done,
            "bytes_total": self._inventory.bytes,
            "files_per_s": round(rate, 1),
            "seconds_left": round((files - done.files_done) / rate, 1) if rate else None,
        }
        if self._last is None or progress["files_done"] != self._last["files_done"]:
            log.info("purge.progress", **progress)
        self._last = progress
        return progress

    def _done(self, totals: Mapping[str, Counts]) -> Counts:
        if self._step == VERIFY:
            verified = totals.get(VERIFY, Counts())
            return Counts(
                files_done=verified.files_done + self.root_done,
                bytes_done=verified.bytes_done,
            )
        done = [counts for stage, counts in totals.items() if stage != VERIFY]
        return Counts(
            files_done=sum(one.files_done + one.files_missing for one in done),
            bytes_done=sum(one.bytes_done for one in done),
        )

    def _phase(self, totals: Mapping[str, Counts]) -> str | None:
        if self._step == VERIFY:
            return None
        for phase in Phase:
            counts = totals.get(phase, Counts())
            if counts.files_done + counts.files_missing < self._inventory.phases.get(phase, 0):
                return str(phase)
        return str(ROOT)


# --- The outcome ----------------------------------------------------------------------------


def outcome(store: TaskStore, task: Task) -> dict[str, Any]:
    """What was deleted and what was not, by phase, as far as the task got."""
    checkpoint = Checkpoint.of(store.get(task.task_id))
    inventory = checkpoint.inventory
    if inventory is None:
        return {}
    totals = store.slice_totals(task.task_id)
    phases = {
        str(phase): _phase_outcome(files, totals.get(phase, Counts()), checkpoint.phases.get(phase))
        for phase, files in inventory.phases.items()
    }
    if root := checkpoint.root:
        phases[str(ROOT)] |= {
            "deleted": int(root.deleted),
            "already_missing": int(root.missing),
            "bytes_deleted": (
                inventory.kinds[FileKind.CURRENT_METADATA].bytes if root.deleted else 0
            ),
        }
    deleted = sum(phase["deleted"] for phase in phases.values())
    missing = sum(phase["already_missing"] for phase in phases.values())
    return {
        "dry_run": False,
        "files_deleted": deleted,
        "bytes_deleted": sum(phase["bytes_deleted"] for phase in phases.values()),
        "files_already_missing": missing,
        "files_left": inventory.files - deleted - missing,
        **_inventory_facts(checkpoint),
        "by_phase": phases,
        "seconds": {"plan": inventory.seconds, **checkpoint.seconds},
    }


def dry_run_outcome(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "dry_run": True,
        "files_deleted": 0,
        "bytes_deleted": 0,
        **_inventory_facts(checkpoint),
        "seconds": {"plan": checkpoint.planned.seconds},
    }


def describe_outcome(result: Mapping[str, Any]) -> str:
    """The outcome of a success, as a sentence for people."""
    words = f"{counted(result['files_deleted'], 'file')} deleted, none is left."
    if skipped := result.get("skipped"):
        outside = counted(skipped["files"], "file")
        words += f" Not touched: {outside} outside the table's locations."
    if missing := result.get("missing_metadata"):
        gone = counted(missing["files"], "manifest was", "manifests were")
        words += f" {gone} gone before: files that only they named are unknown."
    return words


def describe_deleted(store: TaskStore, task: Task) -> str:
    """What the attempts at a task have deleted so far, as a sentence for people."""
    checkpoint = Checkpoint.of(store.get(task.task_id))
    if not checkpoint.deleting:
        return "Nothing was deleted."
    result = outcome(store, task)
    # Of a phase that was interrupted, the last deletes may not have been counted.
    is_exact = all(phase.done for phase in checkpoint.phases.values())
    untouched = [phase for phase, one in result["by_phase"].items() if not one["deleted"]]
    files = counted(result["files_found"], "file was", "files were")
    deleted = f"{result['files_deleted']} of {files} deleted"
    return (
        f"Of the table as it was, {'' if is_exact else 'at least '}{deleted}; "
        f"untouched: {', '.join(untouched) or 'none'}."
    )


def _phase_outcome(files: int, counts: Counts, state: PhaseState | None) -> dict[str, Any]:
    # The step times a phase from start to end; if it did not get there, executors have.
    seconds = (state.seconds if state else None) or counts.seconds
    return {
        "files": files,
        "deleted": counts.files_done,
        "already_missing": counts.files_missing,
        "bytes_deleted": counts.bytes_done,
        "seconds": round(seconds, 3),
    }


def _inventory_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    inventory = checkpoint.planned
    return {
        "files_found": inventory.files,
        "bytes_found": inventory.bytes,
        "by_kind": {str(kind): totals.to_json() for kind, totals in inventory.kinds.items()},
        "inventory": inventory.location,
        **checkpoint.findings.to_json(),
    }


# --- Earlier purges -------------------------------------------------------------------------


def find_earlier_success(store: TaskStore, realm: str, subject: str) -> Task | None:
    """The last purge that deleted the files of a table of this name."""
    wanted = TaskFilter(
        status=Status.SUCCESS, task_type=_TASK_TYPE, subject=subject, realm_id=realm
    )
    found = store.find(wanted, limit=_EARLIER_TASKS)
    return next((task for task in found if Checkpoint.of(task).verified), None)


def find_same_purge(store: TaskStore, task: Task) -> Task | None:
    """An earlier purge of the very table that a task is about."""
    earlier = find_earlier_success(store, task.realm_id, task.subject)
    if earlier is None or not parameters_of(task).means(
        parameters_of(earlier), Checkpoint.of(earlier).pinned
    ):
        return None
    return earlier


def was_purged(store: TaskStore, realm: str, catalog: str, table: TableName) -> bool:
    """Whether a purge of this ledger deleted the files of a table."""
    subject = str(QualifiedName(catalog, tuple(table.namespace), table.name))
    return find_earlier_success(store, realm, subject) is not None
