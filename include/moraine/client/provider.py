"""An identity provider as the command line sees it: its endpoints, and the login of a person with
the device authorization grant (RFC 8628)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests

from moraine.catalog.answers import read_object
from moraine.catalog.oauth import (
    NoAuth,
    is_usable_token,
    lifetime_of,
    post_form,
    reason_in,
    tls_options,
)
from moraine.errors import MoraineError
from moraine.settings.tls import ClientTlsSettings

_TIMEOUT = (5, 15)
_MAX_BYTES = 1 << 20
_MAX_WAIT = 1800.0
_DEFAULT_INTERVAL = 5.0
_SLOWER = 5.0
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


class LoginFailed(MoraineError):
    """The identity provider did not let the command line log in."""


@dataclass(frozen=True)
class Grant:
    """What a token endpoint gave."""

    access_token: str = field(repr=False)
    expires_at: float
    """In seconds since 1970."""
    refresh_token: str = field(default="", repr=False)


@dataclass(frozen=True)
class DeviceCode:
    """What a person needs to allow the login in a browser."""

    user_code: str
    verification_uri: str
    complete_uri: str
    """The same with the code in it, or empty."""
    device_code: str = field(repr=False)
    interval: float
    expires_in: float


@dataclass(frozen=True)
class Provider:
    issuer: str
    token_endpoint: str
    device_endpoint: str = ""
    revocation_endpoint: str = ""

    @classmethod
    def discover(cls, issuer: str, tls: ClientTlsSettings) -> Provider:
        """Read the discovery document.

        An issuer without TLS must be on this machine, and an issuer with TLS has no endpoint
        without it: logins are not sent in plain text.
        """
        if not _is_safe(issuer):
            raise LoginFailed("login.issuer must begin with https, unless it is on this machine.")
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            response = requests.get(
                url,
                auth=NoAuth(),
                timeout=_TIMEOUT,
                allow_redirects=False,
                stream=True,
                **tls_options(tls),
            )
            found = read_object(response, _MAX_BYTES)
        except OSError as error:  # errors of requests are of this kind, too
            raise LoginFailed(f"{url} did not answer ({type(error).__name__}).") from error
        if response.status_code != 200 or found.get("issuer") != issuer:
            raise LoginFailed(
                f"{url} is not the discovery document of {issuer}: write login.issuer as the "
                "provider's own document has it."
            )
        if tls.cert and isinstance(aliases := found.get("mtls_endpoint_aliases"), dict):
            found |= aliases  # RFC 8705, 5: where the provider asks for certificates
        return cls(
            issuer,
            _endpoint(found, "token_endpoint", issuer) or _missing("token_endpoint", issuer),
            _endpoint(found, "device_authorization_endpoint", issuer),
            _endpoint(found, "revocation_endpoint", issuer),
        )


@dataclass(frozen=True)
class PublicClient:
    """A client without a credential, which acts for the person who uses it."""

    provider: Provider
    client_id: str
    tls: ClientTlsSettings
    sleep: Callable[[float], None] = time.sleep

    def ask_for_code(self, scope: str) -> DeviceCode:
        if not self.provider.device_endpoint:
            raise LoginFailed(
                f"{self.provider.issuer} offers no device authorization (RFC 8628), which "
                "`moraine login` uses."
            )
        form = {"client_id": self.client_id, "scope": scope}
        status, body = self._post(self.provider.device_endpoint, form)
        if status != 200:
            raise LoginFailed(
                f"{self.provider.issuer} refused a login of the client {self.client_id!r} "
                f"({_printable(reason_in(body))[:500]})."
            )
        code, uri, device = (
            body.get(name) for name in ("user_code", "verification_uri", "device_code")
        )
        if not (_is_shown(code) and _is_page(uri) and is_usable_token(device)):
            raise LoginFailed(f"{self.provider.issuer} sent no usable code for a login.")
        complete = body.get("verification_uri_complete")
        return DeviceCode(
            user_code=str(code),
            verification_uri=str(uri),
            complete_uri=str(complete) if _is_page(complete) else "",
            device_code=str(device),
            interval=_seconds(body.get("interval"), _DEFAULT_INTERVAL),
            expires_in=min(_MAX_WAIT, lifetime_of(body)),
        )

    def wait_for_grant(self, code: DeviceCode, clock: Callable[[], float] = time.time) -> Grant:
        """Ask until the person has decided, as often as the provider allows."""
        interval, give_up_at = code.interval, clock() + code.expires_in
        form = {
            "grant_type": _DEVICE_GRANT,
            "device_code": code.device_code,
            "client_id": self.client_id,
        }
        while clock() < give_up_at:
            self.sleep(interval)
            try:
                status, body = self._post(self.provider.token_endpoint, form)
            except LoginFailed:
                interval *= 2  # RFC 8628, 3.5: after a timeout, ask less often
                continue
            error = body.get("error")
            if status == 200:
                return self._grant(body)
            if error == "slow_down":
                interval += _SLOWER
            elif error != "authorization_pending" and status < 500:
                words = _printable(reason_in(body))[:500]
                raise LoginFailed(f"{self.provider.issuer} did not allow the login ({words}).")
        raise LoginFailed("The code has expired before the login was allowed: try again.")

    def refresh(self, refresh_token: str) -> Grant | None:
        """A new grant, or None if the login has ended."""
        form = {
            "grant_type": "refresh_token",
            "refresh_token": refresh_token,
            "client_id": self.client_id,
        }
        status, body = self._post(self.provider.token_endpoint, form)
        if status == 200:
            # RFC 6749, 6: a provider that does not replace the refresh token sends none.
            return self._grant({"refresh_token": refresh_token, **body})
        if body.get("error") == "invalid_grant":
            return None
        words = _printable(reason_in(body))[:500]
        raise LoginFailed(f"{self.provider.issuer} did not renew the login: {status} ({words}).")

    def revoke(self, token: str) -> bool:
        """End the login at the provider as well (RFC 7009). Whether the provider did it."""
        if not self.provider.revocation_endpoint:
            return False
        try:
            form = {"token": token, "client_id": self.client_id}
            status, _ = self._post(self.provider.revocation_endpoint, form)
        except LoginFailed:
            return False
        return status == 200

    def _post(self, uri: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        try:
            response = post_form(uri, form, self.tls)
            return response.status_code, read_object(response, _MAX_BYTES)
        except OSError as error:
            raise LoginFailed(f"{uri} did not answer ({type(error).__name__}).") from error

    def _grant(self, body: dict[str, Any]) -> Grant:
        token, refresh = body.get("access_token"), body.get("refresh_token")
        if not is_usable_token(token) or str(body.get("token_type", "")).lower() != "bearer":
            raise LoginFailed(f"{self.provider.issuer} answered without a usable token.")
        return Grant(
            str(token),
            time.time() + lifetime_of(body),
            str(refresh) if is_usable_token(refresh) else "",
        )


def _endpoint(found: dict[str, Any], name: str, issuer: str) -> str:
    uri = found.get(name) or ""
    if uri and not _is_page(uri):
        raise LoginFailed(f"The discovery document of {issuer} has an unusable {name}.")
    if uri and urlsplit(issuer).scheme == "https" and urlsplit(uri).scheme != "https":
        raise LoginFailed(f"The discovery document of {issuer} has a {name} without TLS.")
    return str(uri)


def _is_safe(issuer: str) -> bool:
    parts = urlsplit(issuer)
    return parts.scheme == "https" or parts.hostname in ("127.0.0.1", "::1", "localhost")


def _missing(name: str, issuer: str) -> str:
    raise LoginFailed(f"The discovery document of {issuer} has no {name}.")


def _is_shown(value: Any) -> bool:
    """Whether it can be printed: control characters could rewrite the terminal."""
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= 100


def _is_page(value: Any) -> bool:
    return (
        is_usable_token(value)
        and len(value) <= 1000
        and urlsplit(value).scheme in ("http", "https")
    )


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())


def _seconds(value: Any, default: float) -> float:
    try:
        return min(60.0, max(1.0, float(value)))
    except (TypeError, ValueError):
        return default
