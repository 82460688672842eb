"""Tasks as callers and workers drive them, in short.

task = submit(service, submission)
for task in claim_due(store, "worker"): ...
"""

from __future__ import annotations

from moraine.tasks.model import Task
from moraine.tasks.service import Submission, TaskService
from moraine.tasks.store import TaskStore


def submit(service: TaskService, submission: Submission) -> Task:
    """Admit a task and start it, as the API does."""
    task = service.admit(submission)
    service.launch(task)
    return task


def claim_due(store: TaskStore, owner: str, limit: int = 1000) -> list[Task]:
    """Lease the tasks that should be at work, oldest first, as far as no other worker does."""
    claimed = (store.claim_one(task.task_id, owner) for task in store.due(limit))
    return [task for task in claimed if task is not None]
