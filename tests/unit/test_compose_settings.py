"""Settings and catalog of the Compose file agree."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator

import pytest

from moraine.secret_names import is_secret_name
from moraine.settings import Settings, get_settings
from support.compose import (
    COMPOSE,
    ROOT,
    SERVICES,
    environment_of,
    filled_in,
    mounts_of,
    spark_defaults,
)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("MORAINE_CONFIG", str(ROOT / "docker/moraine.toml"))
    for name, value in environment_of("scheduler").items():
        if name.startswith("MORAINE_") and name != "MORAINE_CONFIG":
            monkeypatch.setenv(name, filled_in(value))
    get_settings.cache_clear()
    yield get_settings()
    get_settings.cache_clear()


def test_compose_settings_are_valid_and_name_services_that_exist(settings: Settings) -> None:
    urls = [settings.airflow.url, settings.catalogs["demo"].uri]
    assert [re.split(r"[:/]+", url)[1] for url in urls] == ["api-server", "polaris"]
    assert "@postgres:5432/moraine" in settings.ledger.url.get_secret_value()
    written = (ROOT / "docker/moraine.toml").read_text()
    keys = re.findall(r"^([\w.-]+) *=", written, re.M)
    assert [key for key in keys if is_secret_name(key)] == []


def test_compose_polaris_serves_the_realm_and_the_catalog_of_the_settings(
    settings: Settings,
) -> None:
    polaris = environment_of("polaris")
    assert polaris["POLARIS_REALM_CONTEXT_REALMS"] == settings.realm
    assert polaris["POLARIS_BOOTSTRAP_CREDENTIALS"].split(",")[0] == settings.realm
    script = SERVICES["polaris-init"]["command"][0]
    assert re.findall(r"--realm=(\w+) --credential=\"(\w+),", script) == [
        (settings.realm, settings.realm)
    ]
    catalog = settings.catalogs["demo"]
    made = (ROOT / "docker/create_catalog.py").read_text()
    assert f'NAME = "{catalog.warehouse}"' in made
    assert catalog.auth.client_id == "root"
    assert polaris["POLARIS_BOOTSTRAP_CREDENTIALS"].split(",")[1:] == [
        environment_of("scheduler")[f"MORAINE_CATALOGS__DEMO__AUTH__CLIENT_{what}"]
        for what in ("ID", "SECRET")
    ]
    defaults = spark_defaults((ROOT / "docker/spark/spark-defaults.conf").read_text())
    assert defaults["spark.sql.catalog.demo.uri"] == catalog.uri
    assert defaults["spark.sql.catalog.demo.warehouse"] == catalog.warehouse


def test_compose_files_can_be_reached_though_polaris_vends_nothing(settings: Settings) -> None:
    made = runpy.run_path(str(ROOT / "docker/create_catalog.py"))
    store = made["CATALOG"]["storageConfigInfo"]
    assert store["stsUnavailable"]
    catalog = settings.catalogs["demo"]
    assert catalog.holds_storage_keys
    assert catalog.storage_properties == {
        "s3.endpoint": store["endpoint"],
        "s3.path-style-access": "true",
        "client.region": store["region"],
        "s3.access-key-id": "secret",
        "s3.secret-access-key": "secret",
    }
    init = environment_of("catalog-init")
    assert init["S3_URL"] == store["endpoint"]
    assert store["allowedLocations"] == catalog.allowed_locations
    assert catalog.allowed_locations[0].startswith(f"s3://{made['BUCKET']}/")
    identity = json.loads(COMPOSE["configs"]["s3-identities"]["content"])["identities"][0]
    assert identity["credentials"] == [
        {"accessKey": init["S3_ACCESS_KEY"], "secretKey": init["S3_SECRET_KEY"]}
    ]
    assert SERVICES["scheduler"]["depends_on"]["catalog-init"]


# --- TLS ------------------------------------------------------------------------------------


def test_compose_lets_machines_in_by_mutual_tls_only(settings: Settings) -> None:
    assert settings.api.tls.client_auth == "required"
    assert settings.otlp_tls.client_auth == "required"
    entry = SERVICES["moraine-api"]
    assert entry["entrypoint"] == ["moraine"]
    assert "--insecure" not in entry["healthcheck"]["test"]


def test_compose_verifies_every_connection_to_postgres(settings: Settings) -> None:
    rules = (ROOT / "docker/postgres/pg_hba.conf").read_text().splitlines()
    assert {line.split()[0] for line in rules if not line.startswith("#")} == {"local", "hostssl"}
    options = SERVICES["postgres"]["command"]
    assert {"ssl=on", "hba_file=/etc/moraine/pg_hba.conf"} <= set(options)
    addresses = {
        value
        for service in SERVICES
        for name, value in environment_of(service).items()
        if "@postgres:" in value or "//postgres:" in value
        if not name.startswith("MORAINE_LEDGER__")  # ledger.tls applies to these
    }
    assert len(addresses) == 3
    for address in (*addresses, settings.ledger.address):
        assert "sslmode=verify-full" in address, address
        assert "sslrootcert=" in address, address


def test_compose_makes_and_mounts_every_file_of_tls(settings: Settings) -> None:
    made = {"ca", "server", "moraine", "polaris", "postgres"}
    assert {path.stem for path in (settings.api.tls.cert, settings.api.tls.ca) if path} <= made
    used = re.findall(
        r"/etc/moraine/tls/(\w+)[.](?:crt|key)", (ROOT / "docker-compose.yaml").read_text()
    )
    assert set(used) <= made
    for name, service in SERVICES.items():
        if "/etc/moraine/tls/" in json.dumps(service):
            assert mounts_of(name)["/etc/moraine/tls"] == "tls", name
