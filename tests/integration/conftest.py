from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.stores import (
    fault_proxy,
    lake,
    nessie,
    running_fault_proxy,
    running_vending_catalog,
    s3_catalog,
    seaweedfs,
    spark,
    spark_stack,
    vending_catalog,
)

if TYPE_CHECKING:
    from support.platform import Failpoints

__all__ = [
    "fault_proxy",
    "lake",
    "nessie",
    "running_fault_proxy",
    "running_vending_catalog",
    "s3_catalog",
    "seaweedfs",
    "spark",
    "spark_stack",
    "vending_catalog",
]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def failpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Failpoints]:
    """In this process."""
    from support.platform import Failpoints  # late: most tests have no use for it

    monkeypatch.setenv("MORAINE_FAILPOINTS", str(tmp_path))
    points = Failpoints(tmp_path)
    yield points
    points.clear()
