"""Engines that know nothing of Moraine, through the gateway, on S3 with vended credentials.

Each changes one line: the catalog's uri."""

from __future__ import annotations

import threading
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import requests
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError

from moraine.ledger.pools import open_pool
from moraine.settings import CatalogSettings, Settings
from moraine.tasks.store import TaskStore
from moraine.tasks.worker import Worker
from support.airflow_server import PASSWORD, airflow_server
from support.api_server import running_api
from support.drivers import attempt, settings_for
from support.engines import ROWS, live_with_pyiceberg, live_with_spark
from support.nessie import Nessie
from support.s3_catalog import add_catalog
from support.seaweedfs import SeaweedFS
from support.stores import BUCKET
from support.vending import VendingCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Site:
    """A gateway, the catalog behind it, and a worker for the purges it delegates."""

    name: str
    uri: str
    properties: dict[str, str]
    settings: Settings
    spark: SparkSession
    ledger_url: str
    s3: SeaweedFS

    def new_namespace(self) -> str:
        return f"n{uuid.uuid4().hex[:10]}"

    def spark_catalog(self) -> str:
        """The session's name for the catalog behind the gateway."""
        alias = f"gateway_{uuid.uuid4().hex[:8]}"
        add_catalog(self.spark, alias, self.uri, {**self.properties, "rest-catalog-purge": "true"})
        return alias

    def pyiceberg(self) -> Catalog:
        return load_catalog(self.name, type="rest", uri=self.uri, **self.properties)

    def objects(self, name: str) -> set[str]:
        return {key for key in self.s3.keys_in(BUCKET, "") if f"/{name}" in key}

    @contextmanager
    def working(self) -> Iterator[None]:
        """Somebody purges what the gateway delegates, as a Dag does."""
        ended = threading.Event()
        lease = self.settings.delegation.task.lease.lost_timeout_duration

        def work() -> None:
            with open_pool(self.ledger_url, size=8) as pool:
                store = TaskStore(pool, lease=lease)
                while not ended.wait(0.1):
                    for task in store.due(1):
                        worker = Worker(store, self.settings, f"worker-{task.version}")
                        attempt(worker, task.task_id, lambda: self.spark)

        thread = threading.Thread(target=work, name="worker")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def keys(self) -> dict[str, int]:
        """How many requests came with a key, by operation."""
        with psycopg.connect(self.ledger_url) as ledger:
            rows = ledger.execute(
                "SELECT intent->>'operation', count(*) FROM idempotency_records GROUP BY 1"
            )
            return dict(rows.fetchall())


@contextmanager
def running_site(
    name: str,
    catalog: CatalogSettings,
    properties: dict[str, str],
    folder: Path,
    ledger_url: str,
    spark: SparkSession,
    s3: SeaweedFS,
) -> Iterator[Site]:
    with airflow_server() as airflow:
        base = settings_for(folder, {name: catalog})
        settings = base.model_copy(
            update={
                "ledger": base.ledger.model_validate({"url": ledger_url}),
                "airflow": base.airflow.model_validate(
                    {"url": airflow.url, "password": PASSWORD, "timeout": "1s"}
                ),
            }
        )
        with running_api(settings) as origin:
            uri = f"{origin}/catalog/{name}"
            if "credential" in properties:
                properties["oauth2-server-uri"] = f"{uri}/v1/oauth/tokens"
            yield Site(name, uri, properties, settings, spark, ledger_url, s3)


@pytest.fixture
def on_fixture(
    tmp_path: Path,
    ledger_url: str,
    vending_catalog: VendingCatalog,
    spark: SparkSession,
    seaweedfs: SeaweedFS,
) -> Iterator[Site]:
    """Iceberg's own catalog, behind OAuth2 and with keys of an STS for every table."""
    vending = vending_catalog
    principal = CatalogSettings.model_validate(
        {
            "uri": vending.url,
            "allowed_locations": [f"s3://{BUCKET}/warehouse"],
            "auth": {
                "kind": "oauth2",
                "client_id": vending.client_id,
                "client_secret": vending.client_secret,
                "scope": vending.scope,
            },
        }
    )
    properties = {
        "credential": f"{vending.client_id}:{vending.client_secret}",
        "scope": vending.scope,
        "header.X-Iceberg-Access-Delegation": "vended-credentials",
        "token-exchange-enabled": "false",
    }
    with running_site(
        "lake", principal, properties, tmp_path, ledger_url, spark, seaweedfs
    ) as site:
        yield site


@pytest.fixture
def on_nessie(
    tmp_path: Path, ledger_url: str, nessie: Nessie, spark: SparkSession, seaweedfs: SeaweedFS
) -> Iterator[Site]:
    """Another catalog, with STS keys of its own and a prefix in every path."""
    catalog = CatalogSettings(uri=nessie.url, warehouse=nessie.warehouse)
    properties = nessie.spark_properties()
    with running_site(
        "nessie", catalog, properties, tmp_path, ledger_url, spark, seaweedfs
    ) as site:
        yield site


@pytest.fixture(params=["on_fixture", "on_nessie"])
def site(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue(request.param)
    return found


def test_spark_lives_a_tables_life(site: Site) -> None:
    spark, catalog, namespace = site.spark, site.spark_catalog(), site.new_namespace()
    folder = live_with_spark(spark, catalog, namespace).rpartition("/")[2]
    assert site.objects(folder)

    with site.working():
        spark.sql(f"DROP TABLE {catalog}.{namespace}.bills PURGE")

    assert not spark.catalog.tableExists(f"{catalog}.{namespace}.bills")
    left = site.objects(folder)
    # Nessie keeps what belongs to its own history.
    assert left == set() or site.name == "nessie"
    assert not any(key.endswith(".parquet") for key in left)
    spark.sql(f"DROP NAMESPACE {catalog}.{namespace}")
    keys = site.keys()
    assert keys["createNamespace"] == keys["createTable"] == keys["renameTable"] == 1
    assert keys["updateTable"] >= 4
    assert keys["dropTable"] == keys["dropNamespace"] == 1


def test_pyiceberg_lives_a_tables_life(site: Site) -> None:
    catalog, namespace = site.pyiceberg(), site.new_namespace()
    # Nessie answers 500 to PyIceberg's new columns, also without a gateway before it.
    location = live_with_pyiceberg(catalog, namespace, evolves=site.name != "nessie")
    folder = location.rpartition("/")[2]
    assert site.objects(folder)

    with site.working():
        catalog.purge_table(f"{namespace}.bills")

    with pytest.raises(NoSuchTableError):
        catalog.load_table(f"{namespace}.bills")
    assert not any(key.endswith(".parquet") for key in site.objects(folder))
    kept = catalog.create_table(f"{namespace}.kept", schema=ROWS.schema)
    kept.append(ROWS)
    catalog.drop_table(f"{namespace}.kept")
    assert any(
        key.endswith(".parquet") for key in site.objects(kept.location().rpartition("/")[2])
    ), "a plain drop keeps the files"
    catalog.drop_namespace(namespace)


def test_a_replayed_create_has_fresh_credentials_and_the_ledger_none(on_fixture: Site) -> None:
    site = on_fixture
    token = _token(site)
    headers = {
        "Authorization": f"Bearer {token}",
        "X-Iceberg-Access-Delegation": "vended-credentials",
        "Idempotency-Key": "vended-once",
    }
    namespace = site.new_namespace()
    site.pyiceberg().create_namespace(namespace)
    field = {"id": 1, "name": "id", "type": "long", "required": False}
    body = {"name": "orders", "schema": {"type": "struct", "schema-id": 0, "fields": [field]}}
    url = f"{site.uri}/v1/namespaces/{namespace}/tables"

    first = requests.post(url, json=body, headers=headers, timeout=30)
    again = requests.post(url, json=body, headers=headers, timeout=30)

    assert (first.status_code, again.status_code) == (200, 200), again.text
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.json()["metadata"] == first.json()["metadata"]
    secrets = [_secret(response.json()) for response in (first, again)]
    assert all(secrets)
    assert secrets[0] != secrets[1], "each was made for its own request"
    with psycopg.connect(site.ledger_url) as ledger:
        rows = ledger.execute(
            "SELECT idempotency_records::text, response_body FROM idempotency_records"
        )
        for text, packed in rows:
            kept = text + (zlib.decompress(packed).decode() if packed else "")
            assert token not in kept
            assert not any(secret in kept for secret in secrets)
            assert "storage-credentials" not in kept

    stranger = requests.post(
        url, json=body, headers={**headers, "Authorization": "Bearer nobody"}, timeout=30
    )
    assert stranger.status_code == 401


def _token(site: Site) -> str:
    client, secret = site.properties["credential"].split(":")
    form = {
        "grant_type": "client_credentials",
        "client_id": client,
        "client_secret": secret,
        "scope": site.properties["scope"],
    }
    answer = requests.post(f"{site.uri}/v1/oauth/tokens", data=form, timeout=30)
    return str(answer.json()["access_token"])


def _secret(loaded: dict[str, Any]) -> str:
    found = dict(loaded.get("config") or {})
    for credential in loaded.get("storage-credentials") or ():
        found |= credential["config"]
    return str(found["s3.secret-access-key"])
