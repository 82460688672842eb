"""Settings of TLS, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel, SecretStr, ValidationError

from moraine.settings import (
    AirflowSettings,
    CatalogSettings,
    ClientTlsSettings,
    LedgerSettings,
    ListenerTlsSettings,
    Settings,
)

FILES = {"ca": Path("/t/ca.crt"), "cert": Path("/t/a b.crt"), "key": Path("/t/a.key")}


def ledger(url: str, **tls: Path) -> dict[str, Any]:
    settings = LedgerSettings(url=SecretStr(url), tls=ClientTlsSettings(**tls))
    return conninfo_to_dict(settings.address)


def test_without_tls_the_ledgers_address_stays() -> None:
    url = "postgresql://u:p@h:1/d?sslmode=require&application_name=x"
    assert LedgerSettings(url=SecretStr(url)).address == url


def test_the_ledgers_address_gets_libpqs_parameters() -> None:
    assert ledger("postgresql://u:p%40@h:1/d?connect_timeout=3", **FILES) == {
        "user": "u",
        "password": "p@",
        "host": "h",
        "port": "1",
        "dbname": "d",
        "connect_timeout": "3",
        "sslmode": "verify-full",
        "sslrootcert": "/t/ca.crt",
        "sslcert": "/t/a b.crt",
        "sslkey": "/t/a.key",
    }


@pytest.mark.parametrize("query", ["sslmode=disable", "sslmode=require&sslrootcert=/x"])
def test_an_address_cannot_weaken_the_ledgers_tls(query: str) -> None:
    found = ledger(f"postgresql://h/d?{query}", ca=FILES["ca"])
    assert (found["sslmode"], found["sslrootcert"]) == ("verify-full", "/t/ca.crt")


def test_an_own_certificate_without_a_ca_trusts_the_systems() -> None:
    own = {name: path for name, path in FILES.items() if name != "ca"}
    assert ledger("postgresql://h/d", **own)["sslrootcert"] == "system"


def test_otlp_has_the_tls_of_the_api_unless_it_has_its_own() -> None:
    api = ListenerTlsSettings(cert=Path("/api.crt"), key=Path("/api.key"))
    own = ListenerTlsSettings(cert=Path("/otlp.crt"), key=Path("/otlp.key"))
    settings = Settings.model_validate({"api": {"tls": api}})
    assert settings.otlp_tls == api
    settings = Settings.model_validate({"api": {"tls": api}, "ingest": {"otlp": {"tls": own}}})
    assert settings.otlp_tls == own


def test_a_catalogs_files_reach_the_processes_that_are_started() -> None:
    catalog = CatalogSettings(uri="https://c", tls=ClientTlsSettings(**FILES))
    assert CatalogSettings.model_validate(catalog.revealed()) == catalog


@pytest.mark.parametrize("kind", [CatalogSettings, AirflowSettings])
def test_tls_that_would_have_no_effect_is_refused(kind: type[BaseModel]) -> None:
    name = "uri" if kind is CatalogSettings else "url"
    kind.model_validate({name: "https://a", "tls": {"ca": "/t/ca.crt"}})
    with pytest.raises(ValidationError, match="https"):
        kind.model_validate({name: "http://a", "tls": {"ca": "/t/ca.crt"}})


@pytest.mark.parametrize(
    "given",
    [{"cert": "/a"}, {"key": "/a"}, {"client_auth": "required"}, {"client_auth": "optional"}],
)
def test_incomplete_settings_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        ListenerTlsSettings.model_validate(given)
