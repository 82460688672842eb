"""Moraine's API from a caller's side, with the login that the settings select."""

from __future__ import annotations

from typing import Any, Protocol

import requests

from moraine.catalog.auth import ClientCredentialsAuth, Tokens
from moraine.catalog.oauth import OAuthClient, shared_tokens, tls_options
from moraine.client.login import LoginFile, PersonsTokens, api_url
from moraine.client.provider import LoginFailed, Provider
from moraine.errors import MoraineError
from moraine.orchestration.dag_runs import AirflowSession
from moraine.settings import Settings
from moraine.settings.login import LoginSettings


class ApiSession(Protocol):
    url: str

    def request(self, method: str, path: str, **options: Any) -> requests.Response: ...


class ApiUnavailable(MoraineError):
    """Moraine's API did not answer."""


class OAuthSession:
    """Requests with tokens of an identity provider. A token that is refused is replaced once."""

    def __init__(self, url: str, tokens: Tokens, settings: LoginSettings, timeout: float) -> None:
        self.url = url
        self._auth = ClientCredentialsAuth(tokens)
        self._tls = tls_options(settings.tls)
        self._timeout = timeout
        self._session = requests.Session()

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        options.setdefault("timeout", self._timeout)
        try:
            return self._session.request(
                method,
                f"{self.url}{path}",
                auth=self._auth,
                allow_redirects=False,
                **self._tls,
                **options,
            )
        except OSError as error:  # errors of requests are of this kind, too
            raise ApiUnavailable(
                f"Moraine's API at {self.url} does not answer ({type(error).__name__})."
            ) from error


def open_session(settings: Settings) -> ApiSession:
    login = settings.login
    if login.kind == "airflow":
        return AirflowSession(settings.airflow)
    timeout = settings.airflow.timeout.total_seconds()
    return OAuthSession(api_url(settings), _tokens(settings), login, timeout)


def _tokens(settings: Settings) -> Tokens:
    login = settings.login
    if login.is_for_people:
        return PersonsTokens(LoginFile.of(api_url(settings), login), login)
    try:
        if not login.token_uri and not login.issuer:
            raise ValueError("login.issuer or login.token-uri")
        endpoint = login.token_uri or Provider.discover(login.issuer, login.tls).token_endpoint
        client = OAuthClient.of(login, endpoint, login.tls)
    except ValueError as error:
        raise LoginFailed(f"The login of the command line needs {error}.") from error
    return shared_tokens(client)
