"""A process that can write to the workspace or the warehouse while Moraine deletes."""

from __future__ import annotations

import functools
import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uuid6

from moraine.ingest.staging import StagedFile, staging_folder
from moraine.operations.purge import executor_work
from moraine.operations.purge.errors import InventoryChanged
from moraine.operations.purge.executor_work import Assignment
from moraine.operations.purge.inventory import (
    commit_slices,
    paths_to_delete,
    read_digests,
    render_digests,
)
from moraine.operations.purge.job import Executors, Outcomes
from moraine.operations.purge.model import FileKind, FileTotals, InventorySummary, Phase
from moraine.storage import disk
from moraine.storage.credentials import Credentials
from moraine.storage.locations import Roots
from moraine.storage.stores import DELETED, Failure, Storage
from moraine.tasks.model import Claim, NewTask
from moraine.tasks.store import TaskStore


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """As careless as an operator may be."""
    before = os.umask(0)
    yield
    os.umask(before)


def files_in(folder: Path, *names: str) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("12345")
    return [str(folder / name) for name in names]


# --- The workspace ---------------------------------------------------------------------------


@dataclass
class Purge:
    """A planned purge of the files of a table, and the folder of its inventory."""

    store: TaskStore
    claim: Claim
    folder: Path
    table: Path
    digests: dict[str, str]

    @property
    def summary(self) -> InventorySummary:
        kinds = {FileKind.DATA: FileTotals(files=3, bytes=15)}
        digest = sha256(render_digests(self.digests)).hexdigest()
        return InventorySummary.of(str(self.folder), kinds, 1.0, digest)

    @property
    def slice(self) -> Path:
        [only] = (self.folder / "phase=content").glob("*.parquet")
        return only

    def assignment(self) -> Assignment:
        fence = self.store.fence(self.claim, timedelta(seconds=1))
        storage = functools.partial(Storage, Credentials(), bounds=Roots.of([str(self.table)]))
        return Assignment(fence, storage, read_digests(self.summary), max_named=5)

    def run(self) -> Outcomes:
        executors = Executors(self.summary, 1000, None)
        return executors.delete_phase(Phase.CONTENT, [], self.assignment())


@pytest.fixture
def purge(store: TaskStore, tmp_path: Path) -> Purge:
    task_id = uuid.UUID(int=uuid6.uuid7().int)
    store.add(NewTask(task_id, "demo", "TABLE_PURGE", {}, "demo.shop.orders"))
    task = store.claim_one(task_id, "worker")
    assert task is not None
    claim = store.start(Claim(task_id, task.version, "worker"))
    table, folder = tmp_path / "table", tmp_path / "workspace" / "tasks" / "t" / "inventory-1"
    paths = files_in(table, "a", "b", "c")
    rows = {
        "path": pa.array(paths),
        "code": pa.array([FileKind.DATA.number] * 3, pa.int32()),
        "size": pa.array([5] * 3, pa.int64()),
    }
    written = executor_work.write_slices(
        Roots.of([str(table)]),
        functools.partial(Storage, Credentials()),
        str(folder),
        iter(pa.table(rows).to_batches()),
    )
    counted = [row for batch in written for row in batch.to_pylist()]
    digests = {row["slice"]: row["digest"] for row in counted}
    commit_slices(str(folder), digests, digests)
    return Purge(store, claim, folder, table, digests)


def add_a_row(purge: Purge) -> None:
    """Of the same table, so that its folders do not protect it."""
    [path] = files_in(purge.table, "written since")
    rows = pq.ParquetFile(purge.slice).read()
    added = {"path": [path], "kind": ["data"], "size": [5], "outside": [False]}
    together = pa.concat_tables([rows, pa.table(added, schema=rows.schema)])
    pq.write_table(together, purge.slice)


def remove_a_row(purge: Purge) -> None:
    """So that a file stays, and the purge says that all are gone."""
    rows = pq.ParquetFile(purge.slice).read()
    pq.write_table(rows.slice(1), purge.slice)


def remove_a_slice(purge: Purge) -> None:
    purge.slice.unlink()


def swap_the_folder(purge: Purge) -> None:
    """For a symlink to one that another process wrote."""
    add_a_row(purge)
    elsewhere = purge.folder.parent / "elsewhere"
    (purge.folder / "phase=content").rename(elsewhere)
    (purge.folder / "phase=content").symlink_to(elsewhere)


CHANGES: list[Callable[[Purge], None]] = [
    add_a_row,
    remove_a_row,
    remove_a_slice,
    swap_the_folder,
]


@pytest.mark.parametrize("change", CHANGES)
def test_the_workspace_does_not_decide_what_is_deleted(
    purge: Purge, change: Callable[[Purge], None]
) -> None:
    change(purge)
    with pytest.raises(InventoryChanged):
        purge.run()
    assert {path.name for path in purge.table.iterdir()} >= {"a", "b", "c"}
    assert purge.store.finished_slices(purge.claim.task_id, [Phase.CONTENT]) == []


def test_a_slice_that_was_not_planned_is_left_alone(purge: Purge) -> None:
    files_in(purge.table, "written since")
    rows = pq.ParquetFile(purge.slice).read().slice(0, 1)
    path = pa.array([str(purge.table / "written since")])
    pq.write_table(rows.set_column(0, "path", path), purge.slice.with_name("b.parquet"))
    purge.run()
    assert {path.name for path in purge.table.iterdir()} == {"written since"}


def test_executors_of_spark_compare_what_they_got(purge: Purge) -> None:
    """They read the files of the workspace by themselves."""
    add_a_row(purge)
    rows = pq.ParquetFile(purge.slice).read()
    name = f"content/{purge.slice.name}"
    columns = [pa.repeat("content", len(rows)), pa.repeat(name, len(rows)), rows["path"]]
    batch = pa.Table.from_arrays([*columns, rows["size"]], schema=executor_work.FILES)
    results = executor_work.work_in_spark(
        purge.assignment(), executor_work.delete_slice, iter(batch.to_batches())
    )
    [answer] = [row for result in results for row in result.to_pylist()]
    assert (answer["slice"], answer["changed"]) == (name, True)
    assert len(list(purge.table.iterdir())) == 4


def test_a_slice_that_spark_does_not_find_is_missed(
    purge: Purge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its files stay, and the purge says that all are gone."""
    monkeypatch.setattr(Executors, "run_on_spark", lambda *_arguments: Outcomes())
    session: Any = object()
    executors = Executors(purge.summary, 0, session)
    outcomes = executors.delete_phase(Phase.CONTENT, [], purge.assignment())
    assert outcomes.changed == [f"content/{purge.slice.name}"]
    assert not executors.delete_phase(
        Phase.CONTENT, [f"content/{purge.slice.name}"], purge.assignment()
    ).changed


@pytest.mark.parametrize("change", [add_a_row, remove_a_row, remove_a_slice, swap_the_folder])
def test_the_check_of_neighbours_reads_what_was_planned(
    purge: Purge, change: Callable[[Purge], None]
) -> None:
    """Otherwise a row is hidden from the check, and is there again for the delete."""
    change(purge)
    with pytest.raises(InventoryChanged):
        list(paths_to_delete(str(purge.folder), purge.digests))


def test_the_list_of_digests_is_that_of_the_ledger(purge: Purge) -> None:
    add_a_row(purge)
    rows = pq.ParquetFile(purge.slice).read()
    forged = {f"content/{purge.slice.name}": executor_work.digest_of_rows(rows)}
    (purge.folder / "_digests.json").write_text(json.dumps(forged))
    with pytest.raises(InventoryChanged):
        purge.run()
    assert len(list(purge.table.iterdir())) == 4


def test_an_inventory_as_planned_is_deleted(purge: Purge) -> None:
    assert [len(paths) for paths in paths_to_delete(str(purge.folder), purge.digests)] == [3]
    outcomes = purge.run()
    assert (outcomes.changed, outcomes.failed) == ([], 0)
    assert list(purge.table.iterdir()) == []


def test_inventories_and_bodies_are_private(purge: Purge, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    with StagedFile(staging_folder(str(workspace))) as body:
        body.write(b"{}")
        body.finish()
    found = [workspace, *workspace.rglob("*")]
    assert len(found) > 6
    assert [path for path in found if path.stat().st_mode & 0o077] == []


# --- The warehouse ---------------------------------------------------------------------------


def test_a_tables_folder_that_becomes_a_link_leads_nowhere(tmp_path: Path) -> None:
    """Also to another table: the folder is fixed when the catalog's rules are checked."""
    table, other = tmp_path / "t", tmp_path / "other"
    locations = files_in(table, "a")
    [foreign] = files_in(other, "a")
    bounds = Roots.of([str(table)]).fixed()
    table.rename(tmp_path / "moved")
    table.symlink_to(other)
    with Storage(Credentials(), bounds=bounds) as storage:
        [outcome] = storage.delete(locations)
    assert isinstance(outcome, Failure)
    assert outcome.refused
    assert Path(foreign).exists()


def test_a_link_above_the_warehouse_is_the_operators(tmp_path: Path) -> None:
    files_in(tmp_path / "disk" / "t" / "data", "a")
    (tmp_path / "wh").symlink_to(tmp_path / "disk")
    bounds = Roots.of([f"{tmp_path}/wh/t"]).fixed()
    with Storage(Credentials(), bounds=bounds) as storage:
        assert storage.delete([f"{tmp_path}/wh/t/data/a"]) == [DELETED]
    assert not (tmp_path / "disk" / "t" / "data" / "a").exists()


@pytest.mark.parametrize("moment", ["after the links were resolved", "at the last moment"])
def test_a_folder_swapped_between_check_and_delete_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    table = tmp_path / "t"
    locations = files_in(table / "data", "a")
    [foreign] = files_in(tmp_path / "foreign", "a")

    def swap() -> None:
        if not (table / "data").is_symlink():
            (table / "data").rename(tmp_path / "moved")
            (table / "data").symlink_to(tmp_path / "foreign")

    if moment == "at the last moment":
        unlink = os.unlink

        def late(*path: Any, **options: Any) -> None:
            swap()
            unlink(*path, **options)

        monkeypatch.setattr(disk.os, "unlink", late)
    else:
        enter = disk._Folders._enter

        def swap_first(self: disk._Folders, real: str) -> int:
            swap()
            return enter(self, real)

        monkeypatch.setattr(disk._Folders, "_enter", swap_first)
    bounds = Roots.of([str(table)]).fixed()
    with Storage(Credentials(), bounds=bounds) as storage:
        storage.delete(locations)
    assert Path(foreign).exists()
