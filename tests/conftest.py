"""What tests of several folders need: a PostgreSQL of their own with a ledger in it, or the whole
platform."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.nodeid import coerce_node_id
from xdist.scheduler import LoadScopeScheduling

from moraine.ledger.pools import open_pool
from moraine.local.part import StackError
from moraine.local.stack import Stack
from moraine.tasks.store import TaskStore

if TYPE_CHECKING:
    from support.azurite import Azurite
    from support.ingest import IngestSite
    from support.kafka import Broker
    from support.keycloak import Keycloak
    from support.platform import Platform
    from support.release import Release

pytest.register_assert_rewrite("support")

# Most JVMs of the tests live for a minute or two: with the optimising compiler they would need
# almost twice the CPU time. An option of the launcher, so that each of them has it.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

_RELEASE: pytest.StashKey[Release] = pytest.StashKey()


@pytest.fixture(autouse=True)
def _default_settings() -> Iterator[None]:
    """Every test starts without settings in the environment, whatever the shell or an earlier
    fixture has there, and leaves none: they would reach every later test of its worker."""
    for name in _own_variables():
        del os.environ[name]
    yield
    assert _own_variables() == []


def _own_variables() -> list[str]:
    return [name for name in os.environ if name.startswith("MORAINE_")]


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack of which only PostgreSQL runs."""
    with Stack.ephemeral(tmp_path_factory.mktemp("postgres")) as stack:
        stack.up({"postgres"})
        yield stack


@pytest.fixture
def ledger_url(postgres: Stack) -> Iterator[str]:
    from support.ledger import new_ledger

    with new_ledger(postgres) as url:
        yield url


@pytest.fixture
def store(ledger_url: str) -> Iterator[TaskStore]:
    with open_pool(ledger_url) as pool:
        yield TaskStore(pool)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes that are no text are named by their argument: what is compressed, signed or random
    may differ from one worker to the next, and workers must agree on every id."""
    if isinstance(val, bytes) and not (val.isascii() and val.decode().isprintable()):
        return argname
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    """A test's time limit is about the test: whichever comes first also starts the platform.

    Schemathesis gives the tests of all operations one id, and a worker runs an id once."""
    if operation := getattr(item, "operation_label", None):
        item._id = coerce_node_id(f"{item.nodeid}[{operation}]")
    if "running_platform" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.timeout(300, func_only=True))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    item.config.stash[_RELEASE].after(item)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The modules of all tests stay until the end: the collector need not visit them again."""
    from support.release import Release

    is_worker = hasattr(session.config, "workerinput")
    group_of = _group_of if is_worker else (lambda nodeid: "all")
    session.config.stash[_RELEASE] = Release(session.items, group_of)
    gc.collect()
    gc.freeze()


class ByStack(LoadScopeScheduling):  # type: ignore[misc]
    """Keeps tests together that share what takes long to start; others go file by file."""

    def _split_scope(self, nodeid: str) -> str:
        return _group_of(nodeid)


def _group_of(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return next((stack for stack, part in _STACKS if part in file), file)


_STACKS = (
    ("gateway", "tests/failure/test_gateway_killed"),
    ("engines", "tests/failure/test_unknown_outcomes"),
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
    ("keycloak", "tests/security/test_keycloak"),
)


def pytest_sessionstart(session: pytest.Session) -> None:
    """A run on several workers is of all tests: what they will want is fetched meanwhile."""
    if session.config.getoption("numprocesses", None):
        threading.Thread(target=_fetch_all_jars, name="jars", daemon=True).start()


def _fetch_all_jars() -> None:
    from support.s3_catalog import fetch_jars

    for configuration in ("s3", "kafka", "nessie", "rck", "otlp", "keycloak"):
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


@pytest.fixture(scope="session")
def keycloak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keycloak]:
    from support.keycloak import running_keycloak

    with running_keycloak(tmp_path_factory.mktemp("keycloak")) as server:
        yield server


@pytest.fixture
def platform(running_platform: Platform) -> Iterator[Platform]:
    """Whatever a test arms or holds, the next one finds nothing of it."""
    yield running_platform
    running_platform.failpoints.clear()
