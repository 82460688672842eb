"""What must not be purged."""

from typing import Any

import pytest

from moraine.catalog.client import LoadedTable
from moraine.errors import PathOutsideTable, PurgeForbidden, TableChanged
from moraine.operations.purge import safety
from moraine.operations.purge.payload import PurgeParameters


def table(**properties: str) -> LoadedTable:
    metadata = {"table-uuid": "u-1", "location": "file:///w/shop/t", "properties": properties}
    return LoadedTable("file:///w/shop/t/metadata/v1.json", metadata)


def asked(**more: Any) -> PurgeParameters:
    identity = {"catalog_name": "c", "namespace_levels": ["n"], "table_name": "t"}
    return PurgeParameters.model_validate({"table_identity": identity, **more})


@pytest.mark.parametrize("value", ["false", "FALSE", "False"])
def test_a_table_that_shares_files_is_refused(value: str) -> None:
    with pytest.raises(PurgeForbidden, match=r"gc\.enabled"):
        safety.check_purge_allowed(table(**{"gc.enabled": value}))


def test_a_table_may_be_purged_by_default() -> None:
    safety.check_purge_allowed(table())
    safety.check_purge_allowed(table(**{"gc.enabled": "true"}))


@pytest.mark.parametrize(
    "more",
    [
        {"metadata": {"table-uuid": "u-2"}},
        {"metadata_location": "file:///w/shop/t/metadata/v0.json"},
    ],
)
def test_another_table_than_the_one_asked_for_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(TableChanged):
        safety.check_identity(asked(**more), table())


def test_the_table_asked_for_is_accepted() -> None:
    location = "file:///w/shop/t/metadata/v1.json"
    safety.check_identity(
        asked(metadata={"table-uuid": "u-1"}, metadata_location=location), table()
    )
    safety.check_identity(asked(), table())


@pytest.mark.parametrize("changed", ["uuid", "metadata_location"])
def test_a_table_that_changed_meanwhile_is_refused(changed: str) -> None:
    pinned = {"uuid": "u-1", "metadata_location": "file:///w/shop/t/metadata/v1.json"}
    safety.check_unchanged(pinned, table())
    with pytest.raises(TableChanged, match=changed):
        safety.check_unchanged({**pinned, changed: "other"}, table())


def test_the_roots_of_a_table_are_its_location_and_its_write_paths() -> None:
    found = safety.table_roots(table(**{"write.data.path": "file:/elsewhere/data/"}))
    assert found == ["/w/shop/t/", "/elsewhere/data/"]


def test_outsiders_are_refused_with_their_paths() -> None:
    safety.refuse_outsiders([], 0)
    with pytest.raises(PathOutsideTable, match="3 files") as refused:
        safety.refuse_outsiders(["/etc/passwd"], 3)
    assert refused.value.details == "/etc/passwd"
