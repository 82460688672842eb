"""A purge in which something fails: how it begins, and what must be true at its end."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from uuid import UUID

from moraine.tasks.model import Status, Task, TaskVersion
from support.platform import Platform, Table, checksums


@dataclass(frozen=True)
class Purge:
    """A table that is being purged, beside others that must not be touched."""

    platform: Platform
    table: Table
    files: dict[str, str]
    neighbours: dict[str, str]

    def submit(self) -> UUID:
        return self.platform.submit(self.table)

    def hold(self, failpoint: str) -> UUID:
        """Submit, and wait until the work is held at a failpoint."""
        self.platform.failpoints.hold_at(failpoint)
        task_id = self.submit()
        self.platform.failpoints.wait_until_hit(failpoint)
        return task_id

    def check_done_once(self, task_id: UUID, codes: list[str]) -> Task:
        """The task succeeded, nothing is left, nothing else was touched, nothing was counted
        twice, and the history has `codes`: why each lost or failed attempt ended."""
        task = self.platform.finish(task_id)
        assert task.status is Status.SUCCESS, (task, self.platform.history(task_id))
        assert self.table.files() == {}
        left = checksums(self.platform.warehouse)
        assert {path: left.get(path) for path in self.neighbours} == self.neighbours
        result = task.result or {}
        assert result["files_deleted"] == result["files_found"] == len(self.files)
        assert result["bytes_deleted"] == result["bytes_found"]
        assert result["files_already_missing"] == 0
        assert self.platform.inventory(result["inventory"]) == set(self.files)
        history = self.platform.history(task_id)
        check_consecutive(history)
        assert ends_of_attempts(history) == [*codes, "SUCCESS"]
        assert task.attempt_count == len(codes) + 1
        return task


def check_consecutive(history: list[TaskVersion]) -> None:
    assert [row.version for row in history] == list(range(1, len(history) + 1))
    times = [row.last_status_change_ts for row in history]
    assert times == sorted(times)
    for before, after in itertools.pairwise(history):
        claimed = after.status is Status.ACQUIRING_RESOURCES
        assert after.attempt_count == before.attempt_count + claimed


def ends_of_attempts(history: list[TaskVersion]) -> list[str]:
    """How each attempt ended: its error code, LEASE_LOST if the next one took over, or SUCCESS."""
    ends = []
    for row in history:
        if row.reason == "taken over after a lost lease":
            ends.append("LEASE_LOST")
        elif row.status in (Status.RETRY_SCHEDULED, Status.FAILURE):
            ends.append(row.error_code or "none")
        elif row.status is Status.SUCCESS:
            ends.append("SUCCESS")
    return ends
