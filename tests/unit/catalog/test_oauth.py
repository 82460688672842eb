"""How a client without a secret proves who it is: with a key that it keeps, or a certificate."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from moraine.catalog import oauth
from moraine.catalog.access import spark_options
from moraine.catalog.auth import tokens_for
from moraine.catalog.oauth import OAuthClient, PrivateKey, TokenSource
from moraine.errors import CatalogRefused
from moraine.settings import CatalogAuthSettings, CatalogSettings
from moraine.settings.tls import ClientTlsSettings

if TYPE_CHECKING:
    from support.told_server import Server

KEYS: dict[str, Any] = {
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
WEAK = {
    "short": rsa.generate_private_key(65537, 1024),
    "curve": ec.generate_private_key(ec.SECP256K1()),
}
TOKEN = (200, {"access_token": "one", "token_type": "Bearer", "expires_in": 100})


@pytest.fixture(autouse=True)
def _no_tokens_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "_sources", {})


def write(folder: Path, key: Any, password: bytes = b"") -> Path:
    file = folder / "client.key"
    hidden = BestAvailableEncryption(password) if password else NoEncryption()
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
    return file


def keyed(server: Server, key: Path, **changes: Any) -> CatalogSettings:
    auth = CatalogAuthSettings(
        kind="oauth2",
        client_id="me",
        client_auth="private_key_jwt",
        token_uri=f"{server.url}/tokens",
        private_key=key,
        **changes,
    )
    return CatalogSettings(uri=server.url, auth=auth)


@pytest.mark.parametrize("algorithm", KEYS)
def test_oauth_client_signs_an_assertion_for_one_endpoint(
    server: Server, tmp_path: Path, algorithm: str
) -> None:
    server.answers["/tokens"] = TOKEN
    settings = keyed(server, write(tmp_path, KEYS[algorithm]), key_id="key-7", scope="all")
    assert tokens_for(settings).get() == "one"
    [asked] = server.asked
    form = {name: value for name, [value] in parse_qs(asked.body).items()}
    assertion = form.pop("client_assertion")
    assert form == {
        "grant_type": "client_credentials",
        "client_id": "me",
        "scope": "all",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
    }
    assert "Authorization" not in asked.headers
    claims = jwt.decode(
        assertion,
        KEYS[algorithm].public_key(),
        [algorithm],
        audience=f"{server.url}/tokens",
        options={"require": ["iss", "sub", "aud", "exp", "iat", "jti"]},
    )
    assert (claims["iss"], claims["sub"]) == ("me", "me")
    assert claims["exp"] <= time.time() + 60
    assert jwt.get_unverified_header(assertion)["kid"] == "key-7"


def test_oauth_client_uses_an_assertion_once(server: Server, tmp_path: Path) -> None:
    server.answers["/tokens"] = TOKEN
    key = PrivateKey(write(tmp_path, KEYS["ES256"]), audience="https://issuer.example")
    tokens = TokenSource(OAuthClient(f"{server.url}/tokens", "me", key))
    tokens.drop(tokens.get())
    tokens.get()
    sent = [parse_qs(asked.body)["client_assertion"][0] for asked in server.asked]
    read = [jwt.decode(one, options={"verify_signature": False}) for one in sent]
    assert {one["aud"] for one in read} == {"https://issuer.example"}
    assert len({one["jti"] for one in read}) == 2


def test_oauth_client_reads_a_replaced_key(server: Server, tmp_path: Path) -> None:
    server.answers["/tokens"] = TOKEN
    tokens = tokens_for(keyed(server, write(tmp_path, KEYS["RS256"])))
    tokens.drop(tokens.get())
    write(tmp_path, KEYS["ES256"])
    tokens.get()
    sent = [parse_qs(asked.body)["client_assertion"][0] for asked in server.asked]
    assert [jwt.get_unverified_header(one)["alg"] for one in sent] == ["RS256", "ES256"]


@pytest.mark.parametrize("name", WEAK)
def test_oauth_client_signs_nothing_with_a_weak_key(
    server: Server, tmp_path: Path, name: str
) -> None:
    with pytest.raises(CatalogRefused, match="cannot sign assertions"):
        tokens_for(keyed(server, write(tmp_path, WEAK[name]))).get()
    assert server.asked == []


def test_oauth_client_names_an_unusable_key_and_does_not_show_it(
    server: Server, tmp_path: Path
) -> None:
    missing = tmp_path / "missing.key"
    with pytest.raises(CatalogRefused, match=r"missing\.key cannot be read here"):
        tokens_for(keyed(server, missing)).get()
    locked = write(tmp_path, KEYS["ES256"], b"hunter2")
    with pytest.raises(CatalogRefused, match="without a password"):
        tokens_for(keyed(server, locked)).get()
    locked.write_text("hunter2")
    with pytest.raises(CatalogRefused) as caught:
        tokens_for(keyed(server, locked)).get()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client_auth": "private_key_jwt"}, "a client-id and a private-key"),
        ({"client_auth": "tls_client_auth"}, r"a client-id and tls\.cert"),
        ({"client_auth": "basic"}, "a client id and a client secret"),
    ],
)
def test_oauth_client_says_what_is_missing(changes: dict[str, Any], words: str) -> None:
    auth = CatalogAuthSettings(kind="oauth2", client_id="me", **changes)
    with pytest.raises(CatalogRefused, match=words):
        tokens_for(CatalogSettings(uri="https://c", auth=auth))


def test_oauth_client_with_a_certificate_needs_tls(tmp_path: Path) -> None:
    auth = CatalogAuthSettings(
        kind="oauth2", client_id="me", client_auth="tls_client_auth", token_uri="http://t"
    )
    tls = ClientTlsSettings(cert=tmp_path / "a.pem", key=tmp_path / "a.key")
    with pytest.raises(CatalogRefused, match="a token-uri with https"):
        tokens_for(CatalogSettings(uri="https://c", auth=auth, tls=tls))


def test_oauth_client_names_missing_files_of_tls(tmp_path: Path) -> None:
    auth = CatalogAuthSettings(kind="oauth2", client_id="me", client_auth="tls_client_auth")
    tls = ClientTlsSettings(cert=tmp_path / "a.pem", key=tmp_path / "a.key")
    with pytest.raises(CatalogRefused, match="a file of the tls section cannot be read"):
        tokens_for(CatalogSettings(uri="https://127.0.0.1:1", auth=auth, tls=tls)).get()


def test_spark_options_have_a_token_instead_of_a_key(server: Server, tmp_path: Path) -> None:
    server.answers["/tokens"] = TOKEN
    options = spark_options(keyed(server, write(tmp_path, KEYS["ES256"])))
    assert (options["rest.auth.type"], options["token"]) == ("oauth2", "one")
    assert options["token-refresh-enabled"] == "false"
    assert "credential" not in options


def test_token_source_hands_over_tokens_with_half_of_their_lifetime_left(
    server: Server, tmp_path: Path
) -> None:
    answers = [(200, {**TOKEN[1], "access_token": value}) for value in ("one", "two")]
    server.answers["/tokens"] = [*answers, (503, {})]
    now = 0.0
    client = OAuthClient(f"{server.url}/tokens", "me", PrivateKey(write(tmp_path, KEYS["ES256"])))
    tokens = TokenSource(client, lambda: now)
    assert tokens.get(fresh=True) == "one"
    now = 49.0
    assert tokens.get(fresh=True) == "one"
    now = 51.0
    assert (tokens.get(), tokens.get(fresh=True)) == ("one", "two")
    now = 110.0  # the endpoint is away: an older token is better than none
    assert tokens.get(fresh=True) == "two"


def test_catalog_settings_for_another_process_name_the_files(tmp_path: Path) -> None:
    settings = CatalogSettings(
        uri="https://c",
        auth=CatalogAuthSettings(
            kind="oauth2",
            client_id="me",
            client_secret="hunter2",
            private_key=tmp_path / "a.key",
        ),
        tls=ClientTlsSettings(ca=tmp_path / "ca.pem"),
        storage={"s3.secret-access-key": "hunter3"},
    )
    assert CatalogSettings.model_validate(json.loads(json.dumps(settings.revealed()))) == settings
