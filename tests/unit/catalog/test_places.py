"""Where Moraine may delete, whatever a table or a catalog says."""

from __future__ import annotations

from pathlib import Path

import pytest

from moraine.catalog.places import LocationNotAllowed, allowed_places, own_places
from moraine.settings import CatalogSettings
from moraine.storage.locations import Roots

METADATA = "s3://wh/prod/shop/t/metadata/1.json"
ALLOWED = Roots.of(["s3://wh/prod"])


def settings(*allowed: str) -> CatalogSettings:
    return CatalogSettings(uri="http://127.0.0.1:1", allowed_locations=list(allowed))


@pytest.mark.parametrize("key", ["warehouse", "default-base-location"])
def test_allowed_places_are_by_default_what_the_catalog_reports(key: str) -> None:
    assert allowed_places("prod", settings(), {key: "s3a://wh/prod/"}) == ALLOWED


def test_allowed_places_of_the_settings_come_first() -> None:
    found = allowed_places("prod", settings("s3://wh/prod"), {"warehouse": "s3://other/all"})
    assert found == ALLOWED


@pytest.mark.parametrize(
    "reported",
    ["", "a_name", "s3://wh", "s3://wh/", "gs://wh//", "file:///", "file:///data/wh", "/data/wh"],
)
def test_allowed_places_exclude_a_name_a_whole_bucket_and_a_whole_disk(reported: str) -> None:
    with pytest.raises(LocationNotAllowed, match=r"catalogs\.prod\.allowed-locations"):
        allowed_places("prod", settings(), {"warehouse": reported})


@pytest.mark.parametrize(
    "location", ["s3://wh", "s3://wh/", "/", "file:///", "file:/", "wh/prod", "s3:/wh/a", ""]
)
def test_allowed_places_in_settings_must_not_be_a_whole_bucket_or_disk(location: str) -> None:
    with pytest.raises(ValueError, match="a folder in a bucket or on a disk"):
        settings(location)


@pytest.mark.parametrize(
    "location", ["s3://wh/a", "file:///data", "file:/data", "/data", "gs://b/a/"]
)
def test_allowed_places_in_settings_may_be_folders(location: str) -> None:
    assert settings(location).allowed_locations == [location]


def test_table_places_are_its_location_and_its_write_paths() -> None:
    paths = {
        "write.data.path": "s3://wh/prod/data/t",
        "write.metadata.path": "s3a://wh/prod/metadata/t",
        "write.object-storage.path": "s3://wh/prod/objects",
        "write.folder-storage.path": "s3://wh/prod/old",
    }
    found = own_places("s3://wh/prod/shop/t", paths, METADATA, ALLOWED)
    assert found.listed == [
        "s3://wh/prod/data/t",
        "s3://wh/prod/metadata/t",
        "s3://wh/prod/objects",
        "s3://wh/prod/old",
        "s3://wh/prod/shop/t",
    ]


FOREIGN = [
    "s3://wh/other",
    "s3://wh/prod",
    "s3://wh/prod/",
    "s3://wh",
    "s3://wh/prod/../other",
    "s3://wh/prod/%2e%2e/other",
    "s3://wh/production",
    "s3://elsewhere/prod/t",
    "gs://wh/prod/t",
    "file:///",
    "file:///wh/prod/t",
    "/etc",
    "hdfs://wh/prod/t",
    "",
]


@pytest.mark.parametrize("place", FOREIGN)
def test_table_places_are_not_widened_by_a_write_path(place: str) -> None:
    for name in ("write.data.path", "write.object-storage.path"):
        found = own_places("s3://wh/prod/shop/t", {name: place}, METADATA, ALLOWED)
        assert found.listed == ["s3://wh/prod/shop/t"]


@pytest.mark.parametrize("place", FOREIGN)
def test_table_places_are_none_for_a_table_outside_the_allowed_ones(place: str) -> None:
    with pytest.raises(LocationNotAllowed, match="nothing was deleted"):
        own_places(place, {}, METADATA, ALLOWED)


def test_table_places_are_in_the_store_of_the_metadata() -> None:
    both = Roots.of(["s3://wh/prod", "s3://cold/prod"])
    with pytest.raises(LocationNotAllowed):
        own_places("s3://cold/prod/t", {}, METADATA, both)
    kept = own_places("s3://wh/prod/t", {"write.data.path": "s3://cold/prod/t"}, METADATA, both)
    assert kept.listed == ["s3://wh/prod/t"]


def test_table_places_do_not_follow_a_link_out_of_the_allowed_ones(tmp_path: Path) -> None:
    warehouse, elsewhere = tmp_path / "warehouse", tmp_path / "elsewhere"
    warehouse.mkdir()
    elsewhere.mkdir()
    (warehouse / "t").symlink_to(elsewhere)
    allowed = allowed_places("local", settings(warehouse.as_uri()), {})
    with pytest.raises(LocationNotAllowed):
        own_places(f"{warehouse}/t", {}, f"{warehouse}/t/metadata/1.json", allowed)
    real = own_places(f"{warehouse}/u", {}, f"{warehouse}/u/metadata/1.json", allowed)
    assert real.listed == [f"{warehouse}/u"]
