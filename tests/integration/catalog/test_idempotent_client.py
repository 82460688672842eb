"""The typed client, and pyiceberg with the adapter, on a real catalog and on a broken way to it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog as PyIceberg
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from moraine.catalog.adapter import IdempotentAdapter
from moraine.catalog.auth import ClientCredentialsAuth, OAuthClient, TokenSource
from moraine.catalog.errors import (
    AlreadyExists,
    BadRequest,
    CatalogError,
    CommitFailed,
    CommitStateUnknown,
    EndpointNotSupported,
    IdempotencyKeyConflict,
    IdempotencyWindowExpired,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
    NotAuthorized,
    OutcomeUnknown,
    RequestInProgress,
    ServerError,
    ServiceUnavailable,
)
from moraine.catalog.iceberg import IcebergCatalog, PropertiesChange
from moraine.local.stack import Stack
from moraine.settings import CatalogAuthSettings, CatalogSettings
from support.keyed_catalog import (
    KeyedCatalog,
    answers,
    as_json,
    error,
    half_an_answer,
    in_progress,
    reset_after,
    reset_before,
    silent_after,
)
from support.oauth_server import Realm, running_realm

SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "id", "type": "long", "required": False}],
}
SET_OWNER = [{"action": "set-properties", "updates": {"owner": "me"}}]
VIEW_VERSION = {
    "version-id": 1,
    "schema-id": 0,
    "timestamp-ms": 1_700_000_000_000,
    "summary": {"engine-name": "test"},
    "default-namespace": ["n"],
    "representations": [{"type": "sql", "sql": "select 1 as id", "dialect": "spark"}],
}

_numbers = itertools.count(1)
MakeClient = Callable[..., IcebergCatalog]


@pytest.fixture
def make_client() -> Iterator[MakeClient]:
    """Makes clients that do not wait between attempts."""
    made: list[IcebergCatalog] = []

    def make(url: str, **options: Any) -> IcebergCatalog:
        adapter = IdempotentAdapter(uri=url, sleep=lambda _: None)
        made.append(IcebergCatalog(url, **{"adapter": adapter, "timeout": (5, 20), **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def client(catalog_stack: Stack, make_client: MakeClient) -> IcebergCatalog:
    return make_client(catalog_stack.catalog.url)


@pytest.fixture
def keyed(catalog_stack: Stack) -> Iterator[KeyedCatalog]:
    """The real catalog, behind something that honours keys and can break."""
    with KeyedCatalog(upstream=catalog_stack.catalog.url) as keyed:
        yield keyed


@pytest.fixture
def mute(catalog_stack: Stack) -> Iterator[KeyedCatalog]:
    """The real catalog, behind something that can break and knows no keys."""
    with KeyedCatalog(upstream=catalog_stack.catalog.url, lifetime=None) as mute:
        yield mute


@pytest.fixture
def namespace(client: IcebergCatalog) -> str:
    name = f"typed{next(_numbers)}"
    client.create_namespace(name)
    return name


def snapshot(number: int, folder: str) -> list[dict[str, Any]]:
    """The updates that add a snapshot without files and make it current."""
    added = {
        "snapshot-id": number,
        "sequence-number": 1,
        "timestamp-ms": int(time.time() * 1000),
        "manifest-list": f"{folder}/metadata/snap-{number}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
    return [{"action": "add-snapshot", "snapshot": added}, {**main, "snapshot-id": number}]


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
        inside.create_namespace(f"typed{next(_numbers)}")
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


# --- Under a key ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [reset_before, reset_after, half_an_answer, answers(error(503), executed=True)]
)
def test_what_breaks_under_a_key_is_done_once(
    make_client: MakeClient, keyed: KeyedCatalog, namespace: str, fault: Any
) -> None:
    client = make_client(keyed.url)
    keyed.break_with(fault)
    uuid = client.create_table(namespace, "t", SCHEMA).uuid
    keyed.break_with(fault, in_progress())
    requirement = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}
    location = client.load_table(namespace, "t").location
    committed = client.commit_table(namespace, "t", [requirement], snapshot(1, location))
    assert (committed.uuid, committed.metadata["current-snapshot-id"]) == (uuid, 1)
    keyed.break_with(fault)
    client.rename_table((namespace, "t"), (namespace, "u"))
    keyed.break_with(fault)
    client.drop_table(namespace, "u")
    assert len(keyed.executed) == len(set(keyed.keys)) == 4
    assert len(keyed.mutations) == 9


def test_a_key_of_ones_own(make_client: MakeClient, keyed: KeyedCatalog, namespace: str) -> None:
    client = make_client(keyed.url)
    first = client.create_table(namespace, "t", SCHEMA, idempotency_key="mine")
    again = client.create_table(namespace, "t", SCHEMA, idempotency_key="mine")
    assert first == again
    with pytest.raises(IdempotencyKeyConflict):
        client.create_table(namespace, "u", SCHEMA, idempotency_key="mine")
    with pytest.raises(BadRequest, match="nothing was sent"):
        client.create_table(namespace, "u", SCHEMA, idempotency_key="mine\n")
    assert len(keyed.mutations) == 3


def test_a_window_that_ends(make_client: MakeClient, keyed: KeyedCatalog, namespace: str) -> None:
    keyed.config["idempotency-key-lifetime"] = "PT0.01S"
    keyed.break_with(*[answers(error(503, retry_after="1"))] * 50)
    with pytest.raises(IdempotencyWindowExpired) as caught:
        make_client(keyed.url).create_table(namespace, "t", SCHEMA)
    assert isinstance(caught.value, OutcomeUnknown)
    assert keyed.executed == []


def test_one_that_stays_in_progress(
    make_client: MakeClient, keyed: KeyedCatalog, namespace: str
) -> None:
    keyed.break_with(*[in_progress()] * 50)
    with pytest.raises(RequestInProgress) as caught:
        make_client(keyed.url).commit_table(namespace, "t", [], SET_OWNER)
    assert set(keyed.keys) == {caught.value.key}


def test_a_token_that_is_renewed_does_not_change_the_key(
    make_client: MakeClient, catalog_stack: Stack, keyed: KeyedCatalog, namespace: str
) -> None:
    with running_realm(catalog_stack.catalog.url, Realm()) as realm:
        oauth = OAuthClient(realm.token_uri, realm.client_id, realm.client_secret, "catalog")
        client = make_client(keyed.url, auth=ClientCredentialsAuth(TokenSource(oauth)))
        keyed.break_with(answers(error(401)), reset_after)
        client.create_table(namespace, "t", SCHEMA)
    tokens = [request.header("Authorization") for request in keyed.mutations]
    assert tokens[0] != tokens[1] == tokens[2]
    assert len(set(keyed.keys)) == len(keyed.executed) == 1


# --- Without keys ---------------------------------------------------------------------------


def test_without_keys_an_unknown_commit_stays_unknown(
    make_client: MakeClient, mute: KeyedCatalog, namespace: str
) -> None:
    client = make_client(mute.url)
    client.create_table(namespace, "t", SCHEMA)
    mute.break_with(reset_after)
    with pytest.raises(CommitStateUnknown):
        client.commit_table(namespace, "t", [], SET_OWNER)
    mute.break_with(answers(error(503)))
    with pytest.raises(OutcomeUnknown) as caught:
        client.drop_table(namespace, "t")
    assert caught.value.status == 503
    assert len(mute.mutations) == 3
    assert client.table_exists(namespace, "t")


def test_an_answer_that_does_not_come_in_time(
    make_client: MakeClient, mute: KeyedCatalog, namespace: str
) -> None:
    never = threading.Event()
    client = make_client(mute.url, timeout=(5, 0.5))
    client.create_table(namespace, "t", SCHEMA)
    mute.break_with(silent_after(never))
    with pytest.raises(CommitStateUnknown, match="ReadTimeout"):
        client.commit_table(namespace, "t", [], SET_OWNER)
    never.set()
    assert len(mute.mutations) == 2


def test_deconfliction_finds_the_commit_or_says_what_it_looked_for(
    make_client: MakeClient, mute: KeyedCatalog, namespace: str
) -> None:
    client = make_client(mute.url)
    location = client.create_table(namespace, "t", SCHEMA).location
    updates = snapshot(77, location)

    mute.break_with(reset_before)
    with pytest.raises(CommitStateUnknown, match="Looked for the snapshots 77 of the commit"):
        client.commit_table(namespace, "t", [], updates, deconflict=True)

    mute.break_with(reset_after)
    found = client.commit_table(namespace, "t", [], updates, deconflict=True)
    assert found.metadata["current-snapshot-id"] == 77

    mute.break_with(reset_after)
    with pytest.raises(CommitStateUnknown, match="adds no snapshot"):
        client.commit_table(namespace, "t", [], SET_OWNER, deconflict=True)

    mute.break_with(reset_before)
    with pytest.raises(CommitStateUnknown, match=r"To look for the snapshots 77 .* failed: .*404"):
        client.commit_table(namespace, "none", [], updates, deconflict=True)


# --- pyiceberg ------------------------------------------------------------------------------

ROWS = Schema(NestedField(1, "id", LongType(), required=False))


@pytest.fixture
def pyiceberg() -> Iterator[Callable[[str], PyIceberg]]:
    made: list[PyIceberg] = []

    def make(url: str) -> PyIceberg:
        made.append(PyIceberg("c", uri=url))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_pyiceberg_gets_keys_in_one_line(
    pyiceberg: Callable[[str], PyIceberg], keyed: KeyedCatalog
) -> None:
    catalog = pyiceberg(keyed.url)
    catalog._session.mount(keyed.url, IdempotentAdapter(sleep=lambda _: None))

    name = f"typed{next(_numbers)}"
    keyed.break_with(reset_after)
    catalog.create_namespace(name)
    keyed.break_with(answers(error(503), executed=True), in_progress())
    table = catalog.create_table((name, "t"), ROWS)
    keyed.break_with(half_an_answer)
    with table.transaction() as transaction:
        transaction.set_properties(owner="me")
    assert catalog.load_table((name, "t")).properties["owner"] == "me"
    keyed.break_with(reset_after)
    catalog.rename_table((name, "t"), (name, "u"))
    keyed.break_with(reset_after)
    catalog.drop_table((name, "u"))

    assert len(keyed.executed) == len(set(keyed.keys)) == 5
    assert len(keyed.mutations) == 11


def test_pyiceberg_still_has_its_own_errors(
    pyiceberg: Callable[[str], PyIceberg], keyed: KeyedCatalog
) -> None:
    catalog = pyiceberg(keyed.url)
    catalog._session.mount(keyed.url, IdempotentAdapter(sleep=lambda _: None))
    name = f"typed{next(_numbers)}"
    catalog.create_namespace(name)
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace(name)
    table = catalog.create_table((name, "t"), ROWS)
    stale = catalog.load_table((name, "t"))
    with table.update_schema() as update:
        update.add_column("a", LongType())
    update = stale.update_schema().add_column("b", LongType())
    keyed.break_with(answers(error(409, kind="CommitFailedException")))
    with pytest.raises(CommitFailedException):
        update.commit()


def test_pyiceberg_does_not_take_one_in_progress_for_a_lost_race(
    pyiceberg: Callable[[str], PyIceberg], keyed: KeyedCatalog
) -> None:
    catalog = pyiceberg(keyed.url)
    catalog._session.mount(keyed.url, IdempotentAdapter(sleep=lambda _: None))
    name = f"typed{next(_numbers)}"
    catalog.create_namespace(name)
    table = catalog.create_table((name, "t"), ROWS)
    keyed.break_with(*[in_progress()] * 50)
    with pytest.raises(RequestInProgress), table.transaction() as transaction:
        transaction.set_properties(owner="me")


def test_pyiceberg_on_a_catalog_without_keys_is_as_before(
    pyiceberg: Callable[[str], PyIceberg], mute: KeyedCatalog
) -> None:
    catalog = pyiceberg(mute.url)
    catalog._session.mount(mute.url, IdempotentAdapter(sleep=lambda _: None))
    mute.break_with(reset_after)
    with pytest.raises(requests.ConnectionError):
        catalog.create_namespace(f"typed{next(_numbers)}")
    assert mute.keys == [""]
