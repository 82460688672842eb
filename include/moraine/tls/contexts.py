"""SSL contexts of listeners and clients. TLS 1.2 is the least."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from moraine.settings.tls import ClientTlsSettings, ListenerTlsSettings
from moraine.tls.files import Renewed, TlsUnusable, require_private

_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class ListenerContext(ssl.SSLContext):
    """The context of a listener. Each connection gets the files as they are when it begins.

    Certificates of a context can be replaced, but a CA cannot be removed from one. So every
    version of the files has a context of its own, and this one hands connections to the newest.
    """

    _versions: Renewed[ssl.SSLContext]

    @classmethod
    def of(cls, settings: ListenerTlsSettings) -> ListenerContext:
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context._versions = Renewed(settings, lambda: _server_context(settings))
        return context

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self._versions.get().wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return self._versions.get().wrap_socket(*args, **options)


def _server_context(settings: ListenerTlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_chain(context, settings)
    if settings.client_auth != "none":
        assert settings.ca is not None  # by the settings' own rules
        _load_ca(context, settings.ca)
        # A resumed session is not verified again, and so outlives its certificate and its CA.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    return context


def client_context(settings: ClientTlsSettings) -> ssl.SSLContext:
    """For clients that take a context, such as aiohttp and urllib: verifies server and host name.

    A CA of the settings replaces those of the operating system.
    """
    context = ssl.create_default_context()
    if settings.ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_ca(context, settings.ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.cert is not None:
        _load_chain(context, settings)
    return context


def secured(session: requests.Session, settings: ClientTlsSettings) -> requests.Session:
    """The session, trusting the CA and presenting the certificate of the settings."""
    if settings.enabled:
        session.mount("https://", TlsAdapter(settings))
    return session


class TlsAdapter(HTTPAdapter):
    """Sends with the CA and the certificate of the settings, whatever the environment says:
    requests prefers REQUESTS_CA_BUNDLE to the CA of a session.

    The files are read for each new connection, so renewed ones need no restart.
    """

    def __init__(self, settings: ClientTlsSettings) -> None:
        super().__init__()
        self._settings = settings
        self._checked = Renewed(settings, lambda: client_context(settings))

    def send(self, *args: Any, **options: Any) -> requests.Response:
        own = self._settings
        if self._checked.get_if_new()[1]:
            self.poolmanager.clear()  # its connections were made with the files before
        if own.ca is not None:
            options["verify"] = str(own.ca)
        if own.cert is not None and own.key is not None:
            options["cert"] = (str(own.cert), str(own.key))
        return super().send(*args, **options)


def _load_chain(context: ssl.SSLContext, settings: ClientTlsSettings) -> None:
    assert settings.cert is not None  # by the settings' own rules
    assert settings.key is not None
    require_private(settings.key)
    try:
        context.load_cert_chain(settings.cert, settings.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise TlsUnusable(
            f"The certificate {settings.cert} and the key {settings.key} cannot be used "
            f"({_reason(error)})."
        ) from None


def _no_password() -> str:
    """Without it, OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted: store it without a password, mode 0600")


def _load_ca(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except OSError as error:
        raise TlsUnusable(f"The CA {ca} cannot be used ({_reason(error)}).") from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
