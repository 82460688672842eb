"""Moraine as a client: it presents its certificate, and talks to no server of another CA."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from moraine.catalog.client import RestCatalog
from moraine.errors import CatalogUnavailable
from moraine.gateway.errors import BadAnswer, UpstreamUnreachable
from moraine.gateway.upstream import CatalogRequest, Upstream, open_connections
from moraine.ingest.tables.catalog import IngestCatalog
from moraine.orchestration.dag_runs import AirflowSession, OrchestratorUnavailable
from moraine.settings import (
    AirflowSettings,
    ApiSettings,
    CatalogSettings,
    ClientTlsSettings,
    GatewaySettings,
)
from moraine.tls.contexts import secured
from moraine.tls.files import TlsUnusable
from support.tls import Certificates, files_of, running_listener, who_am_i


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def by_requests(url: str, tls: ClientTlsSettings) -> str:
    return RestCatalog(CatalogSettings(uri=url, tls=tls)).prefix


def by_pyiceberg(url: str, tls: ClientTlsSettings) -> str:
    return str(IngestCatalog("c", CatalogSettings(uri=url, tls=tls)).properties["prefix"])


def by_airflow_client(url: str, tls: ClientTlsSettings) -> str:
    answer = AirflowSession(AirflowSettings(url=url, tls=tls)).request("GET", "/v1/config")
    return str(answer.json()["overrides"]["prefix"])


def by_gateway(url: str, tls: ClientTlsSettings, present: bool = True) -> str:
    async def run() -> str:
        settings = CatalogSettings(uri=url, tls=tls)
        async with open_connections(GatewaySettings()) as connections:
            upstream = Upstream("c", settings, connections, present_certificate=present)
            answer = await upstream.fetch(CatalogRequest("GET", "/v1/config", "", []))
            return str(answer.body)

    return asyncio.run(run())


Client = Callable[[str, ClientTlsSettings], str]
CLIENTS = [by_requests, by_pyiceberg, by_airflow_client, by_gateway]
FAILURES = (
    CatalogUnavailable,
    OrchestratorUnavailable,
    UpstreamUnreachable,
    BadAnswer,
    requests.ConnectionError,
)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_presents_its_certificate(certificates: Certificates, client: Client) -> None:
    with running_listener(ApiSettings(tls=certificates.listener())) as url:
        assert "CN=client" in client(url.rstrip("/"), certificates.client())


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_of_another_ca_gets_nothing(
    certificates: Certificates, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if the environment trusts it: requests prefers these to its own settings."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates.ca))
    monkeypatch.setenv("CURL_CA_BUNDLE", str(certificates.ca))
    foreign = ClientTlsSettings(ca=certificates.foreign.folder / "ca.crt")
    tls = certificates.listener("none")
    with running_listener(ApiSettings(tls=tls)) as url, pytest.raises(FAILURES):
        client(url.rstrip("/"), foreign)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_server_with_another_name_gets_nothing(
    certificates: Certificates, client: Client
) -> None:
    certificates.authority.issue("server", ["catalog.example"], stem="server")
    tls = certificates.listener("none")
    with running_listener(ApiSettings(tls=tls)) as url, pytest.raises(FAILURES):
        client(url.rstrip("/"), certificates.stranger())


def test_a_renewed_certificate_is_presented_without_a_restart(certificates: Certificates) -> None:
    with (
        running_listener(ApiSettings(tls=certificates.listener())) as url,
        secured(requests.Session(), certificates.client()) as session,
    ):
        assert who_am_i(url, session)["certificate"]["subject"] == "CN=client"
        certificates.authority.issue("renewed", stem="client")
        assert who_am_i(url, session)["certificate"]["subject"] == "CN=renewed"


def test_a_caller_of_the_gateway_is_not_taken_for_moraine(certificates: Certificates) -> None:
    with running_listener(ApiSettings(tls=certificates.listener("optional"))) as url:
        assert "nobody" in by_gateway(url.rstrip("/"), certificates.client(), present=False)


def test_a_key_that_others_may_read_is_not_used(certificates: Certificates) -> None:
    files_of(certificates.folder, "client")["key"].chmod(0o644)
    with pytest.raises(TlsUnusable, match="0600"):
        by_requests("https://127.0.0.1:1", certificates.client())
