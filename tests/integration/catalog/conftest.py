"""A real catalog, with tables made over its own API, and clients of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import requests

from moraine.catalog.client import RestCatalog
from moraine.local.stack import Stack
from moraine.settings import CatalogSettings
from support.adapted_session import FakeTime, adapter
from support.connected import Connect, connect_at_once, new_namespace
from support.gateway import SCHEMA

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def catalog_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack of which only the catalog runs."""
    with Stack.ephemeral(tmp_path_factory.mktemp("catalog")) as stack:
        stack.up({"catalog"})
        yield stack


@pytest.fixture
def catalog(catalog_stack: Stack) -> RestCatalog:
    return RestCatalog(CatalogSettings(uri=catalog_stack.catalog.url))


@pytest.fixture
def make_namespace(catalog_stack: Stack) -> Callable[..., list[str]]:
    """Makes a namespace that no other test has, below the given one."""

    def make(*parent: str, name: str = "") -> list[str]:
        levels = [*parent, name or f"n{next(_numbers)}"]
        _post(f"{catalog_stack.catalog.url}/v1/namespaces", {"namespace": levels})
        return levels

    return make


@pytest.fixture
def make_table(catalog_stack: Stack) -> Callable[..., dict[str, Any]]:
    """Makes a table, wherever it shall be; the answer is the catalog's."""

    def make(namespace: list[str], name: str, **more: Any) -> dict[str, Any]:
        path = requests.utils.quote(".".join(namespace), safe="")
        url = f"{catalog_stack.catalog.url}/v1/namespaces/{path}/tables"
        return _post(url, {"name": name, "schema": SCHEMA, **more})

    return make


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects PyIceberg to catalogs; closed when the test ends."""
    with ExitStack() as stack:

        def make(uri: str, **options: Any) -> Any:
            catalog = connect_at_once(uri, **options)
            stack.callback(catalog.close)
            return catalog

        yield make


@pytest.fixture
def namespace(catalog_stack: Stack, connect: Connect) -> str:
    name = new_namespace()
    connect(catalog_stack.catalog.url).create_namespace(name)
    return name


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def session(time: FakeTime) -> Iterator[requests.Session]:
    """With keys, and without a wait between attempts."""
    with requests.Session() as session:
        session.mount("http://", adapter(time))
        yield session


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    response = requests.post(url, json=body, timeout=30)
    assert response.status_code == 200, response.text
    return dict(response.json())
