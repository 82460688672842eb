"""`connect()`: PyIceberg with keys, on a broken way to a real catalog."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import requests
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    ServiceUnavailableError,
)
from pyiceberg.table import Table
from pyiceberg.types import LongType

from moraine.catalog.auth import ClientCredentialsAuth
from moraine.catalog.oauth import ClientSecret, OAuthClient, TokenSource
from moraine.client.adapter import idempotency_key
from moraine.client.errors import (
    IdempotencyKeyConflict,
    IdempotencyWindowExpired,
    OutcomeUnknown,
    RequestStillInProgress,
)
from moraine.http.keys import InvalidKey
from moraine.local.stack import Stack
from support.connected import ROWS, Connect, new_namespace
from support.keyed_catalog import (
    Fault,
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

ONE_ROW = pa.table({"id": pa.array([1], pa.int64())})


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


def set_owner(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties(owner="me")


# --- With keys ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [reset_before, reset_after, half_an_answer, answers(error(503), executed=True)]
)
def test_idempotent_client_executes_a_broken_mutation_once(
    connect: Connect, keyed: KeyedCatalog, fault: Fault
) -> None:
    catalog = connect(keyed.url)
    name = new_namespace()
    keyed.break_with(fault)
    catalog.create_namespace(name)
    keyed.break_with(fault)
    table = catalog.create_table((name, "t"), ROWS)
    keyed.break_with(fault, in_progress())
    table.append(ONE_ROW)
    assert catalog.load_table((name, "t")).scan().to_arrow() == ONE_ROW
    keyed.break_with(fault)
    catalog.rename_table((name, "t"), (name, "u"))
    keyed.break_with(fault)
    catalog.drop_table((name, "u"))
    assert len(keyed.executed) == len(set(keyed.keys)) == 5
    assert len(keyed.mutations) == 11


def test_idempotent_client_uses_a_key_of_the_caller(
    connect: Connect, keyed: KeyedCatalog, namespace: str
) -> None:
    catalog = connect(keyed.url)
    for _ in range(2):
        with idempotency_key("mine"):
            table = catalog.create_table((namespace, "t"), ROWS)
    with pytest.raises(IdempotencyKeyConflict), idempotency_key("mine"):
        catalog.create_table((namespace, "u"), ROWS)
    assert keyed.keys == ["mine"] * 3
    assert len(keyed.executed) == 1
    with idempotency_key("other"):
        set_owner(table)
        catalog.drop_table((namespace, "t"))
    assert keyed.keys[3] == "other"
    assert keyed.keys[4] not in ("other", "")


def test_idempotent_client_refuses_a_malformed_key_before_anything_is_sent(
    keyed: KeyedCatalog,
) -> None:
    with pytest.raises(InvalidKey), idempotency_key("mine\n"):
        pytest.fail("the block ran")


def test_idempotent_client_retries_end_with_the_lifetime_of_the_key(
    connect: Connect, keyed: KeyedCatalog, namespace: str
) -> None:
    keyed.config["idempotency-key-lifetime"] = "PT0.01S"
    keyed.break_with(*[answers(error(503, retry_after="1"))] * 50)
    with pytest.raises(IdempotencyWindowExpired) as caught:
        connect(keyed.url).create_table((namespace, "t"), ROWS)
    assert isinstance(caught.value, OutcomeUnknown)
    assert keyed.executed == []


def test_idempotent_client_does_not_take_a_request_in_progress_for_a_lost_race(
    connect: Connect, keyed: KeyedCatalog, namespace: str
) -> None:
    table = connect(keyed.url).create_table((namespace, "t"), ROWS)
    keyed.break_with(*[in_progress()] * 50)
    with pytest.raises(RequestStillInProgress) as caught:
        set_owner(table)
    assert set(keyed.keys[1:]) == {caught.value.key}


@pytest.mark.parametrize(
    "lost", [reset_after, answers(error(503), executed=True), answers(error(408))]
)
def test_idempotent_client_reports_a_key_conflict_after_a_lost_answer_as_unknown(
    connect: Connect, keyed: KeyedCatalog, namespace: str, lost: Fault
) -> None:
    table = connect(keyed.url, deconflict=True).create_table((namespace, "t"), ROWS)
    keyed.break_with(lost, answers(error(422, "idempotency_key_conflict")))
    with pytest.raises(CommitStateUnknownException):
        set_owner(table)


def test_idempotent_client_keeps_the_key_with_a_renewed_token(
    connect: Connect, catalog_stack: Stack, keyed: KeyedCatalog, namespace: str
) -> None:
    catalog = connect(keyed.url)
    with running_realm(catalog_stack.catalog.url, Realm()) as realm:
        oauth = OAuthClient(
            realm.token_uri, realm.client_id, ClientSecret(realm.client_secret), "catalog"
        )
        catalog._session.auth = ClientCredentialsAuth(TokenSource(oauth))
        keyed.break_with(answers(error(401)), reset_after)
        catalog.create_table((namespace, "t"), ROWS)
    tokens = [request.header("Authorization") for request in keyed.mutations]
    assert tokens[0] != tokens[1] == tokens[2]
    assert len(set(keyed.keys)) == len(keyed.executed) == 1


def test_idempotent_client_keeps_pyicebergs_own_errors(
    connect: Connect, keyed: KeyedCatalog
) -> None:
    catalog = connect(keyed.url)
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


def test_idempotent_client_takes_warehouse_prefix_and_uri_from_the_configuration(
    connect: Connect,
) -> None:
    with KeyedCatalog() as server, KeyedCatalog() as moved:
        server.config |= {
            "overrides": {
                "uri": f"{moved.url}/api",
                "prefix": "catalogs/main",
                "namespace-separator": "%2E",
            }
        }
        catalog = connect(server.url, warehouse="dev", adapter=None)
        moved.break_with(reset_after)
        catalog.drop_table(("a", "b/c", "t/u"))
        path = "/api/v1/catalogs/main/namespaces/a.b%2Fc/tables/t%2Fu?"
        assert moved.mutations[0].target.startswith(path)
        assert server.configs_asked_for[0].query == {"warehouse": "dev"}
        assert moved.configs_asked_for[0].query == {"warehouse": "dev"}
        assert len(moved.executed) == len(set(moved.keys)) == 1


# --- Without keys ---------------------------------------------------------------------------


def test_idempotent_client_retries_nothing_without_keys(
    connect: Connect, mute: KeyedCatalog, namespace: str
) -> None:
    catalog = connect(mute.url)
    table = catalog.create_table((namespace, "t"), ROWS)
    mute.break_with(reset_after)
    with pytest.raises(requests.ConnectionError):
        set_owner(table)
    mute.break_with(answers(error(503)))
    with pytest.raises(ServiceUnavailableError):
        catalog.drop_table((namespace, "t"))
    assert mute.keys == [""] * 3
    assert catalog.table_exists((namespace, "t"))


def test_idempotent_client_reports_an_answer_that_does_not_come_in_time_as_unknown(
    connect: Connect, mute: KeyedCatalog, namespace: str
) -> None:
    never = threading.Event()
    table = connect(mute.url, timeout=0.5, deconflict=True).create_table((namespace, "t"), ROWS)
    mute.break_with(silent_after(never))
    with pytest.raises(CommitStateUnknownException, match="Read timed out"):
        set_owner(table)
    never.set()
    assert len(mute.mutations) == 2


@pytest.mark.parametrize(
    "lost",
    [
        reset_after,
        half_an_answer,
        *(answers(error(status), executed=True) for status in (408, 500, 502, 503, 504)),
        answers(as_json(200, {}), executed=True),
    ],
)
def test_idempotent_client_deconfliction_finds_the_commit(
    connect: Connect, mute: KeyedCatalog, namespace: str, lost: Fault
) -> None:
    table = connect(mute.url, deconflict=True).create_table((namespace, "t"), ROWS)
    mute.break_with(lost)
    table.append(ONE_ROW)
    assert table.scan().to_arrow() == ONE_ROW
    assert len(mute.mutations) == 2


def test_idempotent_client_deconfliction_says_what_it_looked_for(
    connect: Connect, mute: KeyedCatalog, namespace: str
) -> None:
    catalog = connect(mute.url, deconflict=True)
    table = catalog.create_table((namespace, "t"), ROWS)
    mute.break_with(reset_before)
    with pytest.raises(CommitStateUnknownException, match=r"Looked for the snapshots \d+ of"):
        table.append(ONE_ROW)
    mute.break_with(reset_after)
    with pytest.raises(CommitStateUnknownException, match="adds no snapshot"):
        set_owner(table)
    mute.break_with(reset_before)
    mute.read = lambda *_: error(404)  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknownException, match=r"look for the snapshots \d+ .* failed"):
        table.append(ONE_ROW)


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (error(409, kind="CommitFailedException"), CommitFailedException),
        (error(422, "idempotency_key_conflict"), IdempotencyKeyConflict),
    ],
)
def test_idempotent_client_does_not_look_for_a_failed_commit(
    connect: Connect, mute: KeyedCatalog, namespace: str, answer: Any, raised: type[Exception]
) -> None:
    table = connect(mute.url, deconflict=True).create_table((namespace, "t"), ROWS)
    seen = len(mute.seen)
    mute.break_with(answers(answer))
    with pytest.raises(raised):
        set_owner(table)
    assert len(mute.seen) == seen + 1
