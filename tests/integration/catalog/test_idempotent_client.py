"""The typed client on a real catalog, and what it makes of what a server says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from moraine.catalog.errors import (
    AlreadyExists,
    CatalogError,
    CommitFailed,
    CommitStateUnknown,
    EndpointNotSupported,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
    NotAuthorized,
    ServerError,
    ServiceUnavailable,
)
from moraine.catalog.iceberg import IcebergCatalog, PropertiesChange
from moraine.local.stack import Stack
from moraine.settings import CatalogAuthSettings, CatalogSettings
from support.gateway import SCHEMA
from support.keyed_catalog import KeyedCatalog, answers, as_json, error
from support.oauth_server import Realm, running_realm
from support.typed_client import SET_OWNER, MakeClient, new_namespace

VIEW_VERSION = {
    "version-id": 1,
    "schema-id": 0,
    "timestamp-ms": 1_700_000_000_000,
    "summary": {"engine-name": "test"},
    "default-namespace": ["n"],
    "representations": [{"type": "sql", "sql": "select 1 as id", "dialect": "spark"}],
}


# --- On the real catalog --------------------------------------------------------------------


def test_namespaces(client: IcebergCatalog, namespace: str) -> None:
    below = [namespace, "with space"]
    assert client.create_namespace(below, {"a": "1", "b": "2"}).items() >= {"a": "1"}.items()
    assert (namespace,) in client.list_namespaces()
    assert client.list_namespaces(namespace) == [tuple(below)]
    change = client.update_namespace_properties(below, {"c": "3"}, ["b", "z"])
    assert change == PropertiesChange(updated=("c",), removed=("b",), missing=("z",))
    assert client.load_namespace(below).items() >= {"a": "1", "c": "3"}.items()
    with pytest.raises(AlreadyExists):
        client.create_namespace(below)
    client.drop_namespace(below)
    with pytest.raises(NoSuchNamespace):
        client.load_namespace(below)
    with pytest.raises(NoSuchNamespace):
        client.create_table(below, "t", SCHEMA)


def test_a_table_from_its_creation_to_its_end(client: IcebergCatalog, namespace: str) -> None:
    created = client.create_table(namespace, "t", SCHEMA, properties={"a": "b"})
    assert created.properties["a"] == "b"
    assert client.list_tables(namespace) == ["t"]
    assert client.table_exists(namespace, "t")
    assert not client.table_exists(namespace, "other")

    requirement = {"type": "assert-table-uuid", "uuid": created.uuid}
    committed = client.commit_table(namespace, "t", [requirement], SET_OWNER)
    assert committed.properties["owner"] == "me"
    assert client.load_table(namespace, "t").metadata_location == committed.metadata_location
    wrong = {"type": "assert-table-uuid", "uuid": "00000000-0000-0000-0000-000000000000"}
    with pytest.raises(CommitFailed):
        client.commit_table(namespace, "t", [wrong], SET_OWNER)

    with pytest.raises(AlreadyExists):
        client.create_table(namespace, "t", SCHEMA)
    with pytest.raises(NamespaceNotEmpty):
        client.drop_namespace(namespace)
    client.rename_table((namespace, "t"), (namespace, "u"))
    with pytest.raises(NoSuchTable) as caught:
        client.load_table(namespace, "t")
    assert (caught.value.status, caught.value.named) == (404, "NoSuchTableException")

    client.drop_table(namespace, "u")
    registered = client.register_table(namespace, "again", committed.metadata_location)
    assert registered.uuid == created.uuid
    client.drop_table(namespace, "again", purge=True)
    assert client.list_tables(namespace) == []
    with pytest.raises(NoSuchTable):
        client.drop_table(namespace, "again")


def test_a_staged_table_is_there_once_it_is_committed(
    client: IcebergCatalog, namespace: str
) -> None:
    staged = client.create_table(namespace, "t", SCHEMA, stage_create=True)
    assert (staged.metadata_location, client.table_exists(namespace, "t")) == ("", False)
    updates = [
        {"action": "assign-uuid", "uuid": staged.uuid},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": SCHEMA, "last-column-id": 1},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged.location},
    ]
    created = client.commit_table(namespace, "t", [{"type": "assert-create"}], updates)
    assert created.uuid == staged.uuid
    with pytest.raises(CommitFailed):
        client.commit_table(namespace, "t", [{"type": "assert-create"}], updates)


def test_a_transaction_is_for_all_tables_or_for_none(
    client: IcebergCatalog, namespace: str
) -> None:
    def change(name: str, uuid: str) -> dict[str, Any]:
        return {
            "identifier": {"namespace": [namespace], "name": name},
            "requirements": [{"type": "assert-table-uuid", "uuid": uuid}],
            "updates": SET_OWNER,
        }

    tables = {name: client.create_table(namespace, name, SCHEMA) for name in ("a", "b")}
    wrong = change("b", tables["a"].uuid)
    with pytest.raises(CommitFailed):
        client.commit_transaction([change("a", tables["a"].uuid), wrong])
    assert "owner" not in client.load_table(namespace, "a").properties
    client.commit_transaction([change(name, table.uuid) for name, table in tables.items()])
    assert client.load_table(namespace, "a").properties["owner"] == "me"
    assert client.load_table(namespace, "b").properties["owner"] == "me"


def test_views(client: IcebergCatalog, namespace: str) -> None:
    created = client.create_view(namespace, "v", SCHEMA, VIEW_VERSION, properties={"a": "b"})
    assert created.uuid
    requirement = {"type": "assert-view-uuid", "uuid": created.uuid}
    replaced = client.replace_view(namespace, "v", [requirement], SET_OWNER)
    assert replaced.metadata["properties"]["owner"] == "me"
    with pytest.raises(AlreadyExists):
        client.create_view(namespace, "v", SCHEMA, VIEW_VERSION)
    client.rename_view((namespace, "v"), (namespace, "w"))
    assert client.load_view(namespace, "w").metadata_location == replaced.metadata_location
    client.drop_view(namespace, "w")
    with pytest.raises(NoSuchView):
        client.load_view(namespace, "w")


def test_moraines_own_principal_can_use_it_too(catalog_stack: Stack) -> None:
    with running_realm(catalog_stack.catalog.url, Realm()) as realm:
        auth = CatalogAuthSettings(
            kind="oauth2",
            client_id=realm.client_id,
            client_secret=realm.client_secret,  # type: ignore[arg-type]
        )
        settings = CatalogSettings(uri=realm.catalog_uri, auth=auth)
        inside = IcebergCatalog.from_settings(settings)
        inside.create_namespace(new_namespace())
        with pytest.raises(NotAuthorized):
            IcebergCatalog(realm.catalog_uri, token="wrong").list_namespaces()
        inside.close()


# --- What the server says of itself ---------------------------------------------------------


def test_config_prefix_and_separator(make_client: MakeClient) -> None:
    with KeyedCatalog() as server:
        server.config |= {
            "defaults": {"clients": "4", "a": "server"},
            "overrides": {"prefix": "catalogs/main", "namespace-separator": "%2E"},
        }
        client = make_client(server.url, warehouse="dev", properties={"a": "mine", "prefix": "no"})
        assert client.config == {
            "clients": "4",
            "a": "mine",
            "prefix": "catalogs/main",
            "namespace-separator": "%2E",
        }
        client.drop_table(["a", "b/c"], "t/u")
        assert server.mutations[0].target.startswith(
            "/v1/catalogs/main/namespaces/a.b%2Fc/tables/t%2Fu?"
        )
        assert server.configs_asked_for[0].query == {"warehouse": "dev"}


def test_what_is_not_advertised_is_not_called(make_client: MakeClient) -> None:
    with KeyedCatalog() as server:
        client = make_client(server.url)
        assert client.supports("POST /v1/{prefix}/namespaces")
        assert not client.supports("GET /v1/{prefix}/namespaces/{namespace}/views/{view}")
        with pytest.raises(EndpointNotSupported, match="views"):
            client.load_view("n", "v")
        assert client.table_exists("n", "t")  # with a load, as HEAD is not among them
        assert [request.method for request in server.seen] == ["GET", "GET"]

        server.config["endpoints"] = ["GET /v1/{prefix}/namespaces/{namespace}/views/{view}"]
        other = make_client(server.url)
        assert other.load_view("n", "v").metadata_location
        with pytest.raises(EndpointNotSupported):
            other.create_namespace("n")
        assert server.mutations == []


def test_one_config_serves_the_client_and_its_adapter(make_client: MakeClient) -> None:
    with KeyedCatalog() as server:
        client = make_client(server.url)
        client.commit_table("n", "t", [], SET_OWNER)
        client.load_table("n", "t")
        assert len(server.configs_asked_for) == 1
        server.break_with(answers(error(404)))
        with pytest.raises(NoSuchTable):
            client.commit_table("n", "t", [], SET_OWNER)
        client.load_table("n", "t")
        assert len(server.configs_asked_for) == 2


def test_a_catalog_that_is_not_there(make_client: MakeClient) -> None:
    client = make_client("http://127.0.0.1:1")
    with pytest.raises(ServiceUnavailable):
        client.create_namespace("n")


def test_an_address_without_a_catalog(make_client: MakeClient) -> None:
    with KeyedCatalog() as server:
        server.configuration = lambda *_: error(404)  # type: ignore[method-assign]
        with pytest.raises(CatalogError, match="404 to GET /v1/config"):
            make_client(server.url).list_namespaces()


def test_an_answer_that_cannot_be_used(make_client: MakeClient) -> None:
    with KeyedCatalog() as server:
        client = make_client(server.url)
        server.read = lambda *_: as_json(200, [1])  # type: ignore[method-assign]
        with pytest.raises(ServerError):
            client.load_table("n", "t")
        server.break_with(answers(as_json(200, {})))
        with pytest.raises(CommitStateUnknown):
            client.commit_table("n", "t", [], SET_OWNER)
