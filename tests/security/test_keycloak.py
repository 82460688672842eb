"""Moraine and a real identity provider, Keycloak: as its client, and as an API that trusts it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import jwt
import pytest
import requests

from moraine.access import authenticator, key_sets
from moraine.access.authenticator import Authenticator
from moraine.access.model import Caller, Certificate
from moraine.catalog import oauth
from moraine.catalog.auth import tokens_for
from moraine.catalog.oauth import ClientSecret, OAuthClient, TokenSource
from moraine.client.login import LoginFile, PersonsTokens, api_url
from moraine.client.provider import PublicClient
from moraine.errors import CatalogRefused, CatalogUnavailable, Unauthorized
from moraine.http import DELEGATION_PATH
from moraine.settings import CatalogAuthSettings, CatalogSettings, Settings
from moraine.settings.tls import ClientTlsSettings
from support.airflow_server import PASSWORD, airflow_server
from support.api_server import running_api
from support.authority import Authority, KeyPair
from support.issuer import Issuer
from support.keycloak import AUDIENCE, REALMS, SHORT_LIFETIME
from support.waiting import wait_for

if TYPE_CHECKING:
    from support.keycloak import Keycloak, Realm


@pytest.fixture(autouse=True)
def _no_tokens_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "_sources", {})


def principal(realm: Realm, tls: ClientTlsSettings | None = None, **auth: Any) -> CatalogSettings:
    """Moraine's own principal at a catalog that trusts the realm."""
    given = {"client_id": "moraine", "scope": "tasks:read", **auth}
    return CatalogSettings(
        uri="https://catalog.example",
        auth=CatalogAuthSettings(kind="oauth2", token_uri=realm.token_uri, **given),
        tls=tls or ClientTlsSettings(),
    )


def verified(token: str, realm: Realm, ca: Path | None = None) -> dict[str, Any]:
    """The claims of a token that the realm has signed for Moraine."""
    keys = requests.get(realm.key_set_url, verify=str(ca) if ca else True, timeout=30).json()
    key = jwt.PyJWKSet.from_dict(keys)[jwt.get_unverified_header(token)["kid"]]
    claims: dict[str, Any] = jwt.decode(
        token, key, ["RS256"], audience=AUDIENCE, issuer=realm.issuer
    )
    return claims


# --- Moraine gets tokens ---------------------------------------------------------------------


@pytest.mark.parametrize("name", REALMS)
@pytest.mark.parametrize("client_auth", ["body", "basic"])
def test_a_client_secret_gets_a_token(keycloak: Keycloak, name: str, client_auth: str) -> None:
    realm = keycloak.realm(name)
    settings = principal(realm, client_secret=keycloak.secret, client_auth=client_auth)
    claims = verified(tokens_for(settings).get(), realm)
    assert (claims["azp"], claims["scope"]) == ("moraine", "tasks:read")


@pytest.mark.parametrize("kind", ["rsa", "ec"])
def test_a_private_key_gets_a_token(keycloak: Keycloak, kind: str) -> None:
    realm = keycloak.realm("lake")
    key = {"rsa": keycloak.rsa_key, "ec": keycloak.ec_key}[kind]
    settings = principal(
        realm,
        client_id=f"{kind}-key",
        client_auth="private_key_jwt",
        private_key=key,
        key_id=key.stem,
    )
    tokens = tokens_for(settings)
    first = tokens.get()
    assert verified(first, realm)["azp"] == f"{kind}-key"
    tokens.drop(first)
    assert tokens.get() != first


def test_the_issuer_can_be_the_audience_of_the_assertion(keycloak: Keycloak) -> None:
    realm = keycloak.realm("lake")
    settings = principal(
        realm,
        client_id="ec-key",
        client_auth="private_key_jwt",
        private_key=keycloak.ec_key,
        assertion_audience=realm.issuer,
    )
    assert verified(tokens_for(settings).get(), realm)["azp"] == "ec-key"


def test_the_key_of_another_client_gets_none(keycloak: Keycloak) -> None:
    settings = principal(
        keycloak.realm("lake"),
        client_id="rsa-key",
        client_auth="private_key_jwt",
        private_key=keycloak.ec_key,
    )
    with pytest.raises(CatalogRefused, match="answered 40"):
        tokens_for(settings).get()


def test_a_certificate_gets_a_token_that_is_bound_to_it(keycloak: Keycloak) -> None:
    realm, own = keycloak.realm("lake", tls=True), keycloak.client_certificate
    tls = ClientTlsSettings(ca=keycloak.authority.ca, cert=own.cert, key=own.key)
    settings = principal(realm, tls, client_id="cert", client_auth="tls_client_auth")
    claims = verified(tokens_for(settings).get(), realm, keycloak.authority.ca)
    assert claims["azp"] == "cert"
    assert claims["cnf"] == {"x5t#S256": own.thumbprint}


def test_a_certificate_of_another_name_or_another_authority_gets_none(
    keycloak: Keycloak, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "foreign").issue("moraine")
    other = keycloak.authority.issue("another")
    realm = keycloak.realm("lake", tls=True)
    for pair in (foreign, other):
        tls = ClientTlsSettings(ca=keycloak.authority.ca, cert=pair.cert, key=pair.key)
        settings = principal(realm, tls, client_id="cert", client_auth="tls_client_auth")
        with pytest.raises((CatalogRefused, CatalogUnavailable)):
            tokens_for(settings).get()


def test_no_secret_goes_to_a_server_of_another_authority(
    keycloak: Keycloak, tmp_path: Path
) -> None:
    tls = ClientTlsSettings(ca=Authority(tmp_path, "foreign").ca)
    settings = principal(keycloak.realm("lake", tls=True), tls, client_secret=keycloak.secret)
    with pytest.raises(CatalogUnavailable, match="SSLError"):
        tokens_for(settings).get()


def test_a_short_token_is_renewed_in_time(keycloak: Keycloak) -> None:
    realm = keycloak.realm("pond")
    settings = principal(realm, client_id="short", client_secret=keycloak.secret)
    tokens = tokens_for(settings)
    first = tokens.get()
    time.sleep(SHORT_LIFETIME)
    second = tokens.get()
    assert second != first
    verified(second, realm)


def test_while_the_provider_is_away_the_last_token_is_used(
    keycloak: Keycloak, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth, "_TIMEOUT", (1, 1))
    settings = principal(keycloak.realm("lake"), client_secret=keycloak.secret)
    tokens = tokens_for(settings)
    first = tokens.get()
    with keycloak.away():
        assert tokens.get(fresh=True) == first
        tokens.drop(first)
        with pytest.raises(CatalogUnavailable, match="did not answer"):
            tokens.get()
    verified(tokens.get(), keycloak.realm("lake"))


def test_tokens_are_signed_with_the_new_key_after_a_rotation(keycloak: Keycloak) -> None:
    realm = keycloak.realm("pond")
    tokens = tokens_for(principal(realm, client_secret=keycloak.secret))
    old = tokens.get()
    keycloak.rotate_keys("pond")
    tokens.drop(old)
    new = tokens.get()
    assert jwt.get_unverified_header(old)["kid"] != jwt.get_unverified_header(new)["kid"]
    verified(new, realm)
    with pytest.raises(KeyError):
        verified(old, realm)


# --- People log in on the command line -------------------------------------------------------


@pytest.fixture
def commands(keycloak: Keycloak, tmp_path: Path) -> dict[str, str]:
    """The environment of `moraine` for a person."""
    (tmp_path / "moraine.toml").touch()
    return {
        "MORAINE_CONFIG": str(tmp_path / "moraine.toml"),
        "MORAINE_LOGIN__KIND": "oauth2",
        "MORAINE_LOGIN__URL": "https://moraine.example",
        "MORAINE_LOGIN__ISSUER": keycloak.realm("lake", tls=True).issuer,
        "MORAINE_LOGIN__CLIENT_ID": "people",
        "MORAINE_LOGIN__SCOPE": "tasks:read",
        "MORAINE_LOGIN__TLS__CA": str(keycloak.authority.ca),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }


def start(commands: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "moraine"), *words],
        env={**os.environ, **commands},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def decided(keycloak: Keycloak, commands: dict[str, str], *, allow: bool) -> tuple[int, str]:
    """`moraine login`, and what the person decides in the browser."""
    with start(commands, "login") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("or open "):
                keycloak.decide(line.removeprefix("or open ").strip(), allow=allow)
                break
        rest = process.stdout.read()
    return process.returncode, rest


def test_a_person_logs_in_by_a_browser_and_out_again(
    keycloak: Keycloak, commands: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert decided(keycloak, commands, allow=True) == (0, "Logged in.\n")
    for name, value in commands.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    file = LoginFile.of(api_url(settings), settings.login)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    tokens = PersonsTokens(file, settings.login)
    realm, ca = keycloak.realm("lake", tls=True), keycloak.authority.ca
    first = tokens.get()
    assert verified(first, realm, ca)["scope"] == "tasks:read"
    tokens.drop(first)
    second = tokens.get()
    assert second != first
    assert verified(second, realm, ca)["sub"] == verified(first, realm, ca)["sub"]

    login = file.read()
    assert login is not None
    with start(commands, "logout") as process:
        assert process.communicate()[0] == "Logged out, here and at the provider.\n"
    assert not file.path.exists()
    client = PublicClient(login.provider, login.client_id, settings.login.tls)
    assert client.refresh(login.grant.refresh_token) is None


def test_a_person_who_cancels_is_not_logged_in(
    keycloak: Keycloak, commands: dict[str, str]
) -> None:
    status, words = decided(keycloak, commands, allow=False)
    assert status == 1
    assert "did not allow the login (access_denied" in " ".join(words.split())
    with start(commands, "tasks", "list") as process:
        assert "run `moraine login`" in process.communicate()[0]


# --- The API accepts tokens ------------------------------------------------------------------

StartApi = Callable[..., str]


@pytest.fixture
def start_api(ledger_url: str) -> Iterator[StartApi]:
    """The origin of an API that trusts these issuers, by name; it ends with the test."""
    with ExitStack() as stack:
        airflow = stack.enter_context(airflow_server())

        def start(**issuers: dict[str, Any]) -> str:
            settings = Settings(
                realm="demo",
                ledger={"url": ledger_url, "pool_size": 4},
                airflow={"url": airflow.url, "password": PASSWORD},
                api={"accept_airflow_tokens": False, "issuers": issuers},
            )
            return stack.enter_context(running_api(settings))

        yield start


@pytest.fixture
def api(keycloak: Keycloak, start_api: StartApi) -> str:
    """One that trusts both realms of Keycloak, by discovery."""
    return start_api(**{name: {"issuer": keycloak.realm(name).issuer} for name in REALMS})


def token(keycloak: Keycloak, realm: str, scope: str = "tasks:read") -> str:
    """A new one."""
    secret = ClientSecret(keycloak.secret)
    uri = keycloak.realm(realm).token_uri
    return TokenSource(OAuthClient(uri, "moraine", secret, scope)).get()


def ask(origin: str, token: str, method: str = "GET", path: str = "/v1/tasks") -> int:
    return requests.request(
        method,
        f"{origin}{DELEGATION_PATH}{path}",
        headers={"Authorization": f"Bearer {token}"},
        timeout=30,
    ).status_code


@pytest.mark.parametrize("realm", REALMS)
def test_tokens_of_several_issuers_allow_what_their_scopes_say(
    keycloak: Keycloak, api: str, realm: str
) -> None:
    cancel = f"/v1/tasks/{uuid4()}/cancel"
    assert ask(api, token(keycloak, realm)) == 200
    assert ask(api, token(keycloak, realm), "POST", cancel) == 403
    assert ask(api, token(keycloak, realm, "tasks:steer"), "POST", cancel) == 404
    assert ask(api, token(keycloak, realm, "execute_tasks"), "POST", cancel) == 404
    assert ask(api, token(keycloak, realm, "otlp:write")) == 403
    assert ask(api, token(keycloak, realm, "")) == 403


def test_a_realm_of_the_same_server_that_is_not_trusted_is_refused(
    keycloak: Keycloak, start_api: StartApi
) -> None:
    api = start_api(lake={"issuer": keycloak.realm("lake").issuer})
    assert ask(api, token(keycloak, "lake")) == 200
    assert ask(api, token(keycloak, "pond")) == 401


def test_a_token_for_another_audience_is_refused(keycloak: Keycloak, start_api: StartApi) -> None:
    api = start_api(lake={"issuer": keycloak.realm("lake").issuer, "audience": "another"})
    assert ask(api, token(keycloak, "lake")) == 401


def test_a_changed_token_is_refused(keycloak: Keycloak, api: str) -> None:
    """A realm's signature under another realm's name, or under other claims."""
    head, _, signature = token(keycloak, "lake").split(".")
    _, claims, _ = token(keycloak, "pond").split(".")
    assert ask(api, f"{head}.{claims}.{signature}") == 401
    assert ask(api, f"{head}.{claims}.") == 401


def test_a_token_that_has_expired_is_refused(
    keycloak: Keycloak, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, "_LEEWAY_SECONDS", 0)
    settings = principal(keycloak.realm("lake"), client_id="short", client_secret=keycloak.secret)
    short = tokens_for(settings).get()
    assert ask(api, short) == 200
    time.sleep(SHORT_LIFETIME + 1)
    assert ask(api, short) == 401


def test_after_a_rotation_new_tokens_are_accepted_and_stolen_keys_are_worth_nothing(
    keycloak: Keycloak, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_sets, "_PAUSE_AFTER_SUCCESS", 0.0)
    old = token(keycloak, "pond")
    assert ask(api, old) == 200
    keycloak.rotate_keys("pond")
    assert ask(api, token(keycloak, "pond")) == 200
    assert ask(api, old) == 401


def test_while_the_provider_is_away_its_tokens_are_accepted(
    keycloak: Keycloak, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With keys that count as old at once, every request finds out that the provider is away."""
    monkeypatch.setattr(key_sets, "_FRESH_SECONDS", 0.0)
    good = {name: token(keycloak, name) for name in REALMS}
    assert {ask(api, one) for one in good.values()} == {200}
    forged = Issuer("unknown").token(iss=keycloak.realm("lake").issuer)
    with keycloak.away():
        until = time.monotonic() + 12  # more than one attempt to fetch keys, and the pause between
        while time.monotonic() < until:
            for one in good.values():
                assert ask(api, one) == 200
            time.sleep(0.2)
        assert ask(api, forged) == 503  # it may be a new key: not refused, and not accepted
    wait_for(lambda: ask(api, forged) == 401, 30)
    assert ask(api, token(keycloak, "lake")) == 200


def test_without_keys_that_are_fresh_enough_no_token_is_judged(
    keycloak: Keycloak, start_api: StartApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_sets, "_FRESH_SECONDS", 1.0)
    monkeypatch.setattr(key_sets, "_PAUSE_AFTER_SUCCESS", 0.0)
    api = start_api(lake={"issuer": keycloak.realm("lake").issuer, "stale_keys": "0s"})
    good = token(keycloak, "lake")
    assert ask(api, good) == 200
    with keycloak.away():
        time.sleep(1.1)
        assert ask(api, good) == 503


def test_a_stolen_bound_token_is_worth_nothing_without_its_certificate(
    keycloak: Keycloak, start_api: StartApi
) -> None:
    realm, own = keycloak.realm("lake", tls=True), keycloak.client_certificate
    ca = keycloak.authority.ca
    tls = ClientTlsSettings(ca=ca, cert=own.cert, key=own.key)
    bound = tokens_for(principal(realm, tls, client_id="cert", client_auth="tls_client_auth")).get()
    issuer = {"issuer": realm.issuer, "tls": {"ca": ca}}
    assert ask(start_api(lake=issuer), bound) == 401

    trusting = Authenticator(Settings(api={"issuers": {"lake": issuer}}), None)

    async def present(pair: KeyPair) -> str:
        certificate = Certificate("CN=moraine", (), pair.thumbprint)
        identity = await trusting.identify(Caller(f"Bearer {bound}", certificate))
        return identity.principal.issuer

    another = keycloak.authority.issue("moraine-renewed")
    assert asyncio.run(present(own)) == realm.issuer
    with pytest.raises(Unauthorized, match="NotItsCertificate"):
        asyncio.run(present(another))


def test_the_command_line_uses_the_api_as_an_oauth2_client(
    keycloak: Keycloak, api: str, commands: dict[str, str]
) -> None:
    client = {
        **commands,
        "MORAINE_LOGIN__URL": api,
        "MORAINE_LOGIN__ISSUER": keycloak.realm("pond").issuer,
        "MORAINE_LOGIN__CLIENT_ID": "ec-key",
        "MORAINE_LOGIN__CLIENT_AUTH": "private_key_jwt",
        "MORAINE_LOGIN__PRIVATE_KEY": str(keycloak.ec_key),
    }
    with start(client, "tasks", "list", "--json") as process:
        assert json.loads(process.communicate()[0])["tasks"] == []
    with start(client, "tasks", "cancel", str(uuid4())) as process:
        assert "lacks the scope tasks:steer" in " ".join(process.communicate()[0].split())
