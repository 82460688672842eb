"""An executor that was taken over, with the ledger's address in its hands."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import uuid6
from psycopg import sql
from pydantic import SecretStr

from moraine.catalog.access import TableAccess
from moraine.ledger.grants import NoSuchRole, grant_executor, role_of
from moraine.local.stack import Stack
from moraine.operations.purge import executor_work
from moraine.operations.purge.executor_work import Assignment
from moraine.operations.purge.target import PurgeTarget
from moraine.settings import CatalogSettings, Settings
from moraine.storage.credentials import Credentials
from moraine.storage.locations import Roots
from moraine.storage.stores import Storage
from moraine.tasks.model import Claim, NewTask
from moraine.tasks.slices import Fence
from moraine.tasks.store import TaskStore
from moraine.tasks.worker import Worker

SECOND = timedelta(seconds=1)
ROLE = "moraine_executor"


@pytest.fixture
def executor_url(postgres: Stack, ledger_url: str) -> str:
    """What the embedded stack gives to executors, for the ledger of this test."""
    given = postgres.environment()["MORAINE_LEDGER__EXECUTOR_URL"]
    return f"{given.rpartition('/')[0]}/{ledger_url.rpartition('/')[2]}"


@pytest.fixture
def executor(executor_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(executor_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def claim(store: TaskStore) -> Claim:
    task_id = uuid.UUID(int=uuid6.uuid7().int)
    store.add(NewTask(task_id, "demo", "TABLE_PURGE", {"secret": "payload"}, "demo.shop.orders"))
    task = store.claim_one(task_id, "worker")
    assert task is not None
    return store.start(Claim(task_id, task.version, "worker"))


def tables(ledger_url: str) -> list[str]:
    with psycopg.connect(ledger_url) as owner:
        rows = owner.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
        )
        return sorted(name for (name,) in rows)


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("SELECT task_payload FROM tasks", id="read what is asked for"),
        pytest.param("SELECT * FROM tasks", id="read tasks whole"),
        pytest.param("UPDATE tasks SET cancel_requested_ts = now()", id="cancel every task"),
        pytest.param("UPDATE tasks SET status = 'SUCCESS'", id="end every task"),
        pytest.param("UPDATE tasks SET checkpoint = '{}'", id="forget every inventory"),
        pytest.param("INSERT INTO tasks (task_id) VALUES (gen_random_uuid())", id="add a task"),
        pytest.param("DELETE FROM tasks", id="remove tasks"),
        pytest.param("SELECT * FROM task_history", id="read history"),
        pytest.param("UPDATE task_history SET reason = ''", id="rewrite history"),
        pytest.param("DELETE FROM task_history", id="remove history"),
        pytest.param("DELETE FROM task_slices", id="remove slices"),
        pytest.param("UPDATE task_slices SET task_id = gen_random_uuid()", id="move slices"),
        pytest.param("TRUNCATE tasks CASCADE", id="empty the ledger"),
        pytest.param("DROP TABLE task_history", id="drop a table"),
        pytest.param("CREATE TABLE mine (a int)", id="keep something here"),
        pytest.param("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'", id="add code"),
        pytest.param("SELECT rolpassword FROM pg_authid", id="read passwords"),
        pytest.param("SET ROLE moraine", id="become the owner"),
    ],
)
def test_an_executor_cannot(executor: psycopg.Connection, claim: Claim, statement: str) -> None:
    del claim
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        executor.execute(sql.SQL(statement))  # type: ignore[arg-type]


def test_no_other_table_can_be_read_or_written(
    executor: psycopg.Connection, ledger_url: str
) -> None:
    """Also not one that a later version adds."""
    others = set(tables(ledger_url)) - {"task_slices", "tasks"}
    assert {"task_history", "idempotency_keys"} & others
    for table in sorted(others):
        for statement in ("SELECT 1 FROM {}", "LOCK TABLE {} IN EXCLUSIVE MODE"):
            refused = pytest.raises(psycopg.errors.InsufficientPrivilege)
            with refused, executor.transaction():
                executor.execute(sql.SQL(statement).format(sql.Identifier(table)))


def test_executors_delete_and_report_with_their_own_role(
    store: TaskStore, claim: Claim, executor_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.parquet"
    file.write_text("12345")
    row = {"stage": "content", "slice": "content/part-0", "path": str(file), "size": 5}
    fence = Fence(SecretStr(executor_url), claim.task_id, claim.version, SECOND)
    digests = {"content/part-0": executor_work.digest_of([str(file)], [5])}
    storage = functools.partial(Storage, Credentials())
    assignment = Assignment(fence, storage, digests, max_named=2)
    for work in (executor_work.delete_slice, executor_work.verify_slice):
        batches = iter([pa.RecordBatch.from_pylist([row], schema=executor_work.FILES)])
        [end] = executor_work.work_on_slices(assignment, work, batches)
        assert end.to_pylist()[0]["failed"] == 0
    assert not file.exists()
    assert store.finished_slices(claim.task_id, ["content"]) == ["content/part-0"]


def test_purges_give_executors_that_address_and_no_other(
    store: TaskStore, claim: Claim, executor_url: str, ledger_url: str
) -> None:
    catalog = CatalogSettings(uri="http://127.0.0.1:9")
    given = {"url": ledger_url, "executor_url": executor_url}
    settings = Settings.model_validate({"ledger": given, "catalogs": {"demo": catalog}})
    access = TableAccess(catalog, ("shop",), "orders")
    target = PurgeTarget(access, store.get(claim.task_id), Worker(store, settings, "worker"))
    table: Any = SimpleNamespace(credentials=Credentials())
    work: Any = SimpleNamespace(attempt=SimpleNamespace(claim=claim))
    fence = target.assignment(table, work, Roots.of(["s3://lake/t"]), {}).fence
    assert fence.ledger.get_secret_value() == executor_url


def test_rights_of_an_earlier_day_are_taken_back(ledger_url: str, executor_url: str) -> None:
    with psycopg.connect(ledger_url, autocommit=True) as owner:
        owner.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE}")
    grant_executor(ledger_url, role_of(executor_url))
    with psycopg.connect(executor_url) as executor:
        executor.execute("SELECT task_id FROM tasks")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            executor.execute("DELETE FROM task_history")


def test_the_owner_is_not_taken_for_an_executor(ledger_url: str, postgres: Stack) -> None:
    for role in (role_of(ledger_url), role_of(postgres.postgres.admin_url), "no_such_role"):
        with pytest.raises(NoSuchRole):
            grant_executor(ledger_url, role)
