"""Tables that share a folder, in a real catalog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moraine.catalog import client
from moraine.catalog.client import RestCatalog, table_locations
from moraine.catalog.siblings import SiblingCheck, find_overlap
from moraine.errors import CatalogUnavailable
from moraine.local.stack import Stack
from moraine.settings import CatalogSettings
from moraine.storage.files import local_path
from moraine.storage.locations import Roots
from support.tcp_proxy import proxied

MakeNamespace = Callable[..., list[str]]
MakeTable = Callable[..., dict[str, Any]]


def check(
    catalog: RestCatalog, namespace: list[str], table: str, scope: Any = "namespace", **more: Any
) -> SiblingCheck:
    roots = Roots.of(table_locations(catalog.load_table(namespace, table)))
    return find_overlap(catalog, namespace, table, roots, scope=scope, **{"limit": 100, **more})


def test_namespaces_and_tables_are_listed(
    catalog: RestCatalog,
    make_namespace: MakeNamespace,
    make_table: MakeTable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    top = make_namespace()
    below = make_namespace(*top, name="with space")
    deep = make_namespace(*below, name="ü")
    names = [f"t{number}" for number in range(5)]
    for name in names:
        make_table(below, name)
    for page_size in (1000, 2):
        monkeypatch.setattr(client, "_PAGE_SIZE", page_size)
        assert sorted(catalog.list_tables(below)) == names
        assert list(catalog.list_namespaces(top)) == [tuple(below), tuple(deep)]
        listed = list(catalog.list_namespaces())
        assert {tuple(top), tuple(below), tuple(deep)} <= set(listed)
        assert len(listed) == len(set(listed))
    assert list(catalog.list_tables(deep)) == []


def test_a_table_among_others_that_keep_to_themselves(
    catalog: RestCatalog, make_namespace: MakeNamespace, make_table: MakeTable
) -> None:
    namespace = make_namespace()
    for name in ("orders", "orders2", "customers"):
        make_table(namespace, name)
    assert check(catalog, namespace, "orders") == SiblingCheck(checked=2)


@pytest.mark.parametrize("which", ["same", "above", "below", "data"])
def test_a_table_that_shares_a_folder_is_found(
    catalog: RestCatalog, make_namespace: MakeNamespace, make_table: MakeTable, which: str
) -> None:
    namespace = make_namespace()
    own = make_table(namespace, "orders")["metadata"]["location"]
    make_table(namespace, "apart")
    elsewhere = f"{own}-elsewhere"
    location = {
        "same": f"{own}//",
        "above": own.rpartition("/")[0],
        "below": f"{own}/data/x/../y",
        "data": elsewhere,
    }[which]
    properties = {"write.data.path": f"{own}/data"} if which == "data" else {}
    make_table(namespace, "squatter", location=location, properties=properties)
    found = check(catalog, namespace, "orders")
    assert found.overlapping == ((".".join([*namespace, "squatter"]), location.rstrip("/")),)
    assert (found.checked, found.complete) == (2, True)


def test_the_catalog_is_searched_if_asked_for(
    catalog: RestCatalog, make_namespace: MakeNamespace, make_table: MakeTable
) -> None:
    namespace, other = make_namespace(), make_namespace()
    nested = make_namespace(*other, name="nested")
    own = make_table(namespace, "orders")["metadata"]["location"]
    make_table(nested, "squatter", location=f"{own}/inner")
    assert check(catalog, namespace, "orders").overlapping == ()
    whole = check(catalog, namespace, "orders", "catalog")
    assert whole.overlapping == ((".".join([*nested, "squatter"]), f"{own}/inner"),)
    off = check(catalog, namespace, "orders", "off")
    assert (off.checked, off.complete, off.skipped) == (0, False, "The check is switched off.")


def test_past_the_limit_the_check_says_so(
    catalog: RestCatalog, make_namespace: MakeNamespace, make_table: MakeTable
) -> None:
    namespace = make_namespace()
    for number in range(6):
        make_table(namespace, f"t{number}")
    found = check(catalog, namespace, "t0", limit=2)
    assert (found.checked, found.complete) == (2, False)
    assert found.skipped == "Of 5 other tables, 2 were looked at."
    assert check(catalog, namespace, "t0", limit=0).checked == 0
    assert check(catalog, namespace, "t0", limit=5).complete


def test_a_table_whose_metadata_is_gone_is_counted(
    catalog: RestCatalog, make_namespace: MakeNamespace, make_table: MakeTable
) -> None:
    namespace = make_namespace()
    make_table(namespace, "orders")
    broken = make_table(namespace, "broken")
    make_table(namespace, "fine")
    Path(local_path(broken["metadata-location"])).unlink()
    found = check(catalog, namespace, "orders")
    assert (found.checked, found.unreadable, found.complete) == (1, 1, False)
    assert found.skipped == "1 tables could not be read."


def test_a_table_that_was_dropped_meanwhile_is_no_sibling(
    catalog: RestCatalog, make_namespace: MakeNamespace, make_table: MakeTable
) -> None:
    namespace = make_namespace()
    own = make_table(namespace, "orders")["metadata"]["location"]
    make_table(namespace, "squatter", location=own)

    class Slow(RestCatalog):
        def list_tables(self, namespace: Any) -> Any:
            listed = list(super().list_tables(namespace))
            catalog.drop_table(namespace, "squatter")
            return iter(listed)

    slow = Slow(CatalogSettings(uri=catalog._base))
    assert check(slow, namespace, "orders") == SiblingCheck()


def test_a_catalog_that_goes_away_is_an_outage(
    catalog_stack: Stack, make_namespace: MakeNamespace, make_table: MakeTable
) -> None:
    namespace = make_namespace()
    for name in ("orders", "a", "b"):
        make_table(namespace, name)
    with proxied(catalog_stack.catalog.url) as way:
        url = way.url.replace("//@", "//")

        class Cut(RestCatalog):
            def list_tables(self, namespace: Any) -> Any:
                listed = list(super().list_tables(namespace))
                way.cut()
                return iter(listed)

        with pytest.raises(CatalogUnavailable):
            check(Cut(CatalogSettings(uri=url)), namespace, "orders")
