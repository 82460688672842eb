"""The certificate of a caller, in the forms that proxies send it."""

from __future__ import annotations

import base64
import hashlib
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import ValidationError

from moraine.access.model import Certificate
from moraine.access.peer import (
    add_connection,
    address_of,
    certificate_of,
    certificate_of_call,
    read_header,
    read_proxy_header,
)
from moraine.settings import ProxySettings
from moraine.tls.authority import Authority


class Issued:
    def __init__(self, folder: Path) -> None:
        authority = Authority.create(folder)
        authority.issue("polaris")
        authority.issue("late", lifetime=timedelta(seconds=-1))
        self.pem = (folder / "polaris.crt").read_text()
        self.expired = (folder / "late.crt").read_text()
        self.der = ssl.PEM_cert_to_DER_cert(self.pem)
        self.digest = hashlib.sha256(self.der).digest()
        thumbprint = base64.urlsafe_b64encode(self.digest).rstrip(b"=").decode()
        self.certificate = Certificate("CN=polaris", ("dns:polaris",), thumbprint)


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Issued:
    return Issued(tmp_path_factory.mktemp("ca"))


def test_forms_of_the_header(issued: Issued) -> None:
    encoded = base64.b64encode(issued.der).decode()
    escaped = quote(issued.pem, safe="")
    forms = [
        f":{encoded}:",
        encoded,
        escaped,
        quote(issued.pem, safe="+=/ \n"),
        quote(issued.pem + issued.expired),  # with a chain
        f'By=spiffe://a;Hash={issued.digest.hex()};Cert="{escaped}"',
        f'Hash=00;Subject="CN=\\"admin\\", O=x",By=b;Cert="{escaped}";URI=spiffe://c',
    ]
    assert {read_header(form) for form in forms} == {issued.certificate}


def test_envoy_without_the_certificate_gives_its_names(issued: Issued) -> None:
    form = f'Hash={issued.digest.hex()};Subject="CN=polaris";URI=spiffe://a/polaris;DNS=a;DNS=b'
    names = ("uri:spiffe://a/polaris", "dns:a", "dns:b")
    expected = Certificate("CN=polaris", names, issued.certificate.thumbprint)
    assert read_header(form) == expected
    assert read_header("By=spiffe://a") is None


@pytest.mark.parametrize(
    "text", ["x", ":", "::", ":YWJj", "YWJj", "Hash=zz", "Hash=00", 'Cert="', "a;b", "-----BEGIN"]
)
def test_what_is_no_certificate_is_none(text: str) -> None:
    scope = scope_of({"client-cert": text})
    read_proxy_header(
        scope, ProxySettings(certificate_header="Client-Cert", trusted=["10.0.0.0/8"])
    )
    assert certificate_of(scope) is None


def proxy(trusted: str) -> ProxySettings:
    return ProxySettings.model_validate({"certificate_header": "Client-Cert", "trusted": [trusted]})


def scope_of(headers: dict[str, str], address: str = "10.1.2.3") -> dict[str, Any]:
    return {
        "type": "http",
        "client": (address, 1),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }


def test_an_expired_certificate_is_none(issued: Issued) -> None:
    scope = scope_of({})
    add_connection(scope, ("10.1.2.3", 1), ssl.PEM_cert_to_DER_cert(issued.expired))
    assert certificate_of(scope) is None
    assert read_header(quote(issued.expired)) is None
    assert certificate_of_call({"x509_pem_cert": [issued.expired.encode()]}) is None


def test_certificate_of_a_connection_and_of_a_call(issued: Issued) -> None:
    scope = scope_of({})
    assert certificate_of(scope) is None
    add_connection(scope, ("10.1.2.3", 1), issued.der)
    assert certificate_of(scope) == issued.certificate
    assert certificate_of_call({"x509_pem_cert": [issued.pem.encode()]}) == issued.certificate
    assert certificate_of_call({}) is None


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_a_trusted_address(issued: Issued, address: str) -> None:
    scope = scope_of({"client-cert": quote(issued.pem), "accept": "x"}, address)
    read_proxy_header(scope, proxy("10.1.2.3"))
    assert certificate_of(scope) == issued.certificate
    assert scope["headers"] == [(b"accept", b"x")]


@pytest.mark.parametrize("address", ["10.1.2.4", "::1", "", "testclient"])
def test_an_untrusted_address(issued: Issued, address: str) -> None:
    scope = scope_of({"client-cert": quote(issued.pem), "accept": "x"}, address)
    read_proxy_header(scope, proxy("10.1.2.3"))
    assert certificate_of(scope) is None
    assert scope["headers"] == [(b"accept", b"x")]


def test_the_connection_tells_the_address_not_what_a_header_made_of_it(issued: Issued) -> None:
    scope = scope_of({"client-cert": quote(issued.pem)}, "10.1.2.3")  # by X-Forwarded-For
    add_connection(scope, ("192.0.2.9", 1), None)
    assert address_of(scope) == "192.0.2.9"
    read_proxy_header(scope, proxy("10.1.2.3"))
    assert certificate_of(scope) is None


@pytest.mark.parametrize(
    "given",
    [
        {"certificate_header": "Client-Cert"},
        {"certificate_header": "Client-Cert", "trusted": ["0.0.0.0/0"]},
        {"certificate_header": "Client-Cert", "trusted": ["::/0"]},
        {"certificate_header": "Client Cert", "trusted": ["10.0.0.1"]},
    ],
)
def test_settings_that_would_let_any_caller_in(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ProxySettings.model_validate(given)
