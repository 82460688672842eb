"""Tokens of an OAuth2 client: how it proves who it is, and when a token is renewed."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote_plus, urlsplit

import jwt
import requests
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from requests.auth import AuthBase, HTTPBasicAuth

from moraine.catalog.answers import read_object
from moraine.errors import CatalogRefused, CatalogUnavailable
from moraine.settings.oauth import OAuthClientSettings
from moraine.settings.tls import ClientTlsSettings

_TIMEOUT = (5, 15)
_MAX_BYTES = 1 << 20
# Renewed this long before they expire, or in the last fifth of a short lifetime.
_MARGIN = 60.0
_DEFAULT_LIFETIME = 3600.0
_USABLE_TOKEN = re.compile(r"[\x21-\x7e]+")
_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_SECONDS = 60
_MAX_KEY_BYTES = 1 << 16
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}

Clock = Callable[[], float]
Form = dict[str, str]


class NoAuth(AuthBase):
    """Sends nothing. Without it, requests would look for a password in ~/.netrc."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


class Credential(Protocol):
    """What proves to a token endpoint that a client is the one it says it is."""

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for equal credentials. It does not reveal the secret."""

    def prove(self, client_id: str, token_uri: str, form: Form) -> AuthBase:
        """Add the proof to the form, or return what adds it to the headers."""

    def conceal(self, text: str) -> str:
        """The text without the secret."""


@dataclass(frozen=True)
class ClientSecret:
    value: str = field(repr=False)
    basic: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        return "secret", str(self.basic), hashlib.sha256(self.value.encode()).hexdigest()

    def prove(self, client_id: str, token_uri: str, form: Form) -> AuthBase:
        del token_uri
        if self.basic:
            # RFC 6749, 2.3.1: form-encoded before they become user and password.
            return HTTPBasicAuth(quote_plus(client_id), quote_plus(self.value))
        form |= {"client_id": client_id, "client_secret": self.value}
        return NoAuth()

    def conceal(self, text: str) -> str:
        for secret in (self.value, quote_plus(self.value)):
            text = text.replace(secret, "***")
        return text


@dataclass(frozen=True)
class PrivateKey:
    """`private_key_jwt`: an assertion that the client signs (RFC 7523). The key is never sent."""

    file: Path
    key_id: str = ""
    audience: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        return "private_key_jwt", str(self.file), self.key_id, self.audience

    def prove(self, client_id: str, token_uri: str, form: Form) -> AuthBase:
        private, algorithm = self._load()
        now = int(time.time())
        claims = {
            "iss": client_id,
            "sub": client_id,
            "aud": self.audience or token_uri,
            "iat": now,
            "exp": now + _ASSERTION_SECONDS,
            "jti": secrets.token_urlsafe(16),  # servers refuse an assertion that they have seen
        }
        headers = {"kid": self.key_id} if self.key_id else None
        form |= {
            "client_id": client_id,
            "client_assertion_type": _ASSERTION_TYPE,
            "client_assertion": jwt.encode(claims, private, algorithm, headers=headers),
        }
        return NoAuth()

    def conceal(self, text: str) -> str:
        return text

    def _load(self) -> tuple[Any, str]:
        """The key is read for every token, so that a replaced file is used at once."""
        try:
            with self.file.open("rb") as file:
                private = load_pem_private_key(file.read(_MAX_KEY_BYTES), None)
        except OSError as error:
            raise CatalogRefused(
                f"The private key {self.file} cannot be read here ({type(error).__name__})."
            ) from error
        except (ValueError, TypeError, ArithmeticError) as error:  # TypeError: it is encrypted
            raise CatalogRefused(
                f"The file {self.file} is not a private key in PEM form without a password."
            ) from error
        algorithm = _algorithm_of(private)
        if algorithm is None:
            raise CatalogRefused(
                f"The private key {self.file} cannot sign assertions: it must be RSA of 2048 bits "
                "or more, EC on P-256, P-384 or P-521, or Ed25519."
            )
        return private, algorithm


@dataclass(frozen=True)
class OwnCertificate:
    """`tls_client_auth`: the certificate of the connection is the proof (RFC 8705)."""

    @property
    def key(self) -> tuple[str, ...]:
        return ("tls_client_auth",)

    def prove(self, client_id: str, token_uri: str, form: Form) -> AuthBase:
        del token_uri
        form["client_id"] = client_id
        return NoAuth()

    def conceal(self, text: str) -> str:
        return text


@dataclass(frozen=True)
class OAuthClient:
    """An OAuth2 client and its token endpoint."""

    token_uri: str
    client_id: str
    credential: Credential
    scope: str = ""
    tls: ClientTlsSettings = field(default_factory=ClientTlsSettings)

    @classmethod
    def of(
        cls, settings: OAuthClientSettings, token_uri: str, tls: ClientTlsSettings
    ) -> OAuthClient:
        """Raises ValueError, which says what is missing."""
        credential = _credential_of(settings, token_uri, tls)
        return cls(token_uri, settings.client_id, credential, settings.scope, tls)

    @property
    def key(self) -> tuple[str, ...]:
        files = (self.tls.ca, self.tls.cert, self.tls.key)
        return self.token_uri, self.client_id, self.scope, *map(str, files), *self.credential.key

    def post(self) -> requests.Response:
        form = {"grant_type": "client_credentials", "scope": self.scope}
        auth = self.credential.prove(self.client_id, self.token_uri, form)
        return post_form(self.token_uri, form, self.tls, auth)

    def conceal(self, text: str) -> str:
        return self.credential.conceal(text)


def post_form(
    uri: str, form: Mapping[str, str], tls: ClientTlsSettings, auth: AuthBase | None = None
) -> requests.Response:
    """Send a form to an endpoint of an identity provider. The answer's body is not read yet."""
    return requests.post(
        uri,
        data={name: value for name, value in form.items() if value},
        headers={"Accept": "application/json"},
        auth=auth or NoAuth(),
        timeout=_TIMEOUT,
        allow_redirects=False,
        stream=True,
        **tls_options(tls),
    )


def tls_options(tls: ClientTlsSettings) -> dict[str, Any]:
    """The options of a request. Files are read for each new connection."""
    return {
        "verify": str(tls.ca) if tls.ca else True,
        "cert": (str(tls.cert), str(tls.key)) if tls.cert else None,
    }


@dataclass(frozen=True)
class _Token:
    value: str = field(repr=False)
    half_time: float
    renew_at: float
    expires_at: float


class TokenSource:
    """The token of one client. One thread fetches it, and it is renewed before it expires."""

    def __init__(self, client: OAuthClient, clock: Clock = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._token: _Token | None = None

    def get(self, *, fresh: bool = False) -> str:
        """A valid token. `fresh` asks for one that has at least half of its lifetime left, to hand
        it to a program that cannot renew it."""
        token = self._token
        if token and self._is_good(token, fresh):
            return token.value
        with self._lock:
            token = self._token
            if token and self._is_good(token, fresh):
                return token.value
            try:
                self._token = self._fetch()
            except CatalogUnavailable:
                if token is None or self._clock() >= token.expires_at:
                    raise
                return token.value
            return self._token.value

    def drop(self, value: str) -> None:
        """Forget this token, unless another thread has already replaced it."""
        with self._lock:
            if self._token and self._token.value == value:
                self._token = None

    def _is_good(self, token: _Token, fresh: bool) -> bool:
        return self._clock() < (token.half_time if fresh else token.renew_at)

    def _fetch(self) -> _Token:
        asked_at = self._clock()
        endpoint = f"The token endpoint {self._client.token_uri}"
        try:
            response = self._client.post()
            body = read_object(response, _MAX_BYTES)
        except requests.RequestException as error:
            raise CatalogUnavailable(
                f"{endpoint} did not answer ({type(error).__name__})."
            ) from error
        except OSError as error:  # requests looks for the files before it connects
            raise CatalogRefused(
                f"{endpoint} was not asked: a file of the tls section cannot be read ({error})."
            ) from error
        if response.status_code != 200:
            raise self._refusal(response.status_code, body)
        value, kind = body.get("access_token"), body.get("token_type") or "bearer"
        if not is_usable_token(value):
            raise CatalogUnavailable(f"{endpoint} answered without a usable token.")
        if str(kind).lower() != "bearer":
            raise CatalogRefused(
                f"{endpoint} issues tokens of another type than bearer, which a catalog does not "
                "accept."
            )
        lifetime = lifetime_of(body)
        return _Token(
            value=str(value),
            half_time=asked_at + lifetime / 2,
            renew_at=asked_at + lifetime - min(_MARGIN, lifetime / 5),
            expires_at=asked_at + lifetime,
        )

    def _refusal(self, status: int, body: dict[str, Any]) -> CatalogRefused | CatalogUnavailable:
        client = self._client
        reason = client.conceal(reason_in(body))[:500]
        answer = f"The token endpoint {client.token_uri} answered {status} ({reason})"
        if status >= 500 or status in (408, 429):
            return CatalogUnavailable(f"{answer}.")
        return CatalogRefused(
            f"{answer} to the client {client.client_id!r}. Check its token-uri, client-id, scope "
            "and client-auth, and the secret, key or certificate that it authenticates with."
        )


_sources: dict[tuple[str, ...], TokenSource] = {}
_sources_lock = threading.Lock()


def shared_tokens(client: OAuthClient) -> TokenSource:
    """The process's only source for this client, so that several catalogs share its tokens."""
    with _sources_lock:
        return _sources.setdefault(client.key, TokenSource(client))


def is_usable_token(value: Any) -> bool:
    return isinstance(value, str) and bool(_USABLE_TOKEN.fullmatch(value))


def reason_in(body: Mapping[str, Any]) -> str:
    """The error of RFC 6749 in an answer."""
    words = [str(body[name]) for name in ("error", "error_description") if body.get(name)]
    return ": ".join(words) or "no reason given"


def lifetime_of(body: Mapping[str, Any]) -> float:
    """RFC 6749 makes it optional. A token that expires earlier is renewed after a 401."""
    try:
        return max(0.0, float(body.get("expires_in")))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return _DEFAULT_LIFETIME


def _credential_of(
    settings: OAuthClientSettings, token_uri: str, tls: ClientTlsSettings
) -> Credential:
    if settings.client_auth == "private_key_jwt":
        if not settings.client_id or settings.private_key is None:
            raise ValueError("a client-id and a private-key, but not both are configured")
        return PrivateKey(settings.private_key, settings.key_id, settings.assertion_audience)
    if settings.client_auth == "tls_client_auth":
        if not settings.client_id or tls.cert is None:
            raise ValueError("a client-id and tls.cert, but not both are configured")
        if urlsplit(token_uri).scheme != "https":
            raise ValueError("a token-uri with https: without TLS there is no client certificate")
        return OwnCertificate()
    secret = settings.client_secret.get_secret_value()
    if not settings.client_id or not secret:
        raise ValueError("a client id and a client secret, but no usable ones are configured")
    return ClientSecret(secret, settings.client_auth == "basic")


def _algorithm_of(key: Any) -> str | None:
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= 2048:
        return "RS256"
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return _CURVES.get(key.curve.name)
    return "EdDSA" if isinstance(key, ed25519.Ed25519PrivateKey) else None
