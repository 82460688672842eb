"""How far a purge is while it runs, and what came of it in the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from moraine.log import get_logger
from moraine.operations.purge.deletion import VERIFY
from moraine.operations.purge.inventory import Inventory
from moraine.operations.purge.order import PHASE_OF, ROOT, Phase
from moraine.tasks.model import Task
from moraine.tasks.slices import Counts
from moraine.tasks.store import TaskStore
from moraine.tasks.worker import Work

log = get_logger(__name__)


class Progress:
    """Files and bytes done over all phases, the rate of this attempt, and the time left."""

    def __init__(self, store: TaskStore, task: Task, step: str) -> None:
        self._store, self._task, self._step = store, task, step
        self._inventory = task.checkpoint["inventory"]
        self._started = time.monotonic()
        self.root_done = False
        """The last file goes by another way, when all the others are verified."""
        self._before = self._done(store.slice_totals(task.task_id)).files_done
        self._last: dict[str, Any] | None = None

    def measure(self) -> dict[str, Any]:
        totals = self._store.slice_totals(self._task.task_id)
        done = self._done(totals)
        files = self._inventory["files"]
        seconds = time.monotonic() - self._started
        rate = (done.files_done - self._before) / seconds if seconds > 0 else 0.0
        progress: dict[str, Any] = {
            "step": self._step,
            "phase": self._phase(totals),
            "files_done": done.files_done,
            "files_total": files,
            "bytes_done": done.bytes_done,
            "bytes_total": self._inventory["bytes"],
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
        for phase, files in self._inventory["phases"].items():
            counts = totals.get(phase, Counts())
            if counts.files_done + counts.files_missing < files:
                return str(phase)
        return str(ROOT)


def summarize(location: str, inventory: Inventory, seconds: float) -> dict[str, Any]:
    """The inventory as the ledger keeps it."""
    phases = {str(phase): 0 for phase in Phase}
    for count in inventory.counts:
        phases[PHASE_OF[count.kind]] += count.files
    return {
        "location": location,
        "files": sum(count.files for count in inventory.counts),
        "bytes": sum(count.bytes for count in inventory.counts),
        "kinds": {
            str(count.kind): {"files": count.files, "bytes": count.bytes}
            for count in inventory.counts
        },
        "phases": {phase: files for phase, files in phases.items() if files},
        "seconds": round(seconds, 3),
    }


def add_seconds(work: Work, step: str, started: float) -> None:
    """Remember how long a step took, of the attempt that ended it."""
    known = work.task.checkpoint.get("seconds", {})
    work.checkpoint(seconds={**known, step: round(time.monotonic() - started, 3)})


def outcome(store: TaskStore, task: Task) -> dict[str, Any]:
    """What was deleted and what was not, by phase, as far as the task came."""
    task = store.get(task.task_id)
    inventory = task.checkpoint.get("inventory")
    if inventory is None:
        return {}
    totals = store.slice_totals(task.task_id)
    begun = task.checkpoint.get("phases", {})
    phases = {
        phase: _phase_outcome(files, totals.get(phase, Counts()), begun.get(phase, {}))
        for phase, files in inventory["phases"].items()
    }
    if root := task.checkpoint.get("root", {}):
        size = inventory["kinds"][str(ROOT)]["bytes"] if root.get("deleted") else 0
        phases[str(ROOT)] |= {
            "deleted": int(root.get("deleted", False)),
            "already_missing": int(root.get("missing", False)),
            "bytes_deleted": size,
        }
    deleted = sum(phase["deleted"] for phase in phases.values())
    missing = sum(phase["already_missing"] for phase in phases.values())
    return {
        "dry_run": False,
        "files_deleted": deleted,
        "bytes_deleted": sum(phase["bytes_deleted"] for phase in phases.values()),
        "files_already_missing": missing,
        "files_left": inventory["files"] - deleted - missing,
        **_inventory_facts(task),
        "by_phase": phases,
        "seconds": {"plan": inventory["seconds"], **task.checkpoint.get("seconds", {})},
    }


def dry_run_outcome(task: Task) -> dict[str, Any]:
    inventory = task.checkpoint["inventory"]
    return {
        "dry_run": True,
        "files_deleted": 0,
        "bytes_deleted": 0,
        **_inventory_facts(task),
        "seconds": {"plan": inventory["seconds"]},
    }


def _phase_outcome(files: int, counts: Counts, begun: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "files": files,
        "deleted": counts.files_done,
        "already_missing": counts.files_missing,
        "bytes_deleted": counts.bytes_done,
        # Phases that share a job are timed by their executor, others from start to end.
        "seconds": round(begun.get("seconds") or counts.seconds, 3),
    }


def _inventory_facts(task: Task) -> dict[str, Any]:
    inventory = task.checkpoint["inventory"]
    return {
        "files_found": inventory["files"],
        "bytes_found": inventory["bytes"],
        "by_kind": inventory["kinds"],
        "inventory": inventory["location"],
        **task.checkpoint.get("findings", {}),
    }
