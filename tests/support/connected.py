"""Catalogs of PyIceberg's with keys, for the tests of the client."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from moraine.client.adapter import IdempotentAdapter
from moraine.client.catalog import connect

ROWS = Schema(NestedField(1, "id", LongType(), required=False))

Connect = Callable[..., RestCatalog]

_numbers = itertools.count(1)


def new_namespace() -> str:
    """A name that no other test has."""
    return f"client{next(_numbers)}"


def connect_at_once(uri: str, *, timeout: float = 20, **options: Any) -> RestCatalog:
    """Without a wait between attempts."""
    adapter = IdempotentAdapter(uri=uri, timeout=timeout, sleep=lambda _: None)
    return connect(uri, **{"adapter": adapter, **options})
