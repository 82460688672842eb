"""What the ledger keeps, for how long, and what it counts of the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from moraine.ledger.pools import open_pool
from moraine.local.stack import Stack
from moraine.migrations import upgrade
from moraine.settings import DelegationSettings
from moraine.storage.files import local_path
from moraine.tasks.model import Claim, Status, task_folder
from moraine.tasks.service import TaskService
from moraine.tasks.store import TaskStore
from support.tasks import submit

from .conftest import AddTask, Database, finish, lose_lease, noop

OLD = timedelta(days=40)
FIGURES = ["files", "bytes"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE task_history SET reason = 'nothing happened'",
        "UPDATE task_history SET version = version + 1 WHERE false",
    ],
)
def test_task_history_is_append_only(
    service: TaskService, store: TaskStore, database: Database, change: str
) -> None:
    task = submit(service, noop())
    with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
        database.execute(change)
    assert [version.reason for version in store.history(task.task_id)] == ["submitted"]


def test_task_ledger_knows_no_other_states(add: AddTask, database: Database) -> None:
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
    names = ["succeeded", "failed", "recent", "waiting", "running", "lost", "retrying"]
    tasks = {name: submit(service, noop(name)).task_id for name in names}
    for name in ("succeeded", "recent"):
        finish(store, tasks[name], result={"files": 5, "bytes": 2**40})
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
    before = by_state(store), store.figure_totals(FIGURES)
    assert before[1] == {("NOOP", "files"): 10, ("NOOP", "bytes"): 2**41}

    assert service.cleanup() == 2

    for name, task_id in tasks.items():
        assert bool(store.get_many([task_id])) == (name not in ("succeeded", "failed")), name
        assert bool(store.history(task_id)) == (name not in ("succeeded", "failed")), name
    now = by_state(store), store.figure_totals(FIGURES)
    assert now == before, "what was removed is still counted"


def test_retention_works_in_batches(
    service: TaskService, store: TaskStore, database: Database
) -> None:
    tasks = [submit(service, noop(str(number))).task_id for number in range(7)]
    for task_id in tasks:
        service.cancel(task_id)
    age(database, *tasks)
    assert len(store.remove_finished(timedelta(days=30), 3, [])) == 3
    batched = DelegationSettings.model_validate({"task": {"cleanup_batch": 2}})
    service.settings = service.settings.model_copy(update={"delegation": batched})
    assert service.cleanup() == 4
    (total,) = store.totals()
    assert (total["status"], total["tasks"]) == ("FAILURE", 7)


def test_retention_removes_a_tasks_folder(
    service: TaskService, store: TaskStore, database: Database
) -> None:
    old, new = (submit(service, noop(name)).task_id for name in ("old", "new"))
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


def test_task_totals_count_durations_and_the_figures_that_operations_declare(
    service: TaskService, store: TaskStore, database: Database
) -> None:
    for name in ("a", "b"):
        task = submit(service, noop(name))
        finish(store, task.task_id, result={"files": 3, "bytes": 100, "note": "x"})
    database.execute("UPDATE tasks SET received_timestamp = last_status_change_ts - interval '9 s'")
    (total,) = store.totals()
    assert (total["task_type"], total["status"], total["tasks"]) == ("NOOP", "SUCCESS", 2)
    assert store.figure_totals(FIGURES) == {("NOOP", "files"): 6, ("NOOP", "bytes"): 200}
    assert store.figure_totals(["files"]) == {("NOOP", "files"): 6}
    assert float(total["seconds"]) == pytest.approx(18)


def test_task_totals_of_an_earlier_version_are_not_lost(postgres: Stack) -> None:
    admin_url = postgres.postgres.admin_url
    url = f"{admin_url.rpartition('/')[0]}/earlier_version"
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE earlier_version")
    upgrade(url, "0008")
    with psycopg.connect(url) as ledger:
        ledger.execute(
            "INSERT INTO removed_task_totals VALUES "
            "('PURGE', 'SUCCESS', 2, 3, 1, 10, 2000, 9), ('PURGE', 'FAILURE', 1, 1, 0, 4, 5, 1)"
        )
    upgrade(url)
    with open_pool(url) as pool:
        store = TaskStore(pool)
        assert by_state(store) == {"SUCCESS": (2, 3, 1), "FAILURE": (1, 1, 0)}
        assert store.figure_totals([]) == {
            ("PURGE", "files_deleted"): 14,
            ("PURGE", "bytes_deleted"): 2005,
        }


def by_state(store: TaskStore) -> dict[str, tuple[Any, ...]]:
    columns = ("tasks", "attempts", "lease_losses")
    return {
        total["status"]: tuple(int(total[column]) for column in columns) for total in store.totals()
    }
