"""A ledger, a service over it, and a hand in its database."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
import uuid6
from psycopg.rows import DictRow, dict_row

from moraine.access.model import QualifiedName
from moraine.errors import MoraineError
from moraine.ledger.pools import open_pool
from moraine.settings import Settings
from moraine.tasks.model import Claim, NewTask, Status, Task
from moraine.tasks.operation import Operation, Parameters, Registry, ResultFigure
from moraine.tasks.service import Submission, TaskService
from moraine.tasks.store import TaskStore

Database = psycopg.Connection[DictRow]
AddTask = Callable[..., Task]


@pytest.fixture
def store(ledger_url: str) -> Iterator[TaskStore]:
    with open_pool(ledger_url, size=12) as pool:
        yield TaskStore(pool)


@pytest.fixture
def database(ledger_url: str) -> Iterator[Database]:
    """The ledger's database without the store's manners."""
    with psycopg.connect(ledger_url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


def new_task(**changes: Any) -> NewTask:
    given: dict[str, Any] = {
        "task_id": uuid.UUID(int=uuid6.uuid7().int),
        "realm_id": "demo",
        "task_type": "NOOP",
        "task_payload": {"files": 3},
        "subject": "demo.shop.orders",
    }
    return NewTask(**given | changes)


@pytest.fixture
def add(store: TaskStore) -> AddTask:
    return lambda **changes: store.add(new_task(**changes))


class Noop(Parameters):
    """The parameters of an operation that does nothing, to one name at a time."""

    name: str = "orders"
    dry_run: bool = False

    @property
    def table(self) -> QualifiedName:
        return QualifiedName("demo", ("shop",), self.name)

    @property
    def subject(self) -> str:
        return self.name

    @property
    def exclusive(self) -> bool:
        return not self.dry_run


FIGURES = (ResultFigure("files", "Files"), ResultFigure("bytes", "Bytes"))
NOOP = Operation("NOOP", Noop, dag_id="noop", figures=FIGURES)


def noop(name: str = "orders", *, dry_run: bool = False, realm: str = "demo") -> Submission:
    return Submission(NOOP, Noop(name=name, dry_run=dry_run), realm, "test")


class Starts:
    """Stands in for Airflow: remembers what was started, or cannot start anything."""

    def __init__(self) -> None:
        self.started: list[tuple[str, uuid.UUID, int]] = []
        self.down = False

    def launch(self, dag_id: str, task: Task, form: Mapping[str, Any]) -> bool:
        del form
        if self.down:
            raise MoraineError("Airflow does not answer.")
        start = (dag_id, task.task_id, task.version)
        if start in self.started:
            return False
        self.started.append(start)
        return True


@pytest.fixture
def starts() -> Starts:
    return Starts()


@pytest.fixture
def service(store: TaskStore, starts: Starts, tmp_path: Path) -> TaskService:
    settings = Settings(realm="demo", workspace=tmp_path.as_uri())
    return TaskService(store, starts, Registry([NOOP]), settings)


def lose_lease(database: Database, task_id: uuid.UUID) -> None:
    """As if the worker had died and its lease had expired."""
    database.execute(
        "UPDATE tasks SET lease_expires_ts = now() - interval '1 second' WHERE task_id = %s",
        [task_id],
    )


def finish(store: TaskStore, task_id: UUID, status: Status = Status.SUCCESS, **how: Any) -> Task:
    """Take a task through one attempt, to this end."""
    assert store.claim_one(task_id, "me")
    claim = store.start(Claim(task_id, store.get(task_id).version, "me"))
    return store.advance(claim, status, "ended", **how)
