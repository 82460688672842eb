"""What the tests of the typed client have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from moraine.catalog.iceberg import IcebergCatalog

SET_OWNER = [{"action": "set-properties", "updates": {"owner": "me"}}]

MakeClient = Callable[..., IcebergCatalog]

_numbers = itertools.count(1)


def new_namespace() -> str:
    """A name that no other test has."""
    return f"typed{next(_numbers)}"
