"""What a Storage promises on the local disk alone."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from moraine.errors import StorageRefused
from moraine.storage.stores import DELETED, MISSING, Failure
from support.storage_places import DiskPlace


def test_disk_storage_deletes_a_file_with_its_checksum(tmp_path: Path) -> None:
    place = DiskPlace(tmp_path)
    names = [f"{folder}/{number}" for folder in ("a", "b", "c") for number in range(5)]
    paths = place.put(*names, "lone/x")
    place.put(*(name.replace("/", "/.") + ".crc" for name in names), "lone/.x.crc")
    place.put("a/.neighbour.crc", "a/neighbour")
    Path(paths[0].removeprefix("file:")).unlink()

    outcomes = place.storage.delete(paths)

    assert outcomes == [MISSING] + [DELETED] * 15
    assert place.names() == {"a/.neighbour.crc", "a/neighbour"}


def test_disk_storage_finds_checksums_in_folders_too_large_to_list(tmp_path: Path) -> None:
    place = DiskPlace(tmp_path)
    place.put(*(f"other-{number}" for number in range(1100)))
    paths = place.put("1", "2", "3")
    place.put(".1.crc", ".2.crc", ".3.crc")
    assert place.storage.delete(paths) == [DELETED] * 3
    assert not any(name.endswith(".crc") for name in place.names())


def test_disk_storage_refusal_is_final(tmp_path: Path) -> None:
    place = DiskPlace(tmp_path)
    (tmp_path / "folder").mkdir()
    names = ["folder", "x" * 300, "nul\0", "folder/", "gone/.."]

    outcomes = place.storage.delete([f"{place.base}/{name}" for name in names])

    assert all(isinstance(found, Failure) and found.refused for found in outcomes[:3]), outcomes
    assert DELETED not in outcomes
    assert (tmp_path / "folder").is_dir()


def test_disk_storage_deletes_a_link_and_not_its_target(tmp_path: Path) -> None:
    place = DiskPlace(tmp_path)
    place.put("target")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    links = [f"{place.base}/link", f"{place.base}/dangling"]
    assert place.storage.remaining(links) == links
    assert place.storage.delete(links) == [DELETED] * 2
    assert place.names() == {"target"}


def test_disk_storage_retries_a_delete_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = DiskPlace(tmp_path)
    paths = place.put("a", "b")
    unlink, tries = os.unlink, itertools.count()

    def shaky(path: str, *, dir_fd: int) -> None:
        if path == "b" and next(tries) < 2:
            raise OSError(5, "Input/output error")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", shaky)
    assert place.storage.delete(paths) == [DELETED] * 2
    assert place.names() == set()


def test_disk_storage_does_not_list_links_and_names_that_are_no_text(tmp_path: Path) -> None:
    place = DiskPlace(tmp_path)
    place.put("a/file")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a" / "file")
    (tmp_path / "folder").symlink_to(tmp_path / "a")
    (tmp_path / "a" / os.fsdecode(b"\xff.ndjson")).touch()
    os.mkfifo(tmp_path / "a" / "pipe")

    found = [file.location for page in place.storage.files_below(place.base) for file in page]

    assert found == [f"{place.base}/a/file"]
    assert place.storage.folders_in(place.base) == ["a"]
    assert place.storage.look(f"{place.base}/a/link") is None
    with pytest.raises(StorageRefused):
        list(place.storage.chunks(f"{place.base}/a/link", 1))
