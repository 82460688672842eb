"""The typed client, and pyiceberg with the adapter, on a broken way to a real catalog."""

from __future__ import annotations

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
    BadRequest,
    CommitStateUnknown,
    IdempotencyKeyConflict,
    IdempotencyWindowExpired,
    OutcomeUnknown,
    RequestInProgress,
)
from moraine.local.stack import Stack
from support.gateway import SCHEMA
from support.keyed_catalog import (
    KeyedCatalog,
    answers,
    error,
    half_an_answer,
    in_progress,
    reset_after,
    reset_before,
    silent_after,
)
from support.oauth_server import Realm, running_realm
from support.typed_client import SET_OWNER, MakeClient, new_namespace


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
    """Makes catalogs of pyiceberg's, each with the one line that gives it keys."""
    made: list[PyIceberg] = []

    def make(url: str) -> PyIceberg:
        made.append(PyIceberg("c", uri=url))
        made[-1]._session.mount(url, IdempotentAdapter(sleep=lambda _: None))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_pyiceberg_gets_keys_in_one_line(
    pyiceberg: Callable[[str], PyIceberg], keyed: KeyedCatalog
) -> None:
    catalog = pyiceberg(keyed.url)
    name = new_namespace()
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
    name = new_namespace()
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
    name = new_namespace()
    catalog.create_namespace(name)
    table = catalog.create_table((name, "t"), ROWS)
    keyed.break_with(*[in_progress()] * 50)
    with pytest.raises(RequestInProgress), table.transaction() as transaction:
        transaction.set_properties(owner="me")


def test_pyiceberg_on_a_catalog_without_keys_is_as_before(
    pyiceberg: Callable[[str], PyIceberg], mute: KeyedCatalog
) -> None:
    catalog = pyiceberg(mute.url)
    mute.break_with(reset_after)
    with pytest.raises(requests.ConnectionError):
        catalog.create_namespace(new_namespace())
    assert mute.keys == [""]
