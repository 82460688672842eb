"""Who gets past the handshake, over real sockets, and whose certificate the app believes."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest
import requests
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from moraine.http.server import server_options, with_peer
from moraine.settings import ApiSettings, ClientTlsSettings, ListenerTlsSettings
from moraine.tls.contexts import client_context, secured
from moraine.tls.files import TlsUnusable
from moraine.tls.grpc import server_credentials
from support.otlp_server import TOKEN, running_otlp_server
from support.tls import HOST, Certificates, running_listener, who_am_i

REFUSED = (ssl.SSLError, requests.exceptions.SSLError, ConnectionError, requests.ConnectionError)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@contextlib.contextmanager
def session_of(settings: ClientTlsSettings) -> Iterator[requests.Session]:
    with requests.Session() as session:
        yield secured(session, settings)


def ask(url: str, settings: ClientTlsSettings, **headers: str) -> dict[str, Any]:
    with session_of(settings) as session:
        return who_am_i(url, session, **headers)


def thumbprint(certificate: Path) -> str:
    der = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    return base64.urlsafe_b64encode(hashlib.sha256(der).digest()).rstrip(b"=").decode()


def dial(url: str) -> socket.socket:
    return socket.create_connection((HOST, int(url.rstrip("/").rpartition(":")[2])), timeout=10)


# --- moraine api ----------------------------------------------------------------------------


@pytest.mark.parametrize("base", [HttpToolsProtocol, H11Protocol])
def test_the_right_certificate_reaches_the_app(certificates: Certificates, base: Any) -> None:
    with running_listener(ApiSettings(tls=certificates.listener()), http=with_peer(base)) as url:
        assert ask(url, certificates.client())["certificate"] == {
            "subject": "CN=client",
            "names": ["dns:client"],
            "thumbprint": thumbprint(certificates.folder / "client.crt"),
        }


def test_a_caller_without_a_certificate_is_refused(certificates: Certificates) -> None:
    with running_listener(ApiSettings(tls=certificates.listener())) as url:
        with pytest.raises(REFUSED):
            ask(url, certificates.stranger())
        assert answer_to_nobody(url, certificates) == b""


def answer_to_nobody(url: str, certificates: Certificates) -> bytes:
    """What comes back on a connection without a certificate. In TLS 1.3 a client takes the
    handshake for complete before the server has refused it."""
    context = client_context(certificates.stranger())
    with dial(url) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=HOST) as secure:
                secure.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                return secure.recv(1000)
        except (ssl.SSLError, ConnectionError):
            return b""


def test_a_certificate_of_another_ca_is_refused(certificates: Certificates) -> None:
    stranger = certificates.client(authority=certificates.foreign)
    for mode in ("required", "optional"):
        tls = certificates.listener(mode)
        with running_listener(ApiSettings(tls=tls)) as url, pytest.raises(REFUSED):
            ask(url, stranger)


def test_an_expired_certificate_is_refused(certificates: Certificates) -> None:
    for mode in ("required", "optional"):
        tls = certificates.listener(mode)
        with running_listener(ApiSettings(tls=tls)) as url, pytest.raises(REFUSED):
            ask(url, certificates.client("expired"))


def test_a_servers_certificate_does_not_make_a_client(certificates: Certificates) -> None:
    tls = certificates.listener()
    with running_listener(ApiSettings(tls=tls)) as url, pytest.raises(REFUSED):
        ask(url, certificates.client("server"))


def test_an_optional_certificate_is_seen_and_may_be_missing(certificates: Certificates) -> None:
    with running_listener(ApiSettings(tls=certificates.listener("optional"))) as url:
        assert ask(url, certificates.stranger())["certificate"] is None
        assert ask(url, certificates.client())["certificate"]["subject"] == "CN=client"


def test_old_versions_of_tls_are_refused(certificates: Certificates) -> None:
    with running_listener(ApiSettings(tls=certificates.listener("none"))) as url:
        context = client_context(certificates.stranger())
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            context.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        with dial(url) as plain, pytest.raises((ssl.SSLError, ConnectionError)):
            context.wrap_socket(plain, server_hostname=HOST)


def server_name(url: str, settings: ClientTlsSettings) -> str:
    """The subject of the certificate that a new connection gets."""
    context = client_context(settings)
    with dial(url) as plain, context.wrap_socket(plain, server_hostname=HOST) as secure:
        found: Any = secure.getpeercert()
        return str(found["subject"][0][0][1])


def test_a_renewed_certificate_is_served_without_a_restart(certificates: Certificates) -> None:
    with running_listener(ApiSettings(tls=certificates.listener())) as url:
        assert server_name(url, certificates.client()) == "server"
        certificates.renew_server("renewed")
        assert server_name(url, certificates.client()) == "renewed"


def test_files_that_do_not_fit_leave_the_old_certificate(certificates: Certificates) -> None:
    with running_listener(ApiSettings(tls=certificates.listener())) as url:
        key = certificates.folder / "server.key"
        before = key.read_text()
        key.write_text((certificates.folder / "client.key").read_text())
        assert server_name(url, certificates.client()) == "server"
        key.write_text(before)
        certificates.renew_server("renewed")
        assert server_name(url, certificates.client()) == "renewed"


def test_a_removed_ca_locks_its_clients_out_without_a_restart(certificates: Certificates) -> None:
    """Sessions must not be resumed past the change either."""
    both = certificates.ca.read_text() + (certificates.foreign.folder / "ca.crt").read_text()
    trusted = certificates.folder / "trusted.crt"
    trusted.write_text(both)
    settings = certificates.listener().model_copy(update={"ca": trusted})
    stranger = certificates.client(authority=certificates.foreign)
    with running_listener(ApiSettings(tls=settings)) as url:
        assert ask(url, stranger)["certificate"]["subject"] == "CN=client"
        trusted.write_text(certificates.ca.read_text())
        with pytest.raises(REFUSED):
            ask(url, stranger)
        assert ask(url, certificates.client())["certificate"]["subject"] == "CN=client"


def test_a_session_is_not_resumed_without_its_certificate(certificates: Certificates) -> None:
    with running_listener(ApiSettings(tls=certificates.listener())) as url:
        context = client_context(certificates.client())
        with dial(url) as plain, context.wrap_socket(plain, server_hostname=HOST) as secure:
            secure.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            secure.recv(1000)
            earlier = secure.session
        with (
            dial(url) as plain,
            context.wrap_socket(plain, server_hostname=HOST, session=earlier) as secure,
        ):
            assert not secure.session_reused


def test_a_key_that_others_may_read_is_refused(certificates: Certificates) -> None:
    key = certificates.folder / "server.key"
    key.chmod(0o644)
    with pytest.raises(TlsUnusable, match="0600"):
        server_options(ApiSettings(tls=certificates.listener()))
    if os.geteuid() == 0:  # the group may read a key of root, as in a mounted secret
        key.chmod(0o640)
        with running_listener(ApiSettings(tls=certificates.listener())) as url:
            assert ask(url, certificates.client())["certificate"]


# --- OTLP over gRPC -------------------------------------------------------------------------


def channel_of(port: int, settings: ClientTlsSettings) -> grpc.Channel:
    read = {name: path and path.read_bytes() for name, path in settings}
    credentials = grpc.ssl_channel_credentials(read["ca"], read["key"], read["cert"])
    return grpc.secure_channel(f"{HOST}:{port}", credentials)


def export(port: int, settings: ClientTlsSettings) -> grpc.StatusCode:
    with channel_of(port, settings) as channel:
        method = channel.unary_unary(
            "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
            request_serializer=ExportLogsServiceRequest.SerializeToString,
            response_deserializer=ExportLogsServiceResponse.FromString,
        )
        try:
            method(
                ExportLogsServiceRequest(),
                timeout=20,
                metadata=(("authorization", f"Bearer {TOKEN}"),),
            )
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def test_otlp_takes_only_certificates_of_the_ca(certificates: Certificates) -> None:
    with running_otlp_server(tls=certificates.listener()) as server:
        answers = {
            "right": export(server.grpc_port, certificates.client()),
            "none": export(server.grpc_port, certificates.stranger()),
            "foreign": export(
                server.grpc_port, certificates.client(authority=certificates.foreign)
            ),
            "expired": export(server.grpc_port, certificates.client("expired")),
        }
    refused = grpc.StatusCode.UNAVAILABLE
    assert answers == {
        "right": grpc.StatusCode.OK,
        "none": refused,
        "foreign": refused,
        "expired": refused,
    }


def test_otlp_serves_a_renewed_certificate_without_a_restart(certificates: Certificates) -> None:
    with running_otlp_server(tls=certificates.listener()) as server:
        url = f"https://{HOST}:{server.grpc_port}/"
        assert server_name(url, certificates.client()) == "server"
        certificates.renew_server("renewed")
        assert server_name(url, certificates.client()) == "renewed"
        assert export(server.grpc_port, certificates.client()) is grpc.StatusCode.OK


def test_otlp_refuses_what_grpc_cannot_do(certificates: Certificates) -> None:
    with pytest.raises(TlsUnusable, match="optional"):
        server_credentials(certificates.listener("optional"))


# --- Proxies --------------------------------------------------------------------------------

HEADER = "X-SSL-Client-Cert"


def behind(*trusted: str, tls: ListenerTlsSettings | None = None) -> ApiSettings:
    given: dict[str, Any] = {"proxy": {"certificate_header": HEADER, "trusted": list(trusted)}}
    return ApiSettings.model_validate({**given, **({"tls": tls} if tls else {})})


def pem_header(certificates: Certificates) -> dict[str, str]:
    return {HEADER: quote((certificates.folder / "client.crt").read_text(), safe="")}


def test_a_trusted_proxy_reports_the_callers_certificate(certificates: Certificates) -> None:
    with running_listener(behind("127.0.0.0/8")) as url:
        answer = ask(url, ClientTlsSettings(), **pem_header(certificates))
        assert answer["certificate"]["subject"] == "CN=client"
        assert answer["headers"] == {}


def test_a_stranger_cannot_send_the_proxys_header(certificates: Certificates) -> None:
    with running_listener(behind("10.1.2.3", "fd00::/8")) as url:
        for more in ({}, {"X-Forwarded-For": "10.1.2.3"}, {"Forwarded": "for=10.1.2.3"}):
            answer = ask(url, ClientTlsSettings(), **pem_header(certificates), **more)
            assert answer == {"certificate": None, "headers": {}}


def test_a_strangers_header_does_not_replace_its_own_certificate(
    certificates: Certificates,
) -> None:
    certificates.authority.issue("admin")
    forged = {HEADER: quote((certificates.folder / "admin.crt").read_text(), safe="")}
    with running_listener(behind("10.1.2.3", tls=certificates.listener())) as url:
        answer = ask(url, certificates.client(), **forged)
        assert answer["certificate"]["subject"] == "CN=client"


def test_a_caller_behind_a_proxy_does_not_get_the_proxys_own_identity(
    certificates: Certificates,
) -> None:
    with running_listener(behind(HOST, tls=certificates.listener())) as url:
        assert ask(url, certificates.client())["certificate"] is None


def test_a_second_header_slipped_past_the_proxy_makes_both_void(
    certificates: Certificates,
) -> None:
    (value,) = pem_header(certificates).values()
    with running_listener(behind(HOST)) as url:
        line = f"{HEADER}: {value}\r\n"
        with dial(url) as plain:
            plain.sendall(
                f"GET / HTTP/1.1\r\nhost: x\r\n{line}{line}connection: close\r\n\r\n".encode()
            )
            answer = b"".join(iter(lambda: plain.recv(4096), b""))
        assert b'{"certificate":null,"headers":{}}' in answer
