"""What an executor does with its slices: on a real disk, under a real ledger's fence."""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import uuid6

from moraine.operations.purge import executor_work
from moraine.operations.purge.executor_work import Assignment, SliceWork
from moraine.operations.purge.model import Phase
from moraine.storage.credentials import Credentials
from moraine.storage.stores import Storage
from moraine.tasks.model import Claim, NewTask
from moraine.tasks.store import TaskStore
from support.platform import Failpoints

BATCH = "purge.delete.batch.before"


@pytest.fixture
def claim(store: TaskStore) -> Claim:
    task_id = uuid.UUID(int=uuid6.uuid7().int)
    store.add(NewTask(task_id, "demo", "TABLE_PURGE", {}, "demo.shop.orders"))
    task = store.claim_one(task_id, "first")
    assert task is not None
    return store.start(Claim(task_id, task.version, "first"))


@pytest.fixture
def failpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Failpoints]:
    folder = tmp_path / "failpoints"
    folder.mkdir()
    monkeypatch.setenv("MORAINE_FAILPOINTS", str(folder))
    points = Failpoints(folder)
    yield points
    points.clear()


class Files:
    """Files of three slices, one for each phase."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.rows: list[dict[str, Any]] = []
        for phase in (Phase.CONTENT, Phase.MANIFESTS, Phase.OLD_METADATA):
            for number in range(3):
                path = folder / f"{phase}-{number}"
                path.write_text("12345")
                self.rows.append(
                    {"stage": phase, "slice": f"{phase}/part-0", "path": str(path), "size": 5}
                )

    def of(self, phase: Phase) -> list[Path]:
        return [Path(row["path"]) for row in self.rows if row["stage"] == phase]

    def digests(self) -> dict[str, str]:
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            found.setdefault(row["slice"], []).append(row)
        return {
            name: executor_work.digest_of([r["path"] for r in rows], [r["size"] for r in rows])
            for name, rows in found.items()
        }

    def left(self) -> list[str]:
        return [Path(row["path"]).name for row in self.rows if Path(row["path"]).exists()]

    def work(
        self, store: TaskStore, claim: Claim, work: SliceWork = executor_work.delete_slice
    ) -> list[dict[str, Any]]:
        assignment = Assignment(
            store.fence(claim, timedelta(seconds=1)),
            functools.partial(Storage, Credentials()),
            digests=self.digests(),
            max_named=2,
        )
        batch = pa.RecordBatch.from_pylist(self.rows)
        # Slices do not end where batches do.
        batches = iter([batch.slice(0, 4), batch.slice(4)])
        ends = executor_work.work_on_slices(assignment, work, batches)
        return [row for end in ends for row in end.to_pylist()]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "table")


def counted(store: TaskStore, claim: Claim) -> dict[str, tuple[int, int, int]]:
    return {
        stage: (counts.files_done, counts.files_missing, counts.bytes_done)
        for stage, counts in store.slice_totals(claim.task_id).items()
    }


def take_over(store: TaskStore, ledger_url: str, task_id: uuid.UUID) -> Claim:
    with psycopg.connect(ledger_url, autocommit=True) as database:
        database.execute("UPDATE tasks SET lease_expires_ts = now() - interval '1 second'")
    task = store.claim_one(task_id, "second")
    assert task is not None
    return store.start(Claim(task_id, task.version, "second"))


def test_purge_executors_delete_and_count_slices(
    store: TaskStore, claim: Claim, files: Files
) -> None:
    files.of(Phase.CONTENT)[1].unlink()

    ends = files.work(store, claim)

    assert [(end["failed"], end["stopped"]) for end in ends] == [(0, None)] * 3
    assert files.left() == []
    assert counted(store, claim) == {
        "content": (2, 1, 10),
        "manifests": (3, 0, 15),
        "old_metadata": (3, 0, 15),
    }
    finished = store.finished_slices(claim.task_id, list(Phase))
    assert sorted(finished) == ["content/part-0", "manifests/part-0", "old_metadata/part-0"]


def test_purge_executors_count_what_a_lost_attempt_deleted_once(
    store: TaskStore, ledger_url: str, claim: Claim, files: Files, failpoints: Failpoints
) -> None:
    failpoints.hold_at("purge.delete.batch.after")
    lost = threading.Thread(target=files.work, args=(store, claim), daemon=True)
    lost.start()
    failpoints.wait_until_hit("purge.delete.batch.after")
    assert counted(store, claim)["content"] == (0, 0, 0), "deleted, but not reported"

    successor = take_over(store, ledger_url, claim.task_id)
    files.work(store, successor)
    failpoints.clear()
    lost.join(timeout=20)

    assert files.left() == []
    assert set(counted(store, claim).values()) == {(3, 0, 15)}


def test_purge_executors_send_no_batch_of_a_lost_lease(
    store: TaskStore, ledger_url: str, claim: Claim, files: Files, failpoints: Failpoints
) -> None:
    failpoints.hold_at(BATCH)
    ends: list[dict[str, Any]] = []
    lost = threading.Thread(target=lambda: ends.extend(files.work(store, claim)), daemon=True)
    lost.start()
    failpoints.wait_until_hit(BATCH)

    successor = take_over(store, ledger_url, claim.task_id)
    files.work(store, successor)
    assert files.left() == []
    # What another writer puts here now must not be deleted by the lost attempt.
    files.of(Phase.CONTENT)[0].write_text("of another writer")
    failpoints.clear()
    lost.join(timeout=20)

    assert [(end["failed"], end["stopped"]) for end in ends] == [(0, "lost")]
    assert files.left() == ["content-0"]
    assert counted(store, claim)["content"] == (3, 0, 15)


def test_purge_executors_see_a_cancel_before_the_next_request(
    store: TaskStore, claim: Claim, files: Files, failpoints: Failpoints
) -> None:
    failpoints.hold_at("purge.delete.batch.after")
    ends: list[dict[str, Any]] = []
    working = threading.Thread(target=lambda: ends.extend(files.work(store, claim)), daemon=True)
    working.start()
    failpoints.wait_until_hit("purge.delete.batch.after")
    store.request_cancel(claim.task_id)
    failpoints.clear()
    working.join(timeout=20)

    assert [end["stopped"] for end in ends] == [None, "cancelled"]
    assert files.left() == [
        f"{phase}-{n}" for phase in ("manifests", "old_metadata") for n in range(3)
    ]
    assert counted(store, claim) == {"content": (3, 0, 15), "manifests": (0, 0, 0)}


def test_purge_executors_keep_the_files_that_name_a_remaining_file(
    store: TaskStore, claim: Claim, files: Files
) -> None:
    stubborn = files.of(Phase.CONTENT)
    for path in stubborn:
        path.unlink()
        path.mkdir()

    (end,) = files.work(store, claim)

    assert (end["failed"], end["refused"], end["stopped"]) == (3, True, None)
    assert end["paths"] == [str(path) for path in stubborn[:2]], "named up to a number"
    assert end["reasons"] == ["Is a directory"] * 2
    assert all(path.exists() for path in files.of(Phase.MANIFESTS))
    assert store.finished_slices(claim.task_id, list(Phase)) == []


def test_purge_executors_list_files_that_are_still_there(
    store: TaskStore, claim: Claim, files: Files
) -> None:
    for path in files.of(Phase.CONTENT)[1:]:
        path.unlink()

    ends = files.work(store, claim, executor_work.verify_slice)

    assert [end["paths"] for end in ends] == [[str(files.of(Phase.CONTENT)[0])]]
    assert ends[0]["reasons"] == ["still there after the delete"]


def test_purge_executors_of_a_lost_attempt_stop_looking_for_files(
    store: TaskStore, ledger_url: str, claim: Claim, files: Files
) -> None:
    take_over(store, ledger_url, claim.task_id)
    (end,) = files.work(store, claim, executor_work.verify_slice)
    assert (end["failed"], end["stopped"]) == (0, "lost")
