"""Settings of TLS: what a listener presents and demands, and what a client does."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from moraine.settings.values import Section


class ClientTlsSettings(Section):
    """TLS towards a server. Empty: the CAs of the operating system, and no certificate."""

    ca: Path | None = Field(None, description="CAs that the server's certificate must be from, PEM")
    cert: Path | None = Field(None, description="Moraine's own certificate with its chain, PEM")
    key: Path | None = Field(None, description="The certificate's private key, PEM")

    @model_validator(mode="after")
    def _cert_has_a_key(self) -> Self:
        if (self.cert is None) != (self.key is None):
            raise ValueError("set cert and key together, or neither")
        return self

    @property
    def enabled(self) -> bool:
        return self.ca is not None or self.cert is not None

    def require_https(self, address: str) -> None:
        """Refuse an address at which these settings would have no effect."""
        if self.enabled and not address.lower().startswith("https://"):
            raise ValueError("tls is set, but the address does not begin with https://")


class ListenerTlsSettings(ClientTlsSettings):
    """TLS of a listener. Off while `cert` is empty. Files that are renewed are read again."""

    ca: Path | None = Field(None, description="CAs that clients' certificates must be from, PEM")
    cert: Path | None = Field(None, description="The listener's certificate with its chain, PEM")
    client_auth: Literal["none", "optional", "required"] = Field(
        "none",
        description="Whether a client needs a certificate; without one of `ca`, `required` "
        "refuses it in the handshake",
    )

    @model_validator(mode="after")
    def _client_auth_has_a_ca(self) -> Self:
        if self.client_auth != "none" and (self.ca is None or self.cert is None):
            raise ValueError("client-auth needs ca, cert and key")
        return self

    @property
    def enabled(self) -> bool:
        return self.cert is not None


class ProxySettings(Section):
    """A proxy that ends TLS in front of Moraine and reports the caller's certificate."""

    certificate_header: str = Field(
        "",
        pattern=r"^[A-Za-z0-9-]*$",
        description="The header with the certificate, such as `Client-Cert` (RFC 9440), "
        "`X-Forwarded-Client-Cert` or `X-SSL-Client-Cert`",
    )
    trusted: list[IPv4Network | IPv6Network] = Field(
        [], description="Addresses and networks of the proxies that may send it"
    )

    @field_validator("trusted")
    @classmethod
    def _not_everyone(
        cls, given: list[IPv4Network | IPv6Network]
    ) -> list[IPv4Network | IPv6Network]:
        if any(network.prefixlen == 0 for network in given):
            raise ValueError("name the proxies: any caller could send a certificate otherwise")
        return given

    @model_validator(mode="after")
    def _header_has_a_sender(self) -> Self:
        if self.certificate_header and not self.trusted:
            raise ValueError("certificate-header needs trusted, the addresses that may send it")
        return self
