"""The command line as an OAuth2 client: whom it believes, what it keeps, and where that is sent."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest

from moraine.catalog import oauth
from moraine.client.delegation import DelegationClient
from moraine.client.login import LoginFile, PersonsTokens, api_url, log_out, start_login
from moraine.client.provider import DeviceCode, LoginFailed, Provider, PublicClient
from moraine.client.session import open_session
from moraine.errors import MoraineError
from moraine.settings import LoginSettings, Settings
from moraine.settings.tls import ClientTlsSettings

if TYPE_CHECKING:
    from support.told_server import Server

NO_TLS = ClientTlsSettings()
DISCOVERY = "/.well-known/openid-configuration"
TASK = "/delegation-service/api/v1/tasks/t"
PENDING = (400, {"error": "authorization_pending"})


def grant(value: str = "one", **changes: Any) -> tuple[int, dict[str, Any]]:
    body = {"access_token": value, "token_type": "Bearer", "expires_in": 300, **changes}
    return 200, {"refresh_token": f"refresh-{value}", **body}


@pytest.fixture(autouse=True)
def _state_of_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(oauth, "_sources", {})


@pytest.fixture
def provider(server: Server) -> Server:
    server.answers[DISCOVERY] = (
        200,
        {
            "issuer": server.url,
            "token_endpoint": f"{server.url}/token",
            "device_authorization_endpoint": f"{server.url}/device",
            "revocation_endpoint": f"{server.url}/revoke",
        },
    )
    server.answers["/device"] = (
        200,
        {
            "device_code": "device",
            "user_code": "ABCD-EFGH",
            "verification_uri": "https://idp.example/device",
            "interval": 1,
            "expires_in": 60,
        },
    )
    server.answers["/token"] = grant()
    server.answers["/revoke"] = (200, {})
    server.answers[TASK] = (200, {"ok": True})
    return server


def person(server: Server, **changes: Any) -> Settings:
    login = {"kind": "oauth2", "issuer": server.url, "client_id": "people", "url": server.url}
    return Settings(login=LoginSettings(**{**login, **changes}))


def log_in(settings: Settings, sleep: Callable[[float], None] = lambda _: None) -> None:
    from moraine.client.login import finish_login

    client, code = start_login(settings)
    quick = PublicClient(client.provider, client.client_id, client.tls, sleep)
    finish_login(settings, quick, code)


def forms(server: Server, path: str) -> list[dict[str, str]]:
    return [
        {name: value for name, [value] in parse_qs(asked.body).items()}
        for asked in server.asked_for(path)
    ]


def test_login_of_a_person_gives_the_token_that_is_sent(provider: Server) -> None:
    provider.answers["/token"] = [PENDING, (400, {"error": "slow_down"}), PENDING, grant()]
    slept: list[float] = []
    settings = person(provider, scope="tasks:read")
    log_in(settings, slept.append)
    assert slept == [1, 1, 6, 6]
    assert forms(provider, "/device") == [{"client_id": "people", "scope": "tasks:read"}]
    assert DelegationClient(settings).task("t") == {"ok": True}
    [asked] = provider.asked_for(TASK)
    assert asked.headers["Authorization"] == "Bearer one"


@pytest.mark.parametrize("error", ["access_denied", "expired_token", "invalid_grant"])
def test_login_that_is_refused_keeps_nothing(provider: Server, error: str) -> None:
    provider.answers["/token"] = [PENDING, (400, {"error": error})]
    with pytest.raises(LoginFailed, match=error):
        log_in(person(provider))
    with pytest.raises(LoginFailed, match="run `moraine login`"):
        DelegationClient(person(provider)).task("t")


def test_login_code_that_no_person_enters_expires() -> None:
    times = iter([0.0, 1.0, 61.0])
    code = DeviceCode("A", "https://i/d", "", "device", 1, 60)
    client = PublicClient(Provider("http://i", "http://127.0.0.1:1/t"), "c", NO_TLS, lambda _: None)
    with pytest.raises(LoginFailed, match="has expired"):
        client.wait_for_grant(code, lambda: next(times))


def test_login_file_is_refused_when_others_can_read_it(provider: Server, tmp_path: Path) -> None:
    settings = person(provider)
    log_in(settings)
    file = LoginFile.of(api_url(settings), settings.login).path
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "one" not in repr(LoginFile(file).read())
    file.chmod(0o640)
    with pytest.raises(LoginFailed, match="can be read by others"):
        DelegationClient(settings).task("t")
    assert provider.asked_for(TASK) == []
    assert "end it at the provider" in log_out(settings)
    assert not file.exists()


def test_login_file_is_not_followed_as_a_link(provider: Server, tmp_path: Path) -> None:
    settings = person(provider)
    log_in(settings)
    file = LoginFile.of(api_url(settings), settings.login).path
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LoginFailed, match="cannot be read"):
        DelegationClient(settings).task("t")


def test_login_says_where_it_cannot_be_kept(
    provider: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(LoginFailed, match="No login can be kept"):
        log_in(person(provider))


def test_login_is_not_sent_to_the_api_of_a_foreign_folders_settings(provider: Server) -> None:
    log_in(person(provider))
    elsewhere = person(provider, url=f"{provider.url}/elsewhere")
    with pytest.raises(LoginFailed, match="not logged in"):
        DelegationClient(elsewhere).task("t")
    assert provider.asked_for(f"/elsewhere{TASK}") == []


def test_login_is_renewed_at_its_own_endpoint(provider: Server) -> None:
    """Settings that name another endpoint later do not get the refresh token."""
    provider.answers["/token"] = [grant("old", expires_in=1), grant("new")]
    log_in(person(provider))
    settings = person(provider, token_uri=f"{provider.url}/elsewhere")
    DelegationClient(settings).task("t")
    assert provider.asked_for("/elsewhere") == []
    assert forms(provider, "/token")[1] == {
        "grant_type": "refresh_token",
        "refresh_token": "refresh-old",
        "client_id": "people",
    }
    assert provider.asked_for(TASK)[0].headers["Authorization"] == "Bearer new"


def test_login_is_renewed_once_for_many_processes(provider: Server) -> None:
    provider.answers["/token"] = [grant("old", expires_in=1), grant("new")]
    settings = person(provider)
    log_in(settings)
    file = LoginFile.of(api_url(settings), settings.login)
    got: list[str] = []
    threads = [
        threading.Thread(target=lambda: got.append(PersonsTokens(file, settings.login).get()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["new"] * 8
    assert len(provider.asked_for("/token")) == 2


def test_login_is_renewed_once_after_a_refusal(provider: Server) -> None:
    settings = person(provider)
    log_in(settings)
    provider.answers["/token"] = grant("new")
    provider.answers[TASK] = [(401, {}), (200, {"ok": True})]
    assert DelegationClient(settings).task("t") == {"ok": True}
    sent = [asked.headers["Authorization"] for asked in provider.asked_for(TASK)]
    assert sent == ["Bearer one", "Bearer new"]


def test_login_is_forgotten_when_it_has_ended_and_kept_while_that_is_unknown(
    provider: Server,
) -> None:
    settings = person(provider)
    provider.answers["/token"] = grant("old", expires_in=1)
    log_in(settings)
    file = LoginFile.of(api_url(settings), settings.login).path
    provider.answers["/token"] = (503, {})
    with pytest.raises(LoginFailed, match="did not renew"):
        DelegationClient(settings).task("t")
    assert file.exists()
    provider.answers["/token"] = (400, {"error": "invalid_grant"})
    with pytest.raises(LoginFailed, match="has ended"):
        DelegationClient(settings).task("t")
    assert not file.exists()


def test_logout_revokes_the_refresh_token(provider: Server) -> None:
    settings = person(provider)
    log_in(settings)
    assert log_out(settings) == "Logged out, here and at the provider."
    assert forms(provider, "/revoke") == [{"token": "refresh-one", "client_id": "people"}]
    assert log_out(settings) == "There was no login."


def test_logout_works_while_the_provider_is_away(provider: Server) -> None:
    settings = person(provider)
    log_in(settings)
    provider.answers["/revoke"] = (503, {})
    assert "did not revoke" in log_out(settings)
    assert not LoginFile.of(api_url(settings), settings.login).path.exists()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"issuer": "https://other.example"}, "not the discovery document"),
        ({"token_endpoint": None}, "has no token_endpoint"),
        ({"token_endpoint": "file:///etc/passwd"}, "unusable token_endpoint"),
        ({"device_authorization_endpoint": None}, "no device authorization"),
    ],
)
def test_login_refuses_a_wrong_discovery_document(
    provider: Server, document: dict[str, Any], words: str
) -> None:
    _, found = provider.answer(DISCOVERY)
    provider.answers[DISCOVERY] = (200, {**found, **document})
    with pytest.raises(LoginFailed, match=words):
        start_login(person(provider))


def test_login_is_not_sent_in_plain_text(provider: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import requests

    with pytest.raises(LoginFailed, match="must begin with https"):
        Provider.discover("http://idp.example", NO_TLS)
    secure = "https://idp.example"
    plain = {"issuer": secure, "token_endpoint": "http://idp.example/token"}
    provider.answers["/plain"] = (200, plain)
    get = requests.get
    monkeypatch.setattr(requests, "get", lambda _, **more: get(f"{provider.url}/plain", **more))
    with pytest.raises(LoginFailed, match="token_endpoint without TLS"):
        Provider.discover(secure, NO_TLS)


@pytest.mark.parametrize(
    "changes",
    [
        {"user_code": "A\x1b[2J"},
        {"verification_uri": "javascript:alert(1)"},
        {"verification_uri": "https://idp.example/\x1b]0;x"},
        {"device_code": None},
    ],
)
def test_login_refuses_codes_that_rewrite_the_terminal(
    provider: Server, changes: dict[str, Any]
) -> None:
    _, body = provider.answer("/device")
    provider.answers["/device"] = (200, {**body, **changes})
    with pytest.raises(LoginFailed, match="no usable code"):
        start_login(person(provider))


def test_login_of_a_client_with_a_secret_needs_no_person(provider: Server) -> None:
    settings = person(provider, client_id="robot", client_secret="hunter2", scope="tasks:read")
    assert DelegationClient(settings).task("t") == {"ok": True}
    assert forms(provider, "/token") == [
        {
            "grant_type": "client_credentials",
            "client_id": "robot",
            "client_secret": "hunter2",
            "scope": "tasks:read",
        }
    ]
    with pytest.raises(LoginFailed, match="needs no login"):
        start_login(settings)


def test_login_says_what_it_lacks(provider: Server) -> None:
    with pytest.raises(LoginFailed, match=r"login\.issuer or login\.token-uri"):
        open_session(person(provider, issuer="", client_secret="hunter2"))
    with pytest.raises(LoginFailed, match="a client-id and a private-key"):
        open_session(person(provider, client_auth="private_key_jwt"))
    with pytest.raises(LoginFailed, match="nothing to log in to"):
        start_login(Settings())


def test_session_says_in_one_sentence_that_the_api_is_away(provider: Server) -> None:
    settings = person(provider, url="http://127.0.0.1:1")
    log_in(settings)
    with pytest.raises(MoraineError, match="does not answer"):
        DelegationClient(settings).task("t")


def test_login_file_that_is_damaged_is_no_login(provider: Server) -> None:
    settings = person(provider)
    log_in(settings)
    file = LoginFile.of(api_url(settings), settings.login)
    for content in ("", "[]", json.dumps({"api": 1})):
        file.path.write_text(content)
        os.chmod(file.path, 0o600)
        assert file.read() is None
