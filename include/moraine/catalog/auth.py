"""How Moraine proves to a catalog who it is: not at all, with a token, or as an OAuth2 client."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus

import requests
from requests.auth import AuthBase, HTTPBasicAuth

from moraine.catalog.answers import read_object
from moraine.errors import CatalogRefused, CatalogUnavailable
from moraine.settings import CatalogSettings

_TIMEOUT = (5, 15)
_MOST_BYTES = 1 << 20
# Renewed this long before the end, or in the last fifth of a lifetime that is short.
_MARGIN = 60.0
_DEFAULT_LIFETIME = 3600.0
_USABLE_TOKEN = re.compile(r"[\x21-\x7e]+")
# 419 is Iceberg's own status for credentials that have timed out.
_RENEW_AFTER = (401, 419)

Clock = Callable[[], float]


class NoAuth(AuthBase):
    """Says nothing; without it, requests would look for a password in ~/.netrc."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


class BearerAuth(AuthBase):
    """A token that somebody else looks after."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class ClientCredentialsAuth(AuthBase):
    """Tokens of an OAuth2 client; one that the catalog refuses is replaced, once a request."""

    def __init__(self, tokens: TokenSource) -> None:
        self._tokens = tokens

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        token = self._tokens.get()
        request.headers["Authorization"] = f"Bearer {token}"

        def try_again(response: requests.Response, **options: Any) -> requests.Response:
            if response.status_code not in _RENEW_AFTER:
                return response
            self._tokens.drop(token)
            again = request.copy()
            again.headers["Authorization"] = f"Bearer {self._tokens.get()}"
            response.close()
            # Past the session, and so past this hook: there is no third time.
            second: requests.Response = response.connection.send(again, **options)
            second.history.append(response)
            second.request = again
            return second

        request.register_hook("response", try_again)  # type: ignore[no-untyped-call]
        return request


@dataclass(frozen=True)
class OAuthClient:
    """What is posted to a token endpoint, and where."""

    token_uri: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    basic: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        digest = hashlib.sha256(self.client_secret.encode()).hexdigest()
        return self.token_uri, self.client_id, self.scope, str(self.basic), digest

    def post(self) -> requests.Response:
        form = {"grant_type": "client_credentials", "scope": self.scope}
        auth: AuthBase = NoAuth()
        if self.basic:
            # RFC 6749, 2.3.1: encoded as in a form before they become a user and a password.
            auth = HTTPBasicAuth(quote_plus(self.client_id), quote_plus(self.client_secret))
        else:
            form |= {"client_id": self.client_id, "client_secret": self.client_secret}
        return requests.post(
            self.token_uri,
            data={name: value for name, value in form.items() if value},
            headers={"Accept": "application/json"},
            auth=auth,
            timeout=_TIMEOUT,
            allow_redirects=False,
            stream=True,
        )

    def conceal(self, text: str) -> str:
        for secret in (self.client_secret, quote_plus(self.client_secret)):
            text = text.replace(secret, "***")
        return text


@dataclass(frozen=True)
class _Token:
    value: str = field(repr=False)
    renew_at: float
    expires_at: float


class TokenSource:
    """The token of one client: fetched by one thread at a time, renewed before it expires."""

    def __init__(self, client: OAuthClient, clock: Clock = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._token: _Token | None = None

    def get(self) -> str:
        token = self._token
        if token and self._clock() < token.renew_at:
            return token.value
        with self._lock:
            token = self._token
            if token and self._clock() < token.renew_at:
                return token.value
            try:
                self._token = self._fetch()
            except CatalogUnavailable:
                if token is None or self._clock() >= token.expires_at:
                    raise
                return token.value
            return self._token.value

    def drop(self, value: str) -> None:
        """Forget this token, unless somebody has replaced it already."""
        with self._lock:
            if self._token and self._token.value == value:
                self._token = None

    def _fetch(self) -> _Token:
        asked_at = self._clock()
        try:
            response = self._client.post()
            body = read_object(response, _MOST_BYTES)
        except requests.RequestException as error:
            raise CatalogUnavailable(
                f"The token endpoint {self._client.token_uri} did not answer "
                f"({type(error).__name__})."
            ) from error
        if response.status_code != 200:
            raise self._refusal(response.status_code, body)
        value, kind = body.get("access_token"), body.get("token_type") or "bearer"
        if not isinstance(value, str) or not _USABLE_TOKEN.fullmatch(value):
            raise CatalogUnavailable(
                f"The token endpoint {self._client.token_uri} answered without a usable token."
            )
        if str(kind).lower() != "bearer":
            raise CatalogRefused(
                f"The token endpoint {self._client.token_uri} gives tokens of another type than "
                "bearer, which a catalog does not take."
            )
        lifetime = _lifetime(body.get("expires_in"))
        margin = min(_MARGIN, lifetime / 5)
        return _Token(value, asked_at + lifetime - margin, asked_at + lifetime)

    def _refusal(self, status: int, body: dict[str, Any]) -> CatalogRefused | CatalogUnavailable:
        client = self._client
        words = [str(body[name]) for name in ("error", "error_description") if body.get(name)]
        reason = client.conceal(": ".join(words) or "no reason given")[:500]
        answer = f"The token endpoint {client.token_uri} answered {status} ({reason})"
        if status >= 500 or status in (408, 429):
            return CatalogUnavailable(f"{answer}.")
        return CatalogRefused(
            f"{answer} to the client {client.client_id!r}. Check the catalog's token-uri, "
            "client-id, client secret and scope."
        )


def auth_for(settings: CatalogSettings) -> AuthBase:
    """The way to authenticate that the settings name."""
    auth = settings.auth
    if auth.kind == "none":
        return NoAuth()
    if auth.kind == "bearer":
        token = auth.token.get_secret_value().strip()
        if not _USABLE_TOKEN.fullmatch(token):
            raise _incomplete(settings, "a bearer token", "TOKEN")
        return BearerAuth(token)
    secret = auth.client_secret.get_secret_value()
    if not auth.client_id or not secret:
        raise _incomplete(settings, "a client id and a client secret", "CLIENT_SECRET")
    client = OAuthClient(
        token_uri=token_uri(settings),
        client_id=auth.client_id,
        client_secret=secret,
        scope=auth.scope,
        basic=auth.client_auth == "basic",
    )
    return ClientCredentialsAuth(shared_tokens(client))


def token_uri(settings: CatalogSettings) -> str:
    """Where tokens come from; the catalog's own endpoint unless another is named."""
    return settings.auth.token_uri or f"{settings.uri.rstrip('/')}/v1/oauth/tokens"


_sources: dict[tuple[str, ...], TokenSource] = {}
_sources_lock = threading.Lock()


def shared_tokens(client: OAuthClient) -> TokenSource:
    """The process's one source for this client, so that its catalogs share tokens."""
    with _sources_lock:
        return _sources.setdefault(client.key, TokenSource(client))


def _incomplete(settings: CatalogSettings, what: str, variable: str) -> CatalogRefused:
    return CatalogRefused(
        f"The catalog at {settings.uri} wants {what}, and none that is usable is configured. Set "
        f"MORAINE_CATALOGS__NAME__AUTH__{variable} or the Airflow connection moraine_catalog_NAME."
    )


def _lifetime(expires_in: Any) -> float:
    """RFC 6749 only recommends to say it; a token that ends sooner is renewed after a 401."""
    try:
        return max(0.0, float(expires_in))
    except (TypeError, ValueError):
        return _DEFAULT_LIFETIME
