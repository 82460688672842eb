"""What every test of a failure begins with."""

from __future__ import annotations

import pytest

from support.gateway_fixtures import direct, gateway_stack, ledger, rows, running_way, scene, way
from support.platform import Platform, checksums
from support.purges import Purge

__all__ = ["direct", "gateway_stack", "ledger", "rows", "running_way", "scene", "way"]


@pytest.fixture
def purge(platform: Platform) -> Purge:
    table = platform.write_table()
    files = table.files()
    others = {p: c for p, c in checksums(platform.warehouse).items() if p not in files}
    return Purge(platform, table, files, others)
