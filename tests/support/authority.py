"""A private CA for tests, with a server's certificate and as many clients' as a test wants."""

from __future__ import annotations

import base64
import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from moraine.local.part import LOOPBACK


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, as PEM files."""

    cert: Path
    key: Path

    @property
    def thumbprint(self) -> str:
        """`x5t#S256` of RFC 8705."""
        certificate = x509.load_pem_x509_certificate(self.cert.read_bytes())
        digest = certificate.fingerprint(hashes.SHA256())
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


@dataclass(frozen=True)
class Authority:
    folder: Path
    name: str = "authority"
    _key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1()), repr=False
    )

    @property
    def ca(self) -> Path:
        """Its certificate, written when it is first asked for."""
        path = self.folder / f"{self.name}.pem"
        if not path.exists():
            made = self._certificate(self.name, self._key, is_ca=True)
            path.write_bytes(made.public_bytes(Encoding.PEM))
        return path

    def issue(self, name: str) -> KeyPair:
        """A certificate for CN=name, which is also good for a server on the loopback address."""
        key = ec.generate_private_key(ec.SECP256R1())
        pair = KeyPair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        pair.cert.write_bytes(self._certificate(name, key).public_bytes(Encoding.PEM))
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pair

    def _certificate(
        self, name: str, key: ec.EllipticCurvePrivateKey, *, is_ca: bool = False
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        address = x509.IPAddress(ipaddress.ip_address(LOOPBACK))
        return (
            x509.CertificateBuilder()
            .subject_name(_named(name))
            .issuer_name(_named(self.name))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
