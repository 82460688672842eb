"""The catalog client against a real HTTP server that answers as told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from moraine.catalog import client
from moraine.catalog.client import MetadataMissing, RestCatalog
from moraine.errors import CatalogRefused, CatalogUnavailable, MoraineError, TableNotFound
from moraine.settings import CatalogAuthSettings, CatalogSettings

if TYPE_CHECKING:
    from support.told_server import Server

TABLE = {"metadata-location": "m.json", "metadata": {"table-uuid": "u", "location": "file:/t"}}
PATH = "/v1/namespaces/n/tables/t"


@pytest.fixture
def catalog(server: Server) -> RestCatalog:
    return RestCatalog(CatalogSettings(uri=f"{server.url}/"))


def test_catalog_client_loads_a_table_with_the_advertised_prefix_and_separator(
    catalog: RestCatalog, server: Server
) -> None:
    server.answers["/v1/config"] = (
        200,
        {
            "defaults": {"prefix": "no"},
            "overrides": {"prefix": "a%7Cb", "namespace-separator": "%2E"},
        },
    )
    server.answers["/v1/a%7Cb/namespaces/n%201.m/tables/t%2Fx"] = (200, TABLE)

    table = catalog.load_table(["n 1", "m"], "t/x")

    assert (table.uuid, table.location, table.metadata_location) == ("u", "file:/t", "m.json")


def test_catalog_client_asks_for_credentials_only_where_they_are_wanted(
    catalog: RestCatalog, server: Server
) -> None:
    server.answers[PATH] = (200, TABLE)
    catalog.load_table(["n"], "t")
    catalog.load_table(["n"], "t", vend=False, snapshots="refs")
    first, second = server.asked_for(PATH)
    assert first.headers["X-Iceberg-Access-Delegation"] == "vended-credentials"
    assert "X-Iceberg-Access-Delegation" not in second.headers
    assert (first.query, second.query) == ("snapshots=all", "snapshots=refs")


def test_catalog_client_keeps_vended_credentials_and_never_shows_them(
    catalog: RestCatalog, server: Server
) -> None:
    vended = {"prefix": "s3://b/t/", "config": {"s3.secret-access-key": "hunter2"}}
    server.answers[PATH] = (
        200,
        {**TABLE, "config": {"s3.session-token": "hunter3"}, "storage-credentials": [vended]},
    )
    table = catalog.load_table(["n"], "t")
    assert table.credentials.vended
    assert table.config == {"s3.session-token": "hunter3"}
    assert "hunter" not in repr(table) + repr(table.credentials)


@pytest.mark.parametrize("nothing", [{}, {"config": None, "storage-credentials": None}])
def test_catalog_client_accepts_a_catalog_that_vends_nothing(
    catalog: RestCatalog, server: Server, nothing: dict[str, Any]
) -> None:
    server.answers[PATH] = (200, {**TABLE, **nothing})
    assert not catalog.load_table(["n"], "t").credentials.vended


def test_catalog_client_asks_for_the_table_alone_if_vending_is_refused(
    catalog: RestCatalog, server: Server
) -> None:
    refusal = (400, {"error": {"message": "no credentials", "type": "BadRequestException"}})
    server.answers[PATH] = [refusal, (200, TABLE)]
    assert not catalog.load_table(["n"], "t", snapshots="refs").credentials.vended
    first, second = server.asked_for(PATH)
    assert "X-Iceberg-Access-Delegation" in first.headers
    assert "X-Iceberg-Access-Delegation" not in second.headers
    assert first.query == second.query == "snapshots=refs"


def test_catalog_client_does_not_repeat_a_request_refused_without_vending(
    catalog: RestCatalog, server: Server
) -> None:
    server.answers[PATH] = (400, {"error": {"message": "no such luck"}})
    with pytest.raises(CatalogRefused, match="no such luck"):
        catalog.load_table(["n"], "t", vend=False)
    assert len(server.asked_for(PATH)) == 1
    with pytest.raises(CatalogRefused, match="no such luck"):
        catalog.load_table(["n"], "t")
    assert len(server.asked_for(PATH)) == 3


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, TableNotFound),
        (401, CatalogRefused),
        (403, CatalogRefused),
        (302, CatalogRefused),
        (429, CatalogUnavailable),
        (500, CatalogUnavailable),
        (503, CatalogUnavailable),
    ],
)
def test_catalog_client_translates_errors_to_refusals_and_outages(
    catalog: RestCatalog, server: Server, status: int, error: type[MoraineError]
) -> None:
    server.answers[PATH] = (status, {"error": {"message": "no such luck"}})
    with pytest.raises(error) as caught:
        catalog.load_table(["n"], "t")
    # What is not there is told in our own words; the catalog's are among the details.
    words = caught.value.details if status == 404 else str(caught.value)
    assert "no such luck" in words


def test_catalog_client_distinguishes_missing_metadata_from_a_missing_table(
    catalog: RestCatalog, server: Server
) -> None:
    server.answers[PATH] = (404, {"error": {"message": "x", "type": "NotFoundException"}})
    with pytest.raises(MetadataMissing):
        catalog.load_table(["n"], "t")
    server.answers[PATH] = (404, {"error": {"message": "x", "type": "NoSuchTableException"}})
    with pytest.raises(TableNotFound) as caught:
        catalog.load_table(["n"], "t")
    assert caught.type is TableNotFound


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'"text"', b"[" * 100_000, b"\xff\xfe"])
def test_catalog_client_reports_an_answer_that_is_no_json_object_as_an_outage(
    catalog: RestCatalog, server: Server, body: bytes
) -> None:
    server.answers[PATH] = (200, body)
    with pytest.raises(CatalogUnavailable, match="did not give a usable answer"):
        catalog.load_table(["n"], "t")


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": TABLE["metadata"]},
        {**TABLE, "metadata-location": None},
        {**TABLE, "metadata": None},
        {**TABLE, "metadata": {"table-uuid": "u"}},
    ],
)
def test_catalog_client_refuses_an_incomplete_table(
    catalog: RestCatalog, server: Server, body: dict[str, Any]
) -> None:
    server.answers[PATH] = (200, body)
    with pytest.raises(CatalogRefused, match="metadata"):
        catalog.load_table(["n"], "t")


def test_catalog_client_limits_the_size_of_an_answer(
    catalog: RestCatalog, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_MAX_BYTES", 1 << 20)
    server.answers[PATH] = (200, {**TABLE, "more": "x" * (1 << 20)})
    with pytest.raises(CatalogRefused, match="more than 1 MiB"):
        catalog.load_table(["n"], "t")


def test_catalog_client_reports_an_unreachable_catalog_as_an_outage() -> None:
    with pytest.raises(CatalogUnavailable, match=r"127\.0\.0\.1:1"):
        RestCatalog(CatalogSettings(uri="http://127.0.0.1:1")).load_table(["n"], "t")


def test_catalog_client_distinguishes_a_wrong_address_from_a_missing_table(
    catalog: RestCatalog, server: Server
) -> None:
    del server.answers["/v1/config"]
    with pytest.raises(CatalogRefused, match="Check the catalog's uri and warehouse"):
        catalog.load_table(["n"], "t")


def test_catalog_client_hides_a_token_that_the_catalog_repeats(server: Server) -> None:
    auth = CatalogAuthSettings(kind="bearer", token="hunter2")
    server.answers["/v1/config"] = (401, {"error": {"message": "who is hunter2?"}})
    with pytest.raises(CatalogRefused, match=r"who is \*\*\*\?"):
        RestCatalog(CatalogSettings(uri=server.url, auth=auth)).load_table(["n"], "t")
    assert server.asked[0].headers["Authorization"] == "Bearer hunter2"


def test_catalog_client_reads_lists_page_by_page(catalog: RestCatalog, server: Server) -> None:
    server.answers["/v1/namespaces/n/tables"] = [
        (200, {"identifiers": [{"namespace": ["n"], "name": "a"}], "next-page-token": "2"}),
        (200, {"identifiers": [{"namespace": ["n"], "name": "b"}], "next-page-token": None}),
    ]
    assert list(catalog.list_tables(["n"])) == ["a", "b"]
    assert [asked.query for asked in server.asked_for("/v1/namespaces/n/tables")] == [
        "pageToken=&pageSize=1000",
        "pageToken=2&pageSize=1000",
    ]


def test_catalog_client_ends_a_listing_when_a_page_token_repeats(
    catalog: RestCatalog, server: Server
) -> None:
    page = {"identifiers": [{"name": "a"}], "next-page-token": "same"}
    server.answers["/v1/namespaces/n/tables"] = (200, page)
    assert list(catalog.list_tables(["n"])) == ["a", "a"]
    # This one knows no nested namespaces, and lists them all whatever the parent.
    server.answers["/v1/namespaces"] = (200, {"namespaces": [["a"], ["b"]]})
    assert list(catalog.list_namespaces()) == [("a",), ("b",)]


@pytest.mark.parametrize("listed", [{"identifiers": "ab"}, {"identifiers": ["ab"]}])
def test_catalog_client_reports_a_malformed_list_as_an_outage(
    catalog: RestCatalog, server: Server, listed: dict[str, Any]
) -> None:
    server.answers["/v1/namespaces/n/tables"] = (200, listed)
    with pytest.raises(CatalogUnavailable, match="identifiers"):
        list(catalog.list_tables(["n"]))
