"""One API with a policy for each module; tests have tables of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from moraine.local.stack import Stack
from support.access import AccessSite, running_site

_numbers = itertools.count(1)
POLICY = """
[[rules]]
subjects = ["polaris", "alice", "bob"]
actions = ["*"]

[[rules]]
subjects = ["shopkeeper"]
actions = ["tasks:*"]
tables = ["demo.shop.**", "prod.shop.**"]

[[rules]]
effect = "deny"
subjects = ["shopkeeper"]
actions = ["*"]
tables = ["demo.shop.secret*", "prod.shop.secret*"]
"""


@pytest.fixture(scope="module")
def site(postgres: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccessSite]:
    with running_site(postgres, tmp_path_factory.mktemp("site"), POLICY) as site:
        yield site


@pytest.fixture
def table() -> str:
    return f"t{next(_numbers)}"


@pytest.fixture
def secret_table() -> str:
    """One that the policy keeps from the shopkeeper."""
    return f"secret{next(_numbers)}"
