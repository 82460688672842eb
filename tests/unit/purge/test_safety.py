"""What must not be purged."""

from dataclasses import replace
from typing import Any

import pytest

from moraine.catalog.client import LoadedTable
from moraine.catalog.siblings import SiblingCheck
from moraine.errors import LocationShared, PathOutsideTable, PurgeForbidden, TableChanged
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


def test_what_the_catalog_tells_of_the_entity_id_has_to_fit() -> None:
    identity = {
        "catalog_name": "c",
        "namespace_levels": ["n"],
        "table_name": "t",
        "table_entity_id": "e-1",
    }
    asked_for = PurgeParameters.model_validate({"table_identity": identity})
    silent, same, other = (
        replace(table(), config=config)
        for config in ({}, {"table-entity-id": "e-1"}, {"table-entity-id": "e-2"})
    )
    assert safety.check_identity(asked_for, same) == {}
    assert "not checked" in safety.check_identity(asked_for, silent)["table_entity_id"]
    with pytest.raises(TableChanged, match="table_entity_id e-1"):
        safety.check_identity(asked_for, other)


def test_outsiders_are_refused_with_their_paths() -> None:
    with pytest.raises(PathOutsideTable, match="3 files") as refused:
        safety.refuse_outsiders(["/etc/passwd"], 3)
    assert refused.value.details == "/etc/passwd"
    assert refused.value.report == {"outside": {"files": 3, "paths": ["/etc/passwd"]}}


def test_a_shared_location_is_refused() -> None:
    safety.refuse_overlap(SiblingCheck(checked=3))
    check = SiblingCheck(overlapping=(("n.other", "s3://b/t"),))
    with pytest.raises(LocationShared, match=r"n\.other at s3://b/t"):
        safety.refuse_overlap(check)
