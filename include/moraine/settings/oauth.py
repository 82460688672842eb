"""Settings of an OAuth2 client: which one it is, and how it proves that to the token endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from moraine.settings.values import Address, Section


class OAuthClientSettings(Section):
    """An OAuth2 client that gets tokens by its own credentials."""

    client_id: str = ""
    client_secret: SecretStr = Field(SecretStr(""), description="For body and basic")
    token_uri: Address = ""
    scope: str = Field("", description="Empty requests no scope")
    client_auth: Literal["body", "basic", "private_key_jwt", "tls_client_auth"] = Field(
        "body",
        description="How the client authenticates: with its secret in the form or in a header, "
        "with a signed assertion (RFC 7523), or with the certificate of `tls` (RFC 8705)",
    )
    private_key: Path | None = Field(
        None, description="For private_key_jwt: RSA, EC or Ed25519, PEM, not encrypted"
    )
    key_id: str = Field("", description="The `kid` of assertions, if the server wants one")
    assertion_audience: str = Field(
        "", description="The `aud` of assertions; by default the token endpoint"
    )
