"""Tables and folders as the index of neighbours compares them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moraine.neighbours.model import (
    MAX_PLACES,
    Canonical,
    TableName,
    merge_places,
    places_around,
)


def test_neighbour_name_has_a_key_of_its_own() -> None:
    names = [TableName(("a", "b"), "c"), TableName(("a",), "b.c"), TableName(("a.b",), "c")]
    assert len({name.key for name in names}) == 3
    assert {len(name.key) for name in names} == {32}


@pytest.mark.parametrize(
    ("folder", "place"),
    [
        ("s3://b/a/t", "s3://b/a/t/"),
        ("s3a://b/a/t/", "s3://b/a/t/"),
        ("S3N://b/a/t", "s3://b/a/t/"),
        ("gcs://b/a", "gs://b/a/"),
        ("wasbs://c@x.blob.core.windows.net/a", "azure://c@x.dfs.core.windows.net/a/"),
        ("file:/no/such/folder", "file:///no/such/folder/"),
        ("file:///no/such/../folder/", "file:///no/folder/"),
        ("/no/./such//folder", "file:///no/such/folder/"),
        ("file:/no/such%20folder", "file:///no/such folder/"),
        ("hdfs://host/a", ""),
        ("relative/a", ""),
    ],
)
def test_neighbour_folder_has_one_spelling(folder: str, place: str) -> None:
    assert Canonical().place(folder) == place


def test_neighbour_folder_with_a_long_path_is_stored_as_its_parent() -> None:
    place = Canonical().place("s3://b/a/" + "ü" * 600 + "/t")
    assert place == "s3://b/a/"


def test_neighbour_folder_that_is_a_link_is_its_target(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "t")
    canonical = Canonical()
    assert canonical.place(f"file:{tmp_path}/link/data") == f"file://{tmp_path}/t/data/"
    paths = pa.array([f"file:{tmp_path}/link/a%20b.parquet", f"{tmp_path}/t/a b.parquet"])
    assert len(set(canonical.paths(paths).to_pylist())) == 1


def test_neighbour_file_has_one_spelling() -> None:
    paths = pa.array(["s3://b/a/f.parquet", "s3a://b/a/f.parquet", "s3://b/a/g.parquet"])
    first, same, other = Canonical().paths(paths).to_pylist()
    assert first == same == "s3://b/a/f.parquet"
    assert other != first
    assert Canonical().paths(pa.array([], pa.string())).to_pylist() == []


@given(
    st.sets(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4).map(tuple), max_size=300)
)
def test_neighbour_places_merged_contain_the_places_they_replace(
    folders: set[tuple[str, ...]],
) -> None:
    places = {f"s3://b/{'/'.join(folder)}/" for folder in folders}
    merged = merge_places(places)
    assert len(merged) <= MAX_PLACES
    assert all(any(place.startswith(one) for one in merged) for place in places)
    if len(places) <= MAX_PLACES:
        assert set(merged) == places


def test_neighbour_places_around_a_place() -> None:
    assert places_around("s3://b/a/t/") == ["s3://b/", "s3://b/a/", "s3://b/a/t/"]
    assert places_around("file:///w/t/") == ["file:///", "file:///w/", "file:///w/t/"]
