"""What tests of several folders need: a PostgreSQL of their own with a ledger in it, or the whole
platform."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from xdist.scheduler import LoadScopeScheduling

from moraine.local.errors import StackError
from moraine.local.stack import Stack
from moraine.tasks.store import TaskStore, open_pool

if TYPE_CHECKING:
    from support.azurite import Azurite
    from support.ingest import IngestSite
    from support.kafka import Broker
    from support.platform import Platform

pytest.register_assert_rewrite("support")


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


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test's time limit is about the test: whichever comes first also starts the platform."""
    if "running_platform" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.timeout(300, func_only=True))


class ByStack(LoadScopeScheduling):  # type: ignore[misc]
    """Keeps tests together that share what takes long to start; others go file by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((stack for stack, part in _STACKS if part in file), file)


_STACKS = (
    ("gateway", "tests/failure/test_gateway_killed"),
    ("ingest", "tests/failure/test_killed_writers"),
    ("ingest", "tests/failure/test_ingest_chaos"),
    ("platform", "tests/e2e/"),
    ("platform", "tests/failure/"),
    ("stores", "tests/integration/gateway/test_engines"),
    ("stores", "tests/integration/purge/"),
    ("stores", "tests/integration/ingest/test_object_store"),
    ("stores", "tests/integration/ingest/test_broker"),
    ("stores", "tests/integration/stores/"),
    ("stores", "tests/integration/ingest/test_filedrop"),
    ("stores", "tests/contract/test_storage"),
    ("ingest", "tests/integration/ingest/"),
    ("gateway", "tests/integration/gateway/"),
    ("catalog", "tests/integration/catalog/"),
)


def pytest_sessionstart(session: pytest.Session) -> None:
    """A run on several workers is of all tests: what they will want is fetched meanwhile."""
    if session.config.getoption("numprocesses", None):
        threading.Thread(target=_fetch_all_jars, name="jars", daemon=True).start()


def _fetch_all_jars() -> None:
    from support.s3_catalog import fetch_jars

    for configuration in ("s3", "kafka", "nessie", "rck", "otlp"):
        with contextlib.suppress(StackError):  # the test that needs them says so
            fetch_jars(configuration)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByStack:
    return ByStack(config, log)


@pytest.fixture(scope="session")
def running_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One stack with all its parts, for every test that needs one."""
    from support.platform import running_platform  # late: most tests have no use for it

    with running_platform(partial(tmp_path_factory.mktemp, "platform")) as platform:
        yield platform


@pytest.fixture(scope="session")
def ingest_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestSite]:
    """What ingest writes with, for every test of it; writers are those of each test."""
    from support.ingest import running_site

    with running_site(tmp_path_factory.mktemp("ingest")) as site:
        yield site


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    from support.kafka import running_broker

    with running_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    from support.azurite import running_azurite

    with running_azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture
def platform(running_platform: Platform) -> Iterator[Platform]:
    """Whatever a test arms or holds, the next one finds nothing of it."""
    yield running_platform
    running_platform.failpoints.clear()
