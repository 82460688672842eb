"""A ledger of one task, for what a worker does beside its work."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from moraine.errors import LeaseLost, LedgerUnavailable
from moraine.tasks.model import Claim, Status, Task

NOW = datetime(2026, 3, 1, tzinfo=UTC)
OWNER = "worker"


def a_task(**changes: Any) -> Task:
    task = Task(
        task_id=uuid.uuid4(),
        version=2,
        parent_id=None,
        realm_id="demo",
        task_type="TABLE_PURGE",
        task_payload={},
        subject="demo.shop.orders",
        status=Status.ACQUIRING_RESOURCES,
        received_timestamp=NOW,
        created_ts=NOW,
        last_status_change_ts=NOW,
        attempt_count=1,
        next_scheduled_run_ts=None,
        lease_owner=OWNER,
        lease_acquired_ts=NOW,
        lease_expires_ts=NOW,
        cancel_requested_ts=None,
        progress=None,
        checkpoint={},
        result=None,
        error_code=None,
        result_summary=None,
        result_extended=None,
        correlation_id=None,
        reason="claimed",
        principal="test",
    )
    return replace(task, **changes)


class FakeStore:
    """Keeps the fence and the heartbeats; `answers` are what heartbeats meet, one after another."""

    def __init__(self, task: Task, *answers: bool | Exception) -> None:
        self.task = task
        self.answers = list(answers)
        self.down = False
        self.beats: list[dict[str, Any] | None] = []
        self.written: list[dict[str, Any]] = []
        self.moves: list[dict[str, Any]] = []
        self.start_takes = 0.0
        self._changed = threading.Condition()

    @property
    def claim(self) -> Claim:
        return Claim(self.task.task_id, self.task.version, OWNER)

    def get(self, _task_id: uuid.UUID) -> Task:
        return self.task

    def claim_one(self, _task_id: uuid.UUID, _owner: str) -> Task | None:
        return self.task

    def heartbeat(self, claim: Claim, progress: dict[str, Any] | None) -> bool:
        with self._changed:
            self.beats.append(progress)
            self._changed.notify_all()
        if claim.version != self.task.version:
            raise LeaseLost
        if self.down:
            raise LedgerUnavailable
        json.dumps(progress)
        answer = self.answers.pop(0) if self.answers else False
        if isinstance(answer, Exception):
            raise answer
        if progress is not None:
            self.written.append(progress)
        return answer

    def start(self, claim: Claim) -> Claim:
        self.task = replace(self.task, version=claim.version + 1, status=Status.RUNNING)
        time.sleep(self.start_takes)
        return self.claim

    def advance(self, claim: Claim, status: Status, reason: str, **outcome: Any) -> Task:
        self.moves.append({"claim": claim, "status": status, "reason": reason, **outcome})
        return self.task

    def wait_for(self, condition: Callable[[list[dict[str, Any] | None]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.beats), timeout=10)
