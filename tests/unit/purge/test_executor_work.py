"""How executors cut what they find into slices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moraine.operations.purge import executor_work
from moraine.operations.purge.inventory import commit_slices
from moraine.operations.purge.model import FileKind
from moraine.storage.credentials import Credentials
from moraine.storage.locations import Roots
from moraine.storage.stores import Storage

DATA, MANIFEST = FileKind.DATA.number, FileKind.MANIFEST.number


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_work, "FILES_PER_SLICE", 10)


def write(target: Path, *rows: tuple[str | None, int, int | None]) -> list[dict[str, Any]]:
    """By one task, in batches of seven rows."""

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), 7):
            path, code, size = zip(*rows[start : start + 7], strict=True)
            columns = [
                pa.array(path, pa.string()),
                pa.array(code, pa.int32()),
                pa.array(size, pa.int64()),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=["path", "code", "size"])

    storage = partial(Storage, Credentials())
    written = executor_work.write_slices(Roots.of(["s3://lake/t"]), storage, str(target), batches())
    return [row for batch in written for row in batch.to_pylist()]


def committed(target: Path) -> dict[str, list[str]]:
    """The paths in each file of the inventory, as any reader finds them."""
    files = sorted(target.glob("phase=*/*.parquet"))
    return {file.parent.name: pq.read_table(file)["path"].to_pylist() for file in files}


def paths(count: int) -> list[str]:
    return [f"s3://lake/t/{number * 7 % count:03d}" for number in range(count)]


def test_purge_slices_are_sorted_and_of_about_the_same_size(tmp_path: Path) -> None:
    counted = write(tmp_path, *((path, DATA, 5) for path in paths(25)))
    assert sorted(row["files"] for row in counted) == [8, 8, 9]
    assert sum(row["bytes"] for row in counted) == 125
    files = list((tmp_path / executor_work.UNCOMMITTED).rglob("*.parquet"))
    slices = sorted(pq.ParquetFile(file).read()["path"].to_pylist() for file in files)
    assert [path for members in slices for path in members] == sorted(paths(25))


def test_purge_inventory_has_only_slices_of_successful_tasks(tmp_path: Path) -> None:
    write(tmp_path, ("s3://lake/t/a", DATA, 1))
    counted = write(tmp_path, ("s3://lake/t/a", DATA, 1), ("s3://lake/t/m", MANIFEST, 2))
    assert committed(tmp_path) == {}
    commit_slices(str(tmp_path), {row["slice"] for row in counted}, {})
    assert committed(tmp_path) == {
        "phase=content": ["s3://lake/t/a"],
        "phase=manifests": ["s3://lake/t/m"],
    }
    assert pq.read_table(tmp_path).num_rows == 2
    assert (tmp_path / "_SUCCESS").exists()


def test_purge_inventory_counts_files_outside_and_without_a_name_separately(tmp_path: Path) -> None:
    rows = [("s3://lake/t/a", DATA, 1), ("s3://lake/other", DATA, 2), (None, DATA, 4)]
    counted = write(tmp_path, *rows)
    counts = {row["outside"]: (row["files"], row["bytes"]) for row in counted}
    assert counts == {False: (1, 1), True: (2, 6)}
