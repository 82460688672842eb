"""Fixtures around the gateway: one catalog and one ledger for all, and a way there that breaks.

A conftest imports the ones it wants, each of which starts them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from moraine.local.stack import Stack
from support.gateway import Caller, Scene, Way, running_gateway

StartGateway = Callable[..., Caller]
Rows = Callable[[str], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def gateway_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack.ephemeral(tmp_path_factory.mktemp("gateway")) as stack:
        stack.up({"postgres", "catalog"})
        yield stack


@pytest.fixture(scope="session")
def ledger(gateway_stack: Stack) -> str:
    """Keys are new in every test, so that all can share it."""
    return gateway_stack.environment()["MORAINE_LEDGER__URL"]


@pytest.fixture(scope="session")
def direct(gateway_stack: Stack) -> Caller:
    """Of the catalog, past the gateway."""
    return Caller(gateway_stack.catalog.url)


@pytest.fixture(scope="session")
def running_way(gateway_stack: Stack) -> Iterator[Way]:
    with Way(gateway_stack.catalog.url) as way:
        yield way


@pytest.fixture
def way(running_way: Way) -> Iterator[Way]:
    running_way.heal()
    yield running_way
    running_way.heal()


@pytest.fixture(scope="session")
def running_caller(ledger: str, running_way: Way) -> Iterator[Caller]:
    with running_gateway(ledger, {"prod": running_way.url}) as base:
        yield Caller(base)


@pytest.fixture
def caller(running_caller: Caller, way: Way) -> Caller:
    """Of a gateway with the default settings, behind which is `way`."""
    return running_caller


@pytest.fixture(scope="session")
def running_other(ledger: str, running_way: Way) -> Iterator[Caller]:
    with running_gateway(ledger, {"prod": running_way.url}) as base:
        yield Caller(base)


@pytest.fixture
def other_caller(running_other: Caller, way: Way) -> Caller:
    """Of a second gateway like the first, which shares nothing with it but the ledger."""
    return running_other


@pytest.fixture
def start_gateway(ledger: str, way: Way) -> Iterator[StartGateway]:
    """Starts one with other settings before the same catalog; it ends with the test."""
    with ExitStack() as stack:

        def start(catalogs: Any = None, *, url: str = "", **sections: Any) -> Caller:
            given = {"prod": way.url} if catalogs is None else catalogs
            return Caller(stack.enter_context(running_gateway(url or ledger, given, **sections)))

        yield start


@pytest.fixture
def scene(direct: Caller) -> Scene:
    return Scene(direct)


@pytest.fixture
def rows(ledger: str) -> Rows:
    """What the ledger has of a key."""

    def find(key: str) -> list[dict[str, Any]]:
        query = """
            SELECT *, http_status IS NULL AND lease_expires_at <= now() AS abandoned
            FROM idempotency_records WHERE idempotency_key = %s ORDER BY created_at"""
        with psycopg.connect(ledger, row_factory=dict_row) as connection:
            return connection.execute(query, [key]).fetchall()

    return find
