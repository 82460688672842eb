"""The embedded stack with TLS: a purge through mutual TLS, and what is refused."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog

from moraine.http import DELEGATION_PATH
from moraine.local.stack import Stack
from moraine.settings import ClientTlsSettings
from moraine.tls.contexts import secured
from support.waiting import PATIENCE

pytestmark = pytest.mark.timeout(900, func_only=False)
SYNC = f"{DELEGATION_PATH}/v1/tasks/execute/synchronous"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack.ephemeral(tmp_path_factory.mktemp("tls"), tls=True) as stack:
        stack.up()
        yield stack


def token_of(stack: Stack) -> str:
    """As a person gets it: from Airflow, whose certificate is verified."""
    with secured(requests.Session(), ClientTlsSettings(ca=stack.certificates.ca)) as session:
        answer = session.post(
            f"{stack.airflow.url}/auth/token",
            json={"username": "admin", "password": stack.vault.airflow_admin},
            timeout=30,
        )
        return str(answer.json()["access_token"])


def write_table(stack: Stack, name: str) -> Path:
    catalog = RestCatalog("demo", uri=stack.catalog.url)
    catalog.create_namespace_if_not_exists("shop")
    rows = pyarrow.table({"id": [1, 2, 3]})
    catalog.create_table(f"shop.{name}", schema=rows.schema).append(rows)
    return stack.catalog.warehouse / "shop" / name


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_purge_through_mutual_tls(stack: Stack) -> None:
    folder = write_table(stack, "orders")
    assert files_below(folder)
    payload = {
        "common_payload": {"operation_type": "TABLE_PURGE", "realm_identifier": "demo"},
        "operation_parameters": {
            "table_identity": {
                "catalog_name": "demo",
                "namespace_levels": ["shop"],
                "table_name": "orders",
            }
        },
    }
    with secured(requests.Session(), stack.certificates.client) as session:
        answer = session.post(
            f"{stack.parts['moraine-api'].url}{SYNC}",
            json=payload,
            headers={"Authorization": f"Bearer {token_of(stack)}"},
            timeout=PATIENCE,
        )
    assert answer.status_code == 200, answer.text
    assert files_below(folder) == []


def test_a_stranger_gets_nothing_without_a_certificate(stack: Stack) -> None:
    stranger = ClientTlsSettings(ca=stack.certificates.ca)
    live = f"{stack.parts['moraine-api'].url}{DELEGATION_PATH}/health/live"
    session = secured(requests.Session(), stranger)
    with session, pytest.raises(requests.ConnectionError):
        session.get(live, timeout=30)


def test_postgres_refuses_plain_connections(stack: Stack) -> None:
    url = stack.postgres.ledger_url
    with psycopg.connect(stack.postgres.admin_url) as connection:
        encrypted = connection.execute(
            "select usename, bool_and(ssl) from pg_stat_activity join pg_stat_ssl using (pid)"
            " where client_addr is not null group by usename"
        ).fetchall()
    assert dict(encrypted) == {"airflow": True, "moraine": True, "postgres": True}
    with pytest.raises(psycopg.OperationalError, match="no encryption"):
        psycopg.connect(url.replace("verify-full", "disable"), connect_timeout=5)


def test_airflow_does_not_speak_plain_http(stack: Stack) -> None:
    plain = stack.airflow.url.replace("https", "http")
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{plain}/api/v2/monitor/health", timeout=30)
    with pytest.raises((requests.exceptions.SSLError, ssl.SSLError)):
        requests.get(f"{stack.airflow.url}/api/v2/monitor/health", timeout=30)  # an unknown CA
