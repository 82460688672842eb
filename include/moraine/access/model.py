"""Callers: who they are, and how a request names them."""

from __future__ import annotations

from dataclasses import dataclass, field

from moraine.settings import Action

__all__ = ["Action", "Caller", "Certificate", "Principal", "QualifiedName"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A client's certificate, verified by the listener or by a trusted proxy."""

    subject: str
    """RFC 4514, such as `CN=polaris,O=Example`."""
    names: tuple[str, ...] = ()
    """Its subject alternative names: `dns:…`, `uri:…`, `email:…`."""
    thumbprint: str = ""
    """SHA-256 of the DER form, base64url without padding: `x5t#S256` of RFC 8705."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request says of its sender, before anything of it is checked but the certificate."""

    authorization: str | None = field(default=None, repr=False)
    certificate: Certificate | None = None
    address: str = ""


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller whose identity was verified."""

    realm: str
    issuer: str
    """Who vouches for it: a token issuer's address, `airflow`, or `catalog:NAME` for a caller whom
    a catalog behind the gateway knows. `moraine` are doors without callers, such as `kafka`."""
    subject: str
    roles: tuple[str, ...] = ()
    certificate: Certificate | None = None
    address: str = ""

    @property
    def name(self) -> str:
        """As the ledger has it. Issuers contain no spaces."""
        return f"{self.issuer} {self.subject}"


@dataclass(frozen=True, slots=True)
class QualifiedName:
    """What an action is about."""

    catalog: str
    namespace: tuple[str, ...]
    table: str

    @property
    def levels(self) -> tuple[str, ...]:
        return self.catalog, *self.namespace, self.table

    def __str__(self) -> str:
        return ".".join(map(_quoted, self.levels))


def _quoted(name: str) -> str:
    """As Spark writes it: `a.b`.c and a.`b.c` are two tables."""
    return f"`{name.replace('`', '``')}`" if {".", "`"} & set(name) else name
