"""What tests of several folders need: a PostgreSQL of their own, and a ledger in it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from moraine.local.stack import Stack
from moraine.tasks.store import TaskStore, open_pool

pytest_plugins = ["support.platform"]


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack of which only PostgreSQL runs."""
    with Stack.ephemeral(tmp_path_factory.mktemp("postgres")) as stack:
        stack.up({"postgres"})
        yield stack


@pytest.fixture
def ledger_url(postgres: Stack) -> Iterator[str]:
    """A ledger with the newest schema and nothing in it: a copy of the stack's own, unused one."""
    template = postgres.environment()["MORAINE_LEDGER__URL"]
    server, _, original = template.rpartition("/")
    name = f"ledger_{uuid.uuid4().hex}"
    names = {"name": sql.Identifier(name), "original": sql.Identifier(original)}
    with psycopg.connect(postgres.postgres.admin_url, autocommit=True) as admin:
        create = "CREATE DATABASE {name} TEMPLATE {original} OWNER {original}"
        admin.execute(sql.SQL(create).format(**names))
        yield f"{server}/{name}"
        admin.execute(sql.SQL("DROP DATABASE {name} WITH (FORCE)").format(**names))


@pytest.fixture
def store(ledger_url: str) -> Iterator[TaskStore]:
    with open_pool(ledger_url) as pool:
        yield TaskStore(pool)
