"""Every worker must find the same tests under the same names, whenever and wherever it looks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLLECT = ("-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider")


def collect(temporary: Path, hash_seed: int) -> list[str]:
    """The ids of all tests, as a process finds them that has another order of sets, another
    folder for temporary files, and is started at another time."""
    temporary.mkdir()
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "TMPDIR": str(temporary)}
    found = subprocess.run(
        [sys.executable, *COLLECT], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
    return [line for line in found.stdout.splitlines() if "::" in line]


def test_collected_ids_do_not_depend_on_time_order_or_place(tmp_path: Path) -> None:
    # One after the other, so that the clock shows other seconds.
    first, second = (collect(tmp_path / str(seed), seed) for seed in (1, 2))
    assert len(first) > 1000
    assert [one for one, times in Counter(first).items() if times > 1] == [], (
        "a worker runs it once"
    )
    assert [pair for pair in zip(first, second, strict=True) if len(set(pair)) > 1] == []
