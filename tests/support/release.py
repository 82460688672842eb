"""Ends what takes CPU time all the while, once its last test has run.

A fixture of the session ends with the session. A worker goes on for minutes after the last test of
a stack, and an idle Airflow alone takes a tenth of the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import pytest

STACKS = frozenset(
    {
        "azurite",
        "broker",
        "catalog_stack",
        "gateway_stack",
        "ingest_site",
        "nessie",
        "running_platform",
        "seaweedfs",
        "spark_stack",
    }
)


class Release:
    """Knows the last test of every stack. `group_of` says which tests one worker runs in their
    order: other groups may be another worker's, which has stacks of its own."""

    def __init__(self, items: Iterable[pytest.Item], group_of: Callable[[str], str]) -> None:
        last: dict[tuple[str, str], str] = {}
        for item in items:
            for stack in STACKS.intersection(getattr(item, "fixturenames", ())):
                last[group_of(item.nodeid), stack] = item.nodeid
        self._ending: dict[str, set[str]] = defaultdict(set)
        for (_, stack), nodeid in last.items():
            self._ending[nodeid].add(stack)

    def after(self, item: pytest.Item) -> None:
        """What depends on a stack ends with it; a later test would start it again."""
        for stack in sorted(self._ending.get(item.nodeid, ())):
            for definition in _definitions(item, stack):
                definition.finish(item._request)


def _definitions(item: pytest.Item, name: str) -> Iterator[pytest.FixtureDef[object]]:
    found = item.session._fixturemanager.getfixturedefs(name, item)
    yield from (definition for definition in found or () if definition.scope == "session")
