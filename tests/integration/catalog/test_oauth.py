"""A catalog that wants a token for everything, and an endpoint that gives short-lived ones."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import cloudpickle

from moraine.catalog.access import TableAccess
from moraine.catalog.client import RestCatalog
from moraine.errors import CatalogRefused, CatalogUnavailable
from moraine.local.stack import Stack
from moraine.settings import CatalogAuthSettings, CatalogSettings
from support.oauth_server import Realm, running_realm


@pytest.fixture
def realm(catalog_stack: Stack) -> Iterator[Realm]:
    with running_realm(catalog_stack.catalog.url, Realm()) as realm:
        yield realm


@pytest.fixture
def table(
    make_namespace: Callable[..., list[str]], make_table: Callable[..., dict[str, Any]]
) -> tuple[list[str], str]:
    namespace = make_namespace()
    make_table(namespace, "orders")
    return namespace, "orders"


def settings(realm: Realm, **changes: Any) -> CatalogSettings:
    given = {
        "kind": "oauth2",
        "client_id": realm.client_id,
        "client_secret": realm.client_secret,
        **changes,
    }
    return CatalogSettings(
        uri=realm.catalog_uri,
        auth=CatalogAuthSettings(**given),
        storage={"s3.endpoint": "http://127.0.0.1:9", "s3.secret-access-key": "hunter2"},
    )


@pytest.mark.parametrize("client_auth", ["body", "basic"])
@pytest.mark.parametrize("endpoint", ["own", "other"])
def test_catalog_oauth_lets_a_client_in(
    realm: Realm, table: tuple[list[str], str], client_auth: str, endpoint: str
) -> None:
    token_uri = realm.token_uri if endpoint == "other" else ""
    catalog = RestCatalog(settings(realm, client_auth=client_auth, token_uri=token_uri))
    assert catalog.load_table(*table).uuid
    assert "orders" in list(catalog.list_tables(table[0]))
    assert len(realm.issued) == 1
    assert realm.basic_used == (client_auth == "basic")


def test_catalog_oauth_client_outlives_its_tokens(
    realm: Realm, table: tuple[list[str], str]
) -> None:
    realm.lifetime = 0.5
    catalog = RestCatalog(settings(realm))
    began, calls = time.monotonic(), 0
    while time.monotonic() - began < 2.2:
        assert catalog.load_table(*table, snapshots="refs").uuid
        calls += 1
    assert len(realm.issued) >= 4
    assert realm.turned_away <= 1, "they are renewed before they are refused"
    assert calls > len(realm.issued)


def test_catalog_oauth_renews_a_revoked_token_once(
    realm: Realm, table: tuple[list[str], str]
) -> None:
    catalog = RestCatalog(settings(realm))
    catalog.load_table(*table)
    realm.revoke()
    assert catalog.load_table(*table).uuid
    assert (len(realm.issued), realm.turned_away) == (2, 1)
    # Two catalogs of one process share the new one.
    RestCatalog(settings(realm)).load_table(*table)
    assert len(realm.issued) == 2


def test_catalog_oauth_refuses_a_client_turned_away_with_a_new_token(
    realm: Realm, table: tuple[list[str], str]
) -> None:
    realm.lifetime = -1
    with pytest.raises(CatalogRefused, match=r"401: Not authorized: Bearer \*\*\*"):
        RestCatalog(settings(realm)).load_table(*table)
    assert realm.turned_away == 2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"client_secret": "a-guess"}, r"invalid_client: \*\*\* is not the secret of moraine"),
        ({"client_id": "somebody"}, "invalid_client"),
        ({"scope": "PRINCIPAL_ROLE:ALL"}, "invalid_scope"),
    ],
)
def test_catalog_oauth_refuses_a_wrong_client(
    realm: Realm, table: tuple[list[str], str], wrong: dict[str, str], says: str
) -> None:
    RestCatalog(settings(realm)).load_table(*table)
    with pytest.raises(CatalogRefused, match=says) as caught:
        RestCatalog(settings(realm, **wrong)).load_table(*table)
    assert caught.value.code == "CREDENTIAL_VENDING_FAILED"
    assert "Check its token-uri, client-id, scope and client-auth" in str(caught.value)


def test_catalog_oauth_reports_an_endpoint_that_is_down_as_an_outage(
    realm: Realm, table: tuple[list[str], str]
) -> None:
    realm.failure = 503
    catalog = RestCatalog(settings(realm))
    with pytest.raises(CatalogUnavailable, match="answered 503"):
        catalog.load_table(*table)
    realm.failure = None
    assert catalog.load_table(*table).uuid, "the next try is not held against it"
    with pytest.raises(CatalogUnavailable, match="did not answer"):
        RestCatalog(settings(realm, token_uri="http://127.0.0.1:1/t")).load_table(*table)


def test_catalog_oauth_accepts_a_static_token_until_it_expires(
    realm: Realm, table: tuple[list[str], str]
) -> None:
    realm.issued["static-token"] = time.monotonic() + 60
    bearer = CatalogAuthSettings(kind="bearer", token="static-token")
    catalog = RestCatalog(CatalogSettings(uri=realm.catalog_uri, auth=bearer))
    assert catalog.load_table(*table).uuid
    realm.revoke()
    with pytest.raises(CatalogRefused, match=r"Not authorized: Bearer \*\*\*"):
        catalog.load_table(*table)
    with pytest.raises(CatalogRefused, match=r"Not authorized: $"):
        RestCatalog(CatalogSettings(uri=realm.catalog_uri)).load_table(*table)


_EXECUTOR = """
import pickle, sys
access = pickle.load(sys.stdin.buffer)
found = access.credentials()
print(access.load().uuid, found.for_location("s3://b/x")["s3.endpoint"], repr(access), repr(found))
"""


def test_catalog_oauth_access_works_in_a_process_that_gets_only_the_closure(
    realm: Realm, table: tuple[list[str], str]
) -> None:
    access = TableAccess(settings(realm), tuple(table[0]), table[1])
    assert pickle.loads(pickle.dumps(access)) == access
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MORAINE_", "AIRFLOW"))}
    done = subprocess.run(
        [sys.executable, "-c", _EXECUTOR],
        input=cloudpickle.dumps(access),
        env={**kept, "MORAINE_CONFIG": "/nowhere"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, output
    uuid = RestCatalog(settings(realm)).load_table(*table).uuid
    assert output.startswith(f"{uuid} http://127.0.0.1:9 TableAccess(")
    assert realm.client_secret not in output
    assert "hunter2" not in output


def test_catalog_oauth_logs_and_shows_no_secret(
    realm: Realm, table: tuple[list[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    catalog = RestCatalog(settings(realm))
    catalog.load_table(*table)
    realm.revoke()
    catalog.load_table(*table)
    shown = [repr(settings(realm)), repr(catalog), str(vars(catalog)), caplog.text]
    shown += [settings(realm).model_dump_json(), str(settings(realm).model_dump())]
    for wrong in ({"client_secret": "a-guess+/"}, {"scope": "no"}):
        with pytest.raises(CatalogRefused) as caught:
            RestCatalog(settings(realm, **wrong)).load_table(*table)
        shown += [str(caught.value), repr(caught.value), str(caught.value.__cause__)]
    everything = "\n".join(shown)
    for secret in (realm.client_secret, "hunter2", "a-guess+/", *realm.issued):
        assert secret not in everything
