"""The certificate of a caller: that of its connection, or the one that a trusted proxy reports."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from moraine.access.model import Certificate
from moraine.log import get_logger
from moraine.settings.tls import ProxySettings

log = get_logger(__name__)

Scope = MutableMapping[str, Any]

_PEER = "moraine.peer"
_PROXIED = "moraine.proxied-certificate"
_PEM = "-----BEGIN CERTIFICATE-----"
_PAIR = re.compile(r'\s*(\w+)=("(?:[^"\\]|\\.)*"|[^;,]*)\s*([;,]|$)')
_DNS, _URI, _EMAIL = x509.DNSName, x509.UniformResourceIdentifier, x509.RFC822Name


@dataclass(frozen=True, slots=True)
class _Parsed:
    certificate: Certificate
    begins: datetime
    ends: datetime

    def current(self) -> Certificate | None:
        """A connection may outlive its certificate."""
        return self.certificate if self.begins <= datetime.now(UTC) <= self.ends else None


def certificate_of(scope: Scope) -> Certificate | None:
    """The caller's verified certificate, if it has presented one that is still valid."""
    if _PROXIED in scope:
        proxied: Certificate | None = scope[_PROXIED]
        return proxied
    extension = (scope.get("extensions") or {}).get("tls") or {}
    chain = extension.get("client_cert_chain") or ()
    return _parse_pem(chain[0]).current() if chain else None


def certificate_of_call(auth_context: Mapping[str, Iterable[bytes]]) -> Certificate | None:
    """The same for a call of gRPC, by `ServicerContext.auth_context()`."""
    pem = next(iter(auth_context.get("x509_pem_cert") or ()), None)
    return _parse_pem(pem.decode("ascii")).current() if pem else None


def address_of(scope: Scope) -> str:
    """The address that the connection comes from; the proxy's, if there is one."""
    peer = scope.get(_PEER) or scope.get("client")
    return str(peer[0]) if peer else ""


def add_connection(scope: Scope, address: tuple[str, int] | None, der: bytes | None) -> None:
    """Note what the listener knows of a connection. Called before anything that reads headers.

    The certificate goes where the ASGI TLS extension has it.
    """
    scope[_PEER] = address
    if der:
        tls = {"client_cert_chain": [_pem_of(der)], "client_cert_error": None}
        scope["extensions"] = {**(scope.get("extensions") or {}), "tls": tls}


def read_proxy_header(scope: Scope, proxy: ProxySettings) -> None:
    """Take the certificate from the header of a trusted proxy. The header is removed in any case,
    so that nothing behind this point can believe it.

    A trusted proxy's connection says nothing about the caller: without the header, the caller has
    no certificate.
    """
    if not proxy.certificate_header:
        return
    name = proxy.certificate_header.lower().encode("ascii")
    given = [value for key, value in scope["headers"] if key == name]
    if given:
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] != name]
    if not _is_trusted(address_of(scope), proxy.trusted):
        if given:
            log.warning("tls.proxy.untrusted", address=address_of(scope))
        return
    scope[_PROXIED] = _read(given)


def _is_trusted(address: str, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    try:
        found = ip_address(address)
    except ValueError:  # a Unix socket, or a test's client
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return any((mapped or found) in network for network in networks)


def _read(values: list[bytes]) -> Certificate | None:
    """Two headers may be the caller's and the proxy's: neither is believed."""
    text = values[0].decode("latin-1").strip() if len(values) == 1 else ""
    if not text:
        if values:
            log.warning("tls.proxy.ambiguous", headers=len(values))
        return None
    try:
        return read_header(text)
    except ValueError as error:
        log.warning("tls.proxy.unreadable", reason=type(error).__name__)
        return None


def read_header(text: str) -> Certificate | None:
    """A certificate in any of the forms that proxies send.

    RFC 9440 (`:BASE64:`), Envoy's `Hash=…;Cert="…"`, percent-encoded PEM (nginx, AWS), and plain
    Base64 (HAProxy, Traefik).
    """
    if text.startswith(":"):
        if not text.endswith(":") or len(text) < 3:
            raise ValueError("not a byte sequence of RFC 9440")
        return _parse_base64(text[1:-1])
    if (plain := unquote(text)).startswith(_PEM):
        return _parse_pem(_unfolded(plain)).current()
    if "=" in text and _PAIR.match(text) and not text.rstrip("=").isalnum():
        return _read_envoy(text)
    return _parse_base64(text.partition(",")[0])


def _read_envoy(text: str) -> Certificate | None:
    """Envoy appends an element for each hop. The last is the caller of the proxy in front; those
    before it are what that caller sent."""
    elements: list[list[tuple[str, str]]] = [[]]
    position = 0
    while position < len(text):
        pair = _PAIR.match(text, position)
        if pair is None:
            raise ValueError("not a list of X-Forwarded-Client-Cert")
        value = pair[2]
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        elements[-1].append((pair[1].lower(), value))
        if pair[3] == ",":
            elements.append([])
        position = pair.end()
    fields = dict(elements[-1])
    if "cert" in fields:
        return _parse_pem(_unfolded(unquote(fields["cert"]))).current()
    if not fields.get("hash"):
        return None
    digest = bytes.fromhex(fields["hash"])
    if len(digest) != SHA256.digest_size:
        raise ValueError("a hash of another length than SHA-256")
    names = [f"{kind}:{value}" for kind, value in elements[-1] if kind in ("dns", "uri") and value]
    return Certificate(fields.get("subject", ""), tuple(names), _thumbprint(digest))


def _unfolded(pem: str) -> str:
    """nginx's older variable has tabs at the beginning of lines."""
    return pem.replace("\t", "")


def _parse_base64(text: str) -> Certificate | None:
    der = base64.b64decode(text, validate=True)
    return _parse_pem(_pem_of(der)).current()


def _pem_of(der: bytes) -> str:
    return ssl.DER_cert_to_PEM_cert(der)


@lru_cache(maxsize=1024)
def _parse_pem(pem: str) -> _Parsed:
    found = x509.load_pem_x509_certificate(pem.encode("ascii"))
    digest = found.fingerprint(SHA256())
    certificate = Certificate(found.subject.rfc4514_string(), _names(found), _thumbprint(digest))
    return _Parsed(certificate, found.not_valid_before_utc, found.not_valid_after_utc)


def _names(found: x509.Certificate) -> tuple[str, ...]:
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return ()
    return (
        *(f"dns:{name}" for name in names.get_values_for_type(_DNS)),
        *(f"uri:{name}" for name in names.get_values_for_type(_URI)),
        *(f"email:{name}" for name in names.get_values_for_type(_EMAIL)),
    )


def _thumbprint(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
