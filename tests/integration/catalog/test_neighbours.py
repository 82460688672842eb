"""The index of a catalog's tables, in a real catalog and a real ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from moraine.catalog.client import CatalogFailed, LoadedTable, RestCatalog
from moraine.errors import CatalogRefused, CatalogUnavailable
from moraine.local.stack import Stack
from moraine.neighbours.check import refuse_shared
from moraine.neighbours.errors import LocationShared, NeighboursUnknown
from moraine.neighbours.model import TableName
from moraine.neighbours.store import SurveyStore
from moraine.neighbours.survey import Surveyor
from moraine.settings import CatalogSettings
from moraine.storage.files import local_path
from moraine.storage.locations import Roots
from moraine.tasks.store import TaskStore
from support.tcp_proxy import proxied

MakeNamespace = Callable[..., list[str]]
MakeTable = Callable[..., dict[str, Any]]
HOUR = timedelta(hours=1)


class Catalog(RestCatalog):
    """Knows which tables were loaded, and can be told to fail at some."""

    def __init__(self, settings: CatalogSettings) -> None:
        super().__init__(settings)
        self.loaded: list[TableName] = []
        self.fails: dict[str, Exception] = {}

    def load_table(self, namespace: Any, table: str, **options: Any) -> LoadedTable:
        self.loaded.append(TableName(tuple(namespace), table))
        if table in self.fails:
            raise self.fails[table]
        return super().load_table(namespace, table, **options)


class Site:
    def __init__(self, stack: Stack, store: TaskStore, url: str = "") -> None:
        self.warehouse = stack.home / "warehouse"
        settings = CatalogSettings(
            uri=url or stack.catalog.url, allowed_locations=[str(self.warehouse)]
        )
        self.catalog = Catalog(settings)
        self.purged: set[str] = set()
        self.surveyor = Surveyor(
            self.catalog,
            settings,
            Roots.of(settings.allowed_locations),
            SurveyStore(store.pool, "demo", "demo"),
            lambda table: table.name in self.purged,
        )

    def survey(self, **options: Any) -> set[TableName]:
        """The tables that were looked at."""
        self.catalog.loaded.clear()
        self.surveyor.survey(**{"max_age": HOUR, "looks": 0, **options})
        return set(self.catalog.loaded)

    def check(self, namespace: list[str], table: str, *files: str) -> int:
        location = self.catalog.load_table(namespace, table).location
        paths = pa.array([f"{location}/{file}" for file in files])
        own = TableName(tuple(namespace), table)
        return refuse_shared(self.surveyor, own, Roots.of([location]), lambda: [paths])


@pytest.fixture
def site(catalog_stack: Stack, store: TaskStore) -> Site:
    return Site(catalog_stack, store)


@pytest.fixture(autouse=True)
def _nothing_is_left(catalog_stack: Stack) -> Iterator[None]:
    """The catalog is shared: each test finds it empty of tables."""
    yield
    catalog = RestCatalog(CatalogSettings(uri=catalog_stack.catalog.url))
    for levels in list(catalog.list_namespaces()):
        for name in list(catalog.list_tables(levels)):
            catalog.drop_table(levels, name)


def test_neighbour_survey_examines_new_tables_and_old_entries(
    site: Site, make_namespace: MakeNamespace, make_table: MakeTable
) -> None:
    namespace = make_namespace()
    nested = make_namespace(*make_namespace(), name="nested")
    a, b = (TableName(tuple(namespace), name) for name in "ab")
    c, d = (TableName(tuple(nested), name) for name in "cd")
    for table in (a, b, c):
        make_table(list(table.namespace), table.name)
    assert {a, b, c} <= site.survey()
    assert site.survey() == set()
    make_table(nested, "d")
    assert site.survey() == {d}
    assert {a, b, c, d} <= site.survey(max_age=timedelta(0))
    assert len(site.survey(looks=2)) == 2
    assert len(site.survey(looks=1) | site.survey(looks=1)) == 2, "not the same one twice"


def test_neighbour_survey_forgets_a_table_that_is_gone(
    site: Site, make_namespace: MakeNamespace, make_table: MakeTable
) -> None:
    namespace = make_namespace()
    own = make_table(namespace, "own")["metadata"]["location"]
    make_table(namespace, "squatter", location=own)
    site.survey()
    with pytest.raises(LocationShared, match=r"squatter contains 1 of them"):
        site.check(namespace, "own", "data/a.parquet")
    site.catalog.drop_table(namespace, "squatter")
    assert site.check(namespace, "own", "data/a.parquet") == 1, "asked, and gone"
    site.survey()
    assert site.check(namespace, "own", "data/a.parquet") == 0


def test_neighbour_survey_finds_no_files_of_a_table_without_metadata(
    site: Site, make_namespace: MakeNamespace, make_table: MakeTable
) -> None:
    namespace = make_namespace()
    own = make_table(namespace, "own")["metadata"]["location"]
    broken = make_table(namespace, "broken", location=own)
    Path(local_path(broken["metadata-location"])).unlink()
    site.survey()
    assert site.check(namespace, "own", "data/a.parquet") == 0


@pytest.mark.parametrize(
    ("trouble", "raised"),
    [
        (CatalogRefused("403"), NeighboursUnknown),
        (CatalogFailed("500"), NeighboursUnknown),
        (CatalogUnavailable("503"), CatalogUnavailable),
    ],
    ids=["forbidden", "failing", "away"],
)
def test_neighbour_survey_fails_if_a_table_cannot_be_loaded(
    site: Site,
    make_namespace: MakeNamespace,
    make_table: MakeTable,
    trouble: Exception,
    raised: type[Exception],
) -> None:
    namespace = make_namespace()
    for name in ("own", "closed"):
        make_table(namespace, name)
    site.catalog.fails["closed"] = trouble
    for _ in range(2):
        with pytest.raises(raised):
            site.survey()
    if raised is NeighboursUnknown:
        site.purged.add("closed")
        site.survey()
        assert site.check(namespace, "own", "a") == 0


def test_neighbour_survey_gives_a_wide_location_no_files_of_other_tables(
    site: Site, make_namespace: MakeNamespace, make_table: MakeTable
) -> None:
    namespace = make_namespace()
    own = make_table(namespace, "own")["metadata"]["location"]
    around = own.rpartition("/")[0]
    make_table(namespace, "wide", location=around)
    site.survey()
    with pytest.raises(LocationShared, match="wide contains"):
        # With no other table in it, the wide one may be the honest one.
        site.check(namespace, "own", "data/a.parquet")
    make_table(namespace, "other")
    site.survey()
    assert site.check(namespace, "own", "data/a.parquet") == 1


def test_neighbour_survey_protects_a_table_inside_another(
    site: Site, make_namespace: MakeNamespace, make_table: MakeTable
) -> None:
    namespace = make_namespace()
    own = make_table(namespace, "own")["metadata"]["location"]
    make_table(namespace, "inner", location=f"{own}/inner")
    site.survey()
    assert site.check(namespace, "own", "data/a.parquet") == 1
    with pytest.raises(LocationShared, match="inner contains 1 of them"):
        site.check(namespace, "own", "data/a.parquet", "inner/data/b.parquet")


def test_neighbour_survey_of_an_unavailable_catalog_is_an_outage(
    catalog_stack: Stack, store: TaskStore, make_namespace: MakeNamespace, make_table: MakeTable
) -> None:
    namespace = make_namespace()
    for name in ("own", "a", "b"):
        make_table(namespace, name)
    with proxied(catalog_stack.catalog.url) as way:
        site = Site(catalog_stack, store, way.url.replace("//@", "//"))
        site.survey()
        way.cut()
        with pytest.raises(CatalogUnavailable):
            site.survey(looks=1)
