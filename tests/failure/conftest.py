"""What every test of a failure begins with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.platform import Platform, checksums
from support.purges import Purge


@pytest.fixture
def purge(platform: Platform) -> Iterator[Purge]:
    table = platform.write_table()
    files = table.files()
    others = {p: c for p, c in checksums(platform.warehouse).items() if p not in files}
    yield Purge(platform, table, files, others)
    # Whatever the test left undone is not the next one's business.
    platform.failpoints.clear()
