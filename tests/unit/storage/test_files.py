"""Local files as tables name them."""

from pathlib import Path

import pytest

from moraine.storage.files import UnsupportedStorage, local_path, read_file


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


def test_a_missing_file_reads_as_none(tmp_path: Path) -> None:
    assert read_file(f"file://{tmp_path}/none") is None
