"""What the ledger keeps, for how long, and what it counts of the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from moraine.settings import DelegationSettings
from moraine.storage.files import local_path, task_folder
from moraine.tasks.model import Claim, Status
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore

from .conftest import AddTask, Database, finish, lose_lease, noop

OLD = timedelta(days=40)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE task_history SET reason = 'nothing happened'",
        "UPDATE task_history SET version = version + 1 WHERE false",
    ],
)
def test_history_is_append_only(
    service: TaskService, store: TaskStore, database: Database, change: str
) -> None:
    task = service.submit(noop())
    with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
        database.execute(change)
    assert [version.reason for version in store.history(task.task_id)] == ["submitted"]


def test_the_ledger_knows_no_other_states(add: AddTask, database: Database) -> None:
    add()
    with pytest.raises(psycopg.errors.CheckViolation):
        database.execute("UPDATE tasks SET status = 'DONE'")


def age(database: Database, *task_ids: UUID) -> None:
    database.execute(
        "UPDATE tasks SET last_status_change_ts = now() - %s, received_timestamp = now() - %s "
        "WHERE task_id = ANY(%s)",
        [OLD, OLD, list(task_ids)],
    )


def test_retention_removes_what_ended_long_ago_and_nothing_else(
    service: TaskService, store: TaskStore, database: Database
) -> None:
    names = ["succeeded", "failed", "recent", "waiting", "running", "lost", "retrying", "parent"]
    tasks = {name: service.submit(noop(name)).task_id for name in names}
    child = service.submit(noop("child"), parent_id=tasks["parent"]).task_id
    for name in ("succeeded", "recent", "parent"):
        finish(store, tasks[name], result={"files_deleted": 5, "bytes_deleted": 2**40})
    finish(store, tasks["failed"], Status.FAILURE)
    for name in ("running", "lost", "retrying"):
        assert store.claim_one(tasks[name], "me")
    store.advance(
        Claim(tasks["retrying"], 2, "me"),
        Status.RETRY_SCHEDULED,
        "failed",
        next_run=datetime.now(UTC),
    )
    age(database, *(task_id for name, task_id in tasks.items() if name != "recent"))
    lose_lease(database, tasks["lost"])
    before = by_state(store)

    assert service.cleanup() == 2

    for name, task_id in tasks.items():
        assert bool(store.get_many([task_id])) == (name not in ("succeeded", "failed")), name
        assert bool(store.history(task_id)) == (name not in ("succeeded", "failed")), name
    assert by_state(store) == before, "what was removed is still counted"

    finish(store, child)
    before = by_state(store)
    assert service.cleanup() == 1, "now nobody needs the parent"
    assert store.get_many([tasks["parent"]]) == []
    assert by_state(store) == before


def test_retention_works_in_batches(
    service: TaskService, store: TaskStore, database: Database
) -> None:
    tasks = [service.submit(noop(str(number))).task_id for number in range(7)]
    for task_id in tasks:
        service.cancel(task_id)
    age(database, *tasks)
    assert len(store.remove_finished(timedelta(days=30), 3)) == 3
    batched = DelegationSettings.model_validate({"task": {"cleanup_batch": 2}})
    service.settings = service.settings.model_copy(update={"delegation": batched})
    assert service.cleanup() == 4
    (total,) = store.totals()
    assert (total["status"], total["tasks"]) == ("FAILURE", 7)


def test_a_tasks_folder_goes_with_it(
    service: TaskService, store: TaskStore, database: Database
) -> None:
    old, new = (service.submit(noop(name)).task_id for name in ("old", "new"))
    folders = {}
    for task_id in (old, new):
        service.cancel(task_id)
        folder = Path(local_path(task_folder(service.settings.workspace, task_id)))
        folder.mkdir(parents=True)
        (folder / "inventory.parquet").touch()
        folders[task_id] = folder
    age(database, old)
    assert service.cleanup() == 1
    assert not folders[old].exists()
    assert (folders[new] / "inventory.parquet").exists()


def test_totals_count_durations_and_what_was_deleted(
    service: TaskService, store: TaskStore, database: Database
) -> None:
    for name in ("a", "b"):
        task = service.submit(noop(name))
        finish(store, task.task_id, result={"files_deleted": 3, "bytes_deleted": 100})
    database.execute("UPDATE tasks SET received_timestamp = last_status_change_ts - interval '9 s'")
    (total,) = store.totals()
    assert (total["task_type"], total["status"], total["tasks"]) == ("NOOP", "SUCCESS", 2)
    assert (total["files_deleted"], total["bytes_deleted"]) == (6, 200)
    assert float(total["seconds"]) == pytest.approx(18)


def by_state(store: TaskStore) -> dict[str, tuple[Any, ...]]:
    columns = ("tasks", "attempts", "lease_losses", "files_deleted", "bytes_deleted")
    return {
        total["status"]: tuple(int(total[column]) for column in columns) for total in store.totals()
    }
