"""Settings of the command line's own login at Moraine's API."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from moraine.settings.oauth import OAuthClientSettings
from moraine.settings.tls import ClientTlsSettings
from moraine.settings.values import Address


class LoginSettings(OAuthClientSettings):
    """How the command line logs in: as the user of `airflow`, or with OAuth2.

    A client with a secret, a key or a certificate gets tokens by itself. Without any of them, a
    person logs in with `moraine login`.
    """

    kind: Literal["airflow", "oauth2"] = "airflow"
    url: Address = Field("", description="Where Moraine's API is; by default airflow.url")
    issuer: Address = Field(
        "", description="The identity provider; its discovery document names the endpoints"
    )
    token_uri: Address = Field("", description="For a provider without a discovery document")
    tls: ClientTlsSettings = ClientTlsSettings()

    @property
    def is_for_people(self) -> bool:
        """Whether a person has to log in, because the client has no credential of its own."""
        return self.client_auth in ("body", "basic") and not self.client_secret
