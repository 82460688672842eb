"""How Moraine authenticates to a catalog: not at all, with a token, or as an OAuth2 client."""

from __future__ import annotations

from typing import Any, Protocol

import requests
from requests.auth import AuthBase

from moraine.catalog.oauth import (
    NoAuth,
    OAuthClient,
    TokenSource,
    is_usable_token,
    shared_tokens,
)
from moraine.errors import CatalogRefused
from moraine.settings import CatalogSettings

# 419 is Iceberg's own status for credentials that have timed out.
_RENEW_AFTER = (401, 419)


class Tokens(Protocol):
    """Where the token of a request comes from."""

    def get(self) -> str: ...

    def drop(self, value: str) -> None:
        """Forget this token: it was refused."""


class BearerAuth(AuthBase):
    """A fixed token, which the caller renews."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class ClientCredentialsAuth(AuthBase):
    """Tokens of an OAuth2 client. A token that the catalog refuses is replaced once per request."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        token = self._tokens.get()
        request.headers["Authorization"] = f"Bearer {token}"

        def retry_once(response: requests.Response, **options: Any) -> requests.Response:
            if response.status_code not in _RENEW_AFTER:
                return response
            self._tokens.drop(token)
            again = request.copy()
            again.headers["Authorization"] = f"Bearer {self._tokens.get()}"
            response.close()
            # Sent without the session, and so without this hook: there is no third attempt.
            second: requests.Response = response.connection.send(again, **options)
            second.history.append(response)
            second.request = again
            return second

        request.register_hook("response", retry_once)  # type: ignore[no-untyped-call]
        return request


def auth_for(settings: CatalogSettings) -> AuthBase:
    """The authentication that the settings select."""
    auth = settings.auth
    if auth.kind == "none":
        return NoAuth()
    if auth.kind == "bearer":
        token = auth.token.get_secret_value().strip()
        if not is_usable_token(token):
            raise CatalogRefused(
                f"The catalog at {settings.uri} needs a bearer token, but no usable one is "
                f"configured. {_WHERE.format(variable='TOKEN')}"
            )
        return BearerAuth(token)
    return ClientCredentialsAuth(tokens_for(settings))


def tokens_for(settings: CatalogSettings) -> TokenSource:
    """The tokens of Moraine's own principal, if it is an OAuth2 client."""
    try:
        client = OAuthClient.of(settings.auth, token_uri(settings), settings.tls)
    except ValueError as error:
        raise CatalogRefused(
            f"The catalog at {settings.uri} needs {error}. "
            f"{_WHERE.format(variable='CLIENT_SECRET')}"
        ) from error
    return shared_tokens(client)


def token_uri(settings: CatalogSettings) -> str:
    """The token endpoint: the catalog's own unless the settings name another."""
    return settings.auth.token_uri or f"{settings.uri.rstrip('/')}/v1/oauth/tokens"


_WHERE = (
    "Set MORAINE_CATALOGS__NAME__AUTH__{variable} or the Airflow connection moraine_catalog_NAME."
)
