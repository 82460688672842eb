"""Locations as tables write them, and which of them lie in a table's folders."""

import os
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moraine.storage.files import UnsupportedStorage
from moraine.storage.locations import Location, Roots, parse_location


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("/a/b", Location("file", "", "/a/b")),
        ("file:/a/b", Location("file", "", "/a/b")),
        ("file:///a/b", Location("file", "", "/a/b")),
        ("FILE:/a/B", Location("file", "", "/a/B")),
        ("s3://b/k", Location("s3", "b", "k")),
        ("s3a://b/k", Location("s3", "b", "k")),
        ("S3N://b/k/", Location("s3", "b", "k/")),
        ("s3://b", Location("s3", "b", "")),
        ("s3://b//k", Location("s3", "b", "/k")),
        ("s3://b/a b%20c+d#e?f/ü", Location("s3", "b", "a b%20c+d#e?f/ü")),
        ("gs://b/k", Location("gs", "b", "k")),
        ("gcs://b/k", Location("gs", "b", "k")),
        (
            "abfss://c@acc.dfs.core.windows.net/k",
            Location("azure", "c@acc.dfs.core.windows.net", "k"),
        ),
        (
            "wasbs://c@ACC.blob.core.windows.net/k",
            Location("azure", "c@acc.dfs.core.windows.net", "k"),
        ),
        ("az://c/k", Location("azure", "c", "k")),
    ],
)
def test_locations_are_parsed_without_decoding(text: str, location: Location) -> None:
    assert parse_location(text) == location
    assert parse_location(str(location)) == location


@pytest.mark.parametrize(
    "text", ["", "relative/x", "hdfs://h/x", "s3:/b/k", "s3://", "s3:///k", "file:x", "C:\\x"]
)
def test_locations_of_unknown_stores_are_refused(text: str) -> None:
    with pytest.raises(UnsupportedStorage):
        parse_location(text)


INSIDE = [
    "s3://b/wh/t/x",
    "s3a://b/wh/t/data/p=1/x.parquet",
    "s3n://b/wh//t/./x",
    "s3://b/wh/t/a/../x",
    "s3://b/wh/t/data/ts=10%3A00/x",
    "s3://b/wh/t/100%/x",
    "s3://b/wh/t/.hidden",
    "s3://b/wh/t/a b+c#d?e/ü",
    "s3://b/wh/t/..x",
]
OUTSIDE = [
    "s3://b/wh/t",
    "s3://b/wh/t/",
    "s3://b/wh/t2/x",
    "s3://b/wh/T/x",
    "s3://c/wh/t/x",
    "gs://b/wh/t/x",
    "/wh/t/x",
    "s3://b/wh/t/../u/x",
    "s3://b/wh/t/../t/../../x",
    "s3://b/wh/t/%2e%2e/u/x",
    "s3://b/wh/t/..%2fu/x",
    "s3://b/wh/t/%252e%252e%252fu/x",
    "s3://b/wh/t/..\\u\\x",
    "s3://b/wh/t/%" + "25" * 100 + "2e/x",
    "s3://b/wh/%74/x",
    "s3://b/wh/t/x/",
    "s3://b/wh/t/x/.",
    "s3://b/wh/t/x/..",
    "s3://b/wh/t/%2e%2e",
    "s3://b/../b/wh/t/x",
    "s3://b/wh/t/a\0b",
    "relative",
    "hdfs://b/wh/t/x",
    "",
]


@pytest.mark.parametrize("path", INSIDE)
def test_files_of_the_table_are_inside(path: str) -> None:
    assert Roots.of(["s3a://b/wh/t/"]).contains(path)


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_with_a_reading_in_another_folder_are_outside(path: str) -> None:
    assert not Roots.of(["s3a://b/wh/t/"]).contains(path)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_outside_agrees_with_contains_on_many_paths(kind: pa.DataType) -> None:
    roots = Roots.of(["s3://b/wh/t", "/wh/t", "s3://b/other//u/"])
    paths = [*INSIDE, *OUTSIDE, "s3://b/other//u/x", "s3://b/other/u/x", "/wh/t/x", "file:/wh/t/x"]
    paths += [None, "file:///wh/t/%2e%2e/x", "/wh/t/a/../x", "file:///wh/t/x", "s3://b/s", "s"]
    wanted = [path is None or not roots.contains(path) for path in paths]
    assert not all(wanted)

    assert roots.outside(pa.array(paths, kind)).to_pylist() == wanted
    chunks = pa.chunked_array([paths[:7], [], paths[7:]], kind)
    assert roots.outside(chunks).to_pylist() == wanted
    assert roots.outside(pa.chunked_array([], kind)).to_pylist() == []


PARTS = st.sampled_from(
    ["a", "b", "..", ".", "", "%2e%2e", "%2F", "%", "\\", "x y", "t", "wh", "%252e%252e"]
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(PARTS, max_size=6).map("/".join),
    st.sampled_from(["s3://b/wh/t/", "s3a://b/", "/wh/t/", "file:/wh/t/", "s3://b/wh/%74/"]),
)
def test_outside_agrees_with_contains_on_any_path(rest: str, start: str) -> None:
    roots = Roots.of(["s3://b/wh/t", "/wh/t"])
    path = start + rest

    inside = roots.contains(path)

    assert roots.outside(pa.array([path])).to_pylist() == [not inside]
    if inside:
        resolved = os.path.normpath("/" + parse_location(path).key.lstrip("/"))
        assert resolved.startswith("/wh/t/")


def test_a_folder_given_with_percent_signs_means_them() -> None:
    roots = Roots.of(["/wh/my%20table"])
    assert roots.contains("/wh/my%20table/x")
    assert not roots.contains("/wh/my table/x")


def test_links_are_followed_to_the_folder_but_not_from_the_file(tmp_path: Path) -> None:
    table, elsewhere = tmp_path / "wh" / "t", tmp_path / "elsewhere"
    (table / "data").mkdir(parents=True)
    elsewhere.mkdir()
    (table / "away").symlink_to(elsewhere)
    (table / "within").symlink_to(table / "data")
    (table / "link").symlink_to(elsewhere / "file")
    paths = {
        f"{table}/data/x": True,
        f"{table}/away/x": False,
        f"{table}/away/deeper/x": False,
        # The system goes where the link leads, and up from there.
        f"{table}/away/../x": False,
        f"{table}/within/x": True,
        f"{table}/link": True,
        f"file:{table}/away/x": False,
        f"file://{table}/not/there/x": True,
    }
    roots = Roots.of([f"file://{table}"])

    assert {path: roots.contains(path) for path in paths} == paths
    assert roots.outside(pa.array(list(paths))).to_pylist() == [not i for i in paths.values()]


def test_a_root_that_is_a_link_contains_its_target(tmp_path: Path) -> None:
    (tmp_path / "disk" / "t").mkdir(parents=True)
    (tmp_path / "wh").symlink_to(tmp_path / "disk")
    assert Roots.of([f"{tmp_path}/wh/t"]).contains(f"{tmp_path}/wh/t/x")


def test_a_whole_store_is_a_root_only_if_it_was_given() -> None:
    assert Roots.of(["s3://b"]).contains("s3://b/x")
    assert Roots.of(["s3://b/"]).contains("s3a://b/deep/er/x")
    assert Roots.of(["/"]).contains("/x")
    for location in ("s3://b/t/..", "s3://b/t/%2e%2e", "s3://b/../c", "s3://b/.", "/t/.."):
        with pytest.raises(UnsupportedStorage):
            Roots.of([location])


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("s3://b/wh/t", "s3a://b/wh/t/", True),
        ("s3://b/wh/t", "s3://b/wh", True),
        ("s3://b/wh", "s3://b/wh/t", True),
        ("s3://b/wh/t", "s3://b/wh/t2", False),
        ("s3://b/wh/t", "s3://c/wh/t", False),
        ("s3://b/wh/%74", "s3://b/wh/t", True),
        ("/wh/t", "file:///wh/t/x/..", True),
        ("/wh/t", "s3://wh/t", False),
    ],
)
def test_folders_overlap_if_one_lies_in_the_other(one: str, other: str, overlap: bool) -> None:
    assert Roots.of([one]).overlaps(Roots.of(["gs://x/y", other])) is overlap


def test_folders_overlap_through_links(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "t")
    assert Roots.of([f"{tmp_path}/link/a"]).overlaps(Roots.of([f"{tmp_path}/t"]))


def test_roots_survive_being_stored_and_sent() -> None:
    roots = Roots.of(["s3a://b/wh/t/", "file:///wh/t", "abfss://c@a.dfs.core.windows.net/t"])
    assert roots.contains("/wh/t/x")
    assert Roots.of(roots.listed) == roots
    assert pickle.loads(pickle.dumps(roots)) == roots
    assert pickle.loads(pickle.dumps(roots)).contains("s3://b/wh/t/x")
    assert Roots.of(["s3://b/t", "s3n://b/t/"]).listed == ["s3://b/t"]
