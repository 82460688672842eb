"""A store that was opened with bounds deletes nothing outside of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moraine.storage.credentials import Credentials
from moraine.storage.disk import LocalDeletion
from moraine.storage.locations import Roots
from moraine.storage.outcomes import DELETED, Failure, Outcome
from moraine.storage.stores import Storage


def write(*files: Path) -> list[str]:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    return [f"file:{file}" for file in files]


def is_outside(outcome: Outcome) -> bool:
    return isinstance(outcome, Failure) and outcome.refused and "outside" in outcome.reason


def test_files_outside_are_refused_and_stay(tmp_path: Path) -> None:
    inside, outside = tmp_path / "t" / "a", tmp_path / "u" / "a"
    locations = write(inside, outside)
    locations.append(f"file:{tmp_path}/t/../u/a")
    heard: list[int] = []
    with Storage(Credentials(), bounds=Roots.of([f"{tmp_path}/t"])) as storage:
        first, *others = storage.delete(locations, on_batch=lambda at, _: heard.extend(at))
    assert first is DELETED
    assert all(map(is_outside, others))
    assert not inside.exists()
    assert outside.exists()
    assert sorted(heard) == [0, 1, 2]


def test_objects_outside_are_refused_without_a_request() -> None:
    """There is no server; a request would fail in another way."""
    with Storage(Credentials(), bounds=Roots.of(["s3://b/t"])) as storage:
        outcomes = storage.delete(["s3://b/u/a", "gs://b/t/a", "s3://b/t%2F..%2Fu/a"])
    assert all(map(is_outside, outcomes))


def test_a_folder_that_became_a_link_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is looked at again, right before it is deleted."""
    monkeypatch.setattr("moraine.storage.stores.FILES_PER_BATCH", 1)
    foreign = tmp_path / "foreign" / "b"
    locations = write(tmp_path / "t" / "one" / "a", tmp_path / "t" / "two" / "b")
    write(foreign)
    delete = LocalDeletion.delete

    def swap(self: LocalDeletion, paths: list[str], *is_allowed: Any) -> list[Outcome]:
        outcomes = delete(self, paths, *is_allowed)
        if (two := tmp_path / "t" / "two").is_dir() and not two.is_symlink():
            (two / "b").unlink()
            two.rmdir()
            two.symlink_to(tmp_path / "foreign")
        return outcomes

    monkeypatch.setattr(LocalDeletion, "delete", swap)
    with Storage(Credentials(), bounds=Roots.of([f"{tmp_path}/t"])) as storage:
        first, second = storage.delete(locations)
    assert first is DELETED
    assert is_outside(second)
    assert foreign.exists()
