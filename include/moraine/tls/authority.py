"""A private CA for a first deployment, and the certificates that it issues.

Each certificate is `NAME.crt` with its key in `NAME.key`. Who has a CA of their own does not need
this: Moraine takes any PEM files.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from moraine.tls.files import TlsUnusable, require_private, write_private

CA = "ca"
LIFETIME = timedelta(days=365)
_CA_LIFETIME = timedelta(days=3650)
_BEGUN = timedelta(minutes=5)  # for machines whose clocks are behind
_LOCAL = ("localhost", "127.0.0.1", "::1")
_OWN_HOSTS = {"server": ("moraine", "api-server"), "postgres": ("postgres",)}
_CLIENTS = ("moraine", "polaris")
_Alternative = x509.IPAddress | x509.DNSName


@dataclass(frozen=True)
class Authority:
    """The CA in a folder."""

    folder: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(cls, folder: Path, name: str = "Moraine private CA") -> Authority:
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(name)
        certificate = (
            _builder(subject, subject, key, _CA_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(folder, CA, certificate, key)
        return cls(folder, certificate, key)

    @classmethod
    def open(cls, folder: Path) -> Authority:
        private = folder / f"{CA}.key"
        require_private(private)
        key = load_pem_private_key(private.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TlsUnusable(f"{private} was not made by `moraine tls init`.")
        return cls(folder, x509.load_pem_x509_certificate(_pem(folder, CA)), key)

    def issue(
        self, name: str, hosts: Iterable[str] = (), lifetime: timedelta = LIFETIME, stem: str = ""
    ) -> None:
        """A server's certificate for these hosts, or a client's if there are none."""
        alternatives = [_alternative(host) for host in dict.fromkeys(hosts)]
        usage = ExtendedKeyUsageOID.SERVER_AUTH if alternatives else ExtendedKeyUsageOID.CLIENT_AUTH
        key = ec.generate_private_key(ec.SECP256R1())
        own_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            _builder(_subject(name), self.certificate.subject, key, lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(own_key, critical=False)
        )
        names = alternatives or [x509.DNSName(name)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        _write(self.folder, stem or name, builder.sign(self.key, hashes.SHA256()), key)


def init(folder: Path, hosts: Iterable[str] = (), lifetime: timedelta = LIFETIME) -> list[Path]:
    """Make a CA and the certificates of a first deployment. Returns what was written."""
    if existing := sorted(path.name for path in folder.glob("*.key")):
        raise TlsUnusable(
            f"{folder} already has {', '.join(existing)}: choose another folder, or renew the "
            "certificates with --renew."
        )
    authority = Authority.create(folder)
    for name, own in _OWN_HOSTS.items():
        authority.issue(name, (*own, *_LOCAL, *hosts), lifetime)
    for name in _CLIENTS:
        authority.issue(name, lifetime=lifetime)
    return _written(folder)


def renew(folder: Path, hosts: Iterable[str] = (), lifetime: timedelta = LIFETIME) -> list[Path]:
    """Replace every certificate but the CA's, with the same names and new keys.

    `hosts` are added to those of the servers. Running listeners take the files up.
    """
    if not (folder / f"{CA}.key").exists():
        raise TlsUnusable(f"{folder} has no CA: make one with `moraine tls init`.")
    authority = Authority.open(folder)
    for path in sorted(folder.glob("*.crt")):
        if path.stem == CA:
            continue
        old = x509.load_pem_x509_certificate(path.read_bytes())
        name = str(old.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        kept = (*_hosts_of(old), *hosts) if _is_server(old) else ()
        authority.issue(name, kept, lifetime, path.stem)
    return _written(folder)


def expiry_of(certificate: Path) -> datetime:
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + lifetime) - _BEGUN)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _alternative(host: str) -> _Alternative:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _is_server(certificate: x509.Certificate) -> bool:
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    return ExtendedKeyUsageOID.SERVER_AUTH in usage


def _hosts_of(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _write(
    folder: Path, stem: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(folder / f"{stem}.key", private.decode())
    public = certificate.public_bytes(Encoding.PEM)
    write_private(folder / f"{stem}.crt", public.decode(), mode=0o644)


def _pem(folder: Path, stem: str) -> bytes:
    return (folder / f"{stem}.crt").read_bytes()


def _written(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.crt"), key=lambda path: (path.stem != CA, path.stem))
