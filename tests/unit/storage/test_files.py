"""Local files as tables name them."""

from pathlib import Path

import pytest

from moraine.storage.files import (
    DELETED,
    MISSING,
    UnsupportedStorage,
    delete_files,
    local_path,
    read_file,
    remaining_files,
)


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file:///a/b%20c d#e?f", "/a/b%20c d#e?f"),
        ("file:/a/ünï", "/a/ünï"),
    ],
)
def test_locations_name_files_without_decoding(location: str, path: str) -> None:
    assert local_path(location) == path


@pytest.mark.parametrize("location", ["s3://b/k", "hdfs://h/x", "relative/x", "", "file:x"])
def test_other_stores_are_refused_by_name(location: str) -> None:
    with pytest.raises(UnsupportedStorage):
        local_path(location)


def test_a_deleted_file_takes_its_checksum_along(tmp_path: Path) -> None:
    (tmp_path / "f.parquet").touch()
    (tmp_path / ".f.parquet.crc").touch()
    (tmp_path / "neighbour").touch()

    assert delete_files([f"file:{tmp_path}/f.parquet"]) == [DELETED]

    assert [path.name for path in tmp_path.iterdir()] == ["neighbour"]


def test_outcomes_come_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    paths = [str(tmp_path / name) for name in ("file", "gone", "folder")]

    deleted, missing, refused = delete_files(paths)

    assert (deleted, missing) == (DELETED, MISSING)
    assert refused not in (DELETED, MISSING)
    assert remaining_files(paths) == [paths[2]]


def test_a_dangling_link_is_a_file_that_is_still_there(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert remaining_files([str(tmp_path / "link")]) == [str(tmp_path / "link")]


def test_a_missing_file_reads_as_none(tmp_path: Path) -> None:
    assert read_file(f"file://{tmp_path}/none") is None
