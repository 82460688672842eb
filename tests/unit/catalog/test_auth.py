"""Tokens: asked for in time, by one at a time, and never shown. The clock is the test's."""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest

from moraine.catalog import oauth
from moraine.catalog.auth import auth_for
from moraine.catalog.client import RestCatalog
from moraine.catalog.oauth import ClientSecret, OAuthClient, TokenSource, shared_tokens
from moraine.errors import CatalogRefused, CatalogUnavailable
from moraine.settings import CatalogAuthSettings, CatalogSettings

if TYPE_CHECKING:
    from support.told_server import Server

TABLE = {"metadata-location": "m.json", "metadata": {"table-uuid": "u", "location": "file:/t"}}
PATH = "/v1/namespaces/n/tables/t"
OWN_ENDPOINT = "/v1/oauth/tokens"
SECRET = "hunter2&=+ /ü"


@pytest.fixture(autouse=True)
def _no_tokens_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "_sources", {})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def client(
    server: Server, secret: str = SECRET, *, basic: bool = False, scope: str = "catalog"
) -> OAuthClient:
    return OAuthClient(f"{server.url}/tokens", "me", ClientSecret(secret, basic), scope)


def token(value: str = "one", **changes: Any) -> tuple[int, dict[str, Any]]:
    return 200, {"access_token": value, "token_type": "Bearer", "expires_in": 3600, **changes}


def oauth2(server: Server, **changes: Any) -> CatalogSettings:
    given = CatalogAuthSettings(kind="oauth2", client_id="me", client_secret=SECRET, **changes)
    return CatalogSettings(uri=server.url, auth=given)


def test_catalog_auth_sends_client_and_scope_in_the_form(server: Server) -> None:
    server.answers["/tokens"] = token()
    assert TokenSource(client(server)).get() == "one"
    [asked] = server.asked
    assert (asked.method, asked.headers["Content-Type"]) == (
        "POST",
        "application/x-www-form-urlencoded",
    )
    assert parse_qs(asked.body) == {
        "grant_type": ["client_credentials"],
        "client_id": ["me"],
        "client_secret": [SECRET],
        "scope": ["catalog"],
    }
    assert "Authorization" not in asked.headers


def test_catalog_auth_can_name_the_client_in_a_header_and_leave_out_the_scope(
    server: Server,
) -> None:
    server.answers["/tokens"] = token()
    TokenSource(client(server, basic=True, scope="")).get()
    [asked] = server.asked
    assert parse_qs(asked.body) == {"grant_type": ["client_credentials"]}
    encoded = asked.headers["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(encoded) == b"me:hunter2%26%3D%2B+%2F%C3%BC"


@pytest.mark.parametrize(
    ("expires_in", "still_good", "renewed"),
    [
        (3600, 3539, 3541),
        ("3600", 3539, 3541),
        (10, 7.9, 8.1),
        (0.5, 0.39, 0.41),
        (None, 3539, 3541),
    ],
)
def test_catalog_auth_renews_a_token_before_it_expires(
    server: Server, expires_in: Any, still_good: float, renewed: float
) -> None:
    server.answers["/tokens"] = [token("one", expires_in=expires_in), token("two")]
    clock = Clock()
    tokens = TokenSource(client(server), clock)
    assert tokens.get() == "one"
    clock.now = still_good
    assert tokens.get() == "one"
    clock.now = renewed
    assert tokens.get() == "two"
    assert len(server.asked) == 2


def test_catalog_auth_needs_no_endpoint_while_the_token_is_valid(server: Server) -> None:
    server.answers["/tokens"] = [token(expires_in=100), (503, {})]
    clock = Clock()
    tokens = TokenSource(client(server), clock)
    tokens.get()
    clock.now = 95
    assert tokens.get() == "one"
    clock.now = 101
    with pytest.raises(CatalogUnavailable):
        tokens.get()


def test_catalog_auth_makes_one_token_request_for_many_threads(server: Server) -> None:
    server.answers["/tokens"] = token()
    tokens = TokenSource(client(server))
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(tokens.get())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["one"] * 16
    assert len(server.asked) == 1


def test_catalog_auth_drops_only_the_token_that_was_refused(server: Server) -> None:
    server.answers["/tokens"] = [token("one"), token("two"), token("three")]
    tokens = TokenSource(client(server))
    tokens.drop(tokens.get())
    assert tokens.get() == "two"
    tokens.drop("one")
    assert tokens.get() == "two"


def test_catalog_auth_shares_tokens_between_catalogs_of_one_client_only(server: Server) -> None:
    assert shared_tokens(client(server)) is shared_tokens(client(server))
    others = [client(server, scope="other"), client(server, basic=True)]
    others.append(client(server, "guessed"))
    for other in others:
        assert shared_tokens(other) is not shared_tokens(client(server))


def test_catalog_auth_uses_the_catalogs_own_endpoint_by_default(server: Server) -> None:
    server.answers |= {OWN_ENDPOINT: token(), PATH: (200, TABLE)}
    for _ in range(3):
        RestCatalog(oauth2(server)).load_table(["n"], "t")
    assert len(server.asked_for(OWN_ENDPOINT)) == 1
    sent = {asked.headers["Authorization"] for asked in server.asked_for(PATH)}
    assert sent == {"Bearer one"}


def test_catalog_auth_uses_another_endpoint_if_the_settings_name_one(server: Server) -> None:
    server.answers |= {"/realm/token": token(), PATH: (200, TABLE)}
    RestCatalog(oauth2(server, token_uri=f"{server.url}/realm/token")).load_table(["n"], "t")
    assert len(server.asked_for("/realm/token")) == 1


@pytest.mark.parametrize("status", [401, 419])
def test_catalog_auth_replaces_a_refused_token_once(server: Server, status: int) -> None:
    server.answers |= {
        OWN_ENDPOINT: [token("one"), token("two"), token("three")],
        PATH: [(status, {"error": {"message": "expired"}}), (200, TABLE)],
    }
    catalog = RestCatalog(oauth2(server))
    assert catalog.load_table(["n"], "t").uuid == "u"
    sent = [asked.headers["Authorization"] for asked in server.asked_for(PATH)]
    assert sent == ["Bearer one", "Bearer two"]

    server.answers[PATH] = (status, {"error": {"message": "not with three either"}})
    with pytest.raises(CatalogRefused, match=r"not with \*\*\* either"):
        catalog.load_table(["n"], "t")
    assert len(server.asked_for(PATH)) == 4


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        ((400, {"error": "invalid_scope"}), CatalogRefused, r"invalid_scope.*'me'.*Check"),
        ((401, {"error": "invalid_client"}), CatalogRefused, "invalid_client"),
        ((404, b"<html>"), CatalogRefused, "404"),
        ((302, b""), CatalogRefused, "302"),
        ((429, {}), CatalogUnavailable, "429"),
        ((500, {}), CatalogUnavailable, "500"),
        ((503, b"<html>"), CatalogUnavailable, "503"),
        ((200, b"<html>"), CatalogUnavailable, "without a usable token"),
        ((200, {"access_token": ""}), CatalogUnavailable, "without a usable token"),
        ((200, {"access_token": 5}), CatalogUnavailable, "without a usable token"),
        (token("hunter2\r\nX: y"), CatalogUnavailable, "without a usable token"),
        (token(token_type="mac"), CatalogRefused, "bearer"),
        ((401, {"error_description": f"not {SECRET}"}), CatalogRefused, r"not \*\*\*"),
    ],
)
def test_catalog_auth_reports_what_the_endpoint_answers_instead_of_a_token(
    server: Server, answer: Any, error: type[Exception], says: str
) -> None:
    server.answers[OWN_ENDPOINT] = answer
    with pytest.raises(error, match=says) as caught:
        RestCatalog(oauth2(server)).load_table(["n"], "t")
    assert getattr(caught.value, "code", "") == "CREDENTIAL_VENDING_FAILED"
    assert "hunter2" not in str(caught.value)
    assert server.asked_for(PATH) == []


def test_catalog_auth_reports_an_unreachable_endpoint_as_an_outage(server: Server) -> None:
    settings = oauth2(server, token_uri="http://127.0.0.1:1/token")
    with pytest.raises(CatalogUnavailable, match=r"127\.0\.0\.1:1/token did not answer"):
        RestCatalog(settings).load_table(["n"], "t")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kind": "bearer"}, "a bearer token.*AUTH__TOKEN"),
        ({"kind": "bearer", "token": "hunter2\nX: y"}, "a bearer token"),
        ({"kind": "oauth2", "client_id": "me"}, "client secret.*moraine_catalog_NAME"),
        ({"kind": "oauth2", "client_secret": "hunter2"}, "a client id"),
    ],
)
def test_catalog_auth_refuses_half_a_principal(given: dict[str, str], says: str) -> None:
    settings = CatalogSettings(uri="http://catalog", auth=CatalogAuthSettings(**given))
    with pytest.raises(CatalogRefused, match=says) as caught:
        auth_for(settings)
    assert "hunter2" not in str(caught.value)


def test_catalog_auth_without_a_principal_sends_nothing_not_even_from_netrc(
    server: Server, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    server.answers |= {PATH: (200, TABLE), OWN_ENDPOINT: token()}
    RestCatalog(CatalogSettings(uri=server.url)).load_table(["n"], "t")
    RestCatalog(oauth2(server)).load_table(["n"], "t")
    sent = [asked.headers.get("Authorization") for asked in server.asked]
    assert sent == [None, None, None, "Bearer one", "Bearer one"]


def test_catalog_auth_shows_no_secret_in_its_repr(server: Server) -> None:
    server.answers["/tokens"] = token("hunter3")
    tokens = TokenSource(client(server))
    tokens.get()
    shown = [repr(one) for one in (client(server), tokens, vars(tokens), auth_for(oauth2(server)))]
    assert "hunter" not in " ".join(shown)


def test_catalog_auth_does_not_delay_valid_tokens_during_a_slow_renewal(server: Server) -> None:
    server.answers["/tokens"] = token()
    tokens = TokenSource(client(server))
    tokens.get()
    with tokens._lock:
        assert tokens.get() == "one"
