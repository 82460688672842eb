"""Who may call, and what everybody else is told."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import ec

from support.airflow_server import AirflowServer
from support.api_server import SYNC, Api, purge
from support.issuer import Issuer, forged

StartApi = Callable[..., Api]
SOME_ID = "0199c2f2-7d3c-7a5e-8a57-1f0b6d2c9e11"
CLOSED = [
    ("POST", SYNC),
    ("POST", "/v1/tasks"),
    ("GET", "/v1/tasks"),
    ("GET", f"/v1/tasks/{SOME_ID}"),
    ("POST", f"/v1/tasks/{SOME_ID}/cancel"),
    ("POST", f"/v1/tasks/{SOME_ID}/retry"),
    ("GET", f"/v1/tasks/{SOME_ID}/events"),
    ("GET", "/metrics"),
    ("GET", "/openapi.json"),
]


def refused(response: requests.Response) -> None:
    assert response.status_code == 401, response.text
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error_code"] == "UNAUTHORIZED"


def test_api_routes_but_health_need_a_caller(api: Api) -> None:
    for method, path in CLOSED:
        refused(api.request(method, path, headers={"Authorization": None}))
        refused(api.request(method, path, headers={"Authorization": "Bearer nonsense"}))
    for path in ("/docs", "/redoc"):
        assert api.get(path, headers={"Authorization": None}).status_code == 404
    for path in ("/health/live", "/health/ready"):
        assert api.get(path, headers={"Authorization": None}).status_code == 200


def test_api_document_is_open_to_callers(api: Api) -> None:
    response = api.get("/openapi.json")
    assert response.status_code == 200
    assert response.json()["openapi"].startswith("3.1")


def nested(issuer: Issuer, where: str) -> str:
    """A token whose JSON nests deeper than Python's parser goes."""
    bomb = b'{"iss": ' + b"[" * 12_000
    part = base64.urlsafe_b64encode(bomb).rstrip(b"=").decode()
    good = issuer.token().split(".")
    good[0 if where == "header" else 1] = part
    return ".".join(good)


BAD_TOKENS: dict[str, Callable[[Issuer], str]] = {
    "expired": lambda issuer: issuer.token(exp=int(time.time()) - 3600),
    "never expires": lambda issuer: issuer.token(exp=None),
    "not yet": lambda issuer: issuer.token(nbf=int(time.time()) + 3600),
    "another issuer": lambda issuer: issuer.token(iss="https://elsewhere.example"),
    "no issuer": lambda issuer: issuer.token(iss=None),
    "an issuer that is no text": lambda issuer: forged({"iss": ["x"]}, {"alg": "RS256"}),
    "another audience": lambda issuer: issuer.token(aud="somebody-else"),
    "no audience": lambda issuer: issuer.token(aud=None),
    "unsigned": lambda issuer: issuer.unsigned(),
    "unsigned with a kid": lambda issuer: issuer.unsigned(kid=issuer.kid),
    "signature cut off": lambda issuer: issuer.token().rpartition(".")[0] + ".",
    "the public key as secret": Issuer.signed_with_public_key,
    "another key of the same kid": lambda issuer: Issuer().token(),
    "an unknown kid": lambda issuer: Issuer("key-2").token(),
    "another kind of key": lambda issuer: jwt.encode(
        issuer.claims(), ec.generate_private_key(ec.SECP256R1()), "ES256"
    ),
    "a kid that is no text": lambda issuer: issuer.unsigned(alg="RS256", kid=7),
    "three dots": lambda issuer: "...",
    "not ASCII": lambda issuer: "\xe9.\xb2.\xff",
    "claims that are no object": lambda issuer: ".".join(
        [issuer.token().split(".")[0], base64.urlsafe_b64encode(b"[1]").decode(), "AAAA"]
    ),
    "a nested header": lambda issuer: nested(issuer, "header"),
    "nested claims": lambda issuer: nested(issuer, "claims"),
}


@pytest.mark.parametrize("kind", ["file", "url"])
def test_api_refuses_bad_tokens(
    start_api: StartApi, issuer: Issuer, airflow: AirflowServer, kind: str
) -> None:
    airflow.key_set = issuer.key_set
    api = start_api(jwt={"jwks_url": f"{airflow.url}/keys"} if kind == "url" else None)
    assert api.get("/v1/tasks").status_code == 200
    for name, make in BAD_TOKENS.items():
        token = make(issuer).encode("latin-1")
        response = api.get("/v1/tasks", headers={"Authorization": b"Bearer " + token})
        assert response.status_code == 401, (name, response.text)
        refused(response)
    for header in ("Basic YTpi", "Bearer", "Bearer ", issuer.token(), "bearer"):
        refused(api.get("/v1/tasks", headers={"Authorization": header}))
    lower_case = {"Authorization": f"bearer {issuer.token()}"}
    assert api.get("/v1/tasks", headers=lower_case).status_code == 200


@pytest.mark.parametrize(
    "scope", [None, "", "read", "execute_tasks_not", 5, {"execute_tasks": 1}, ["read"]]
)
def test_api_forbids_a_token_without_the_scope(api: Api, issuer: Issuer, scope: Any) -> None:
    headers = {"Authorization": f"Bearer {issuer.token(scope=scope)}"}
    for method, path in CLOSED:
        response = api.request(method, path, headers=headers)
        assert response.status_code == 403, (path, response.text)
        assert response.json()["error_code"] == "FORBIDDEN"


@pytest.mark.parametrize(
    "claims",
    [
        {"scope": "read execute_tasks"},
        {"scope": ["execute_tasks"]},
        {"scope": None, "scp": ["execute_tasks"]},
        {"aud": ["other", "moraine"]},
    ],
)
def test_api_accepts_every_form_of_scope_and_audience(
    api: Api, issuer: Issuer, claims: dict[str, Any]
) -> None:
    headers = {"Authorization": f"Bearer {issuer.token(**claims)}"}
    assert api.get("/v1/tasks", headers=headers).status_code == 200


def test_api_signing_keys_can_be_rotated_without_a_restart(
    start_api: StartApi, tmp_path: Path
) -> None:
    old, new = Issuer("old"), Issuer("new")
    file = old.write_key_set(tmp_path)
    api = start_api(jwt={"jwks_file": file})

    def status(issuer: Issuer) -> int:
        headers = {"Authorization": f"Bearer {issuer.token()}"}
        return api.get("/v1/tasks", headers=headers).status_code

    assert (status(old), status(new)) == (200, 401)
    file.write_text(json.dumps({"keys": old.key_set["keys"] + new.key_set["keys"]}))
    assert (status(old), status(new)) == (200, 200)
    file.write_text(json.dumps(new.key_set))
    assert (status(old), status(new)) == (401, 200)


@pytest.mark.parametrize("trouble", ["gone", "no JSON", "no keys"])
def test_api_signing_keys_that_cannot_be_fetched_are_not_the_callers_fault(
    start_api: StartApi, issuer: Issuer, tmp_path: Path, trouble: str
) -> None:
    file = issuer.write_key_set(tmp_path)
    if trouble == "gone":
        file.unlink()
    else:
        file.write_text("<html>" if trouble == "no JSON" else '{"keys": []}')
    response = start_api(jwt={"jwks_file": file}).get("/v1/tasks")
    assert response.status_code == 503, response.text
    assert response.json()["error_code"] == "KEY_SET_UNAVAILABLE"


@pytest.mark.parametrize("trouble", ["gone", "html", "no keys"])
def test_api_with_a_key_set_url_that_does_not_answer(
    start_api: StartApi, airflow: AirflowServer, trouble: str
) -> None:
    api = start_api(jwt={"jwks_url": f"{airflow.url}/keys"})
    if trouble == "gone":
        airflow.stop()
    airflow.html = trouble == "html"
    response = api.get("/v1/tasks")
    assert response.status_code == 503, response.text
    assert response.json()["error_code"] == "KEY_SET_UNAVAILABLE"


def test_api_forbids_another_realm(api: Api) -> None:
    payload = purge("orders")
    payload["common_payload"]["realm_identifier"] = "prod"
    for path in ("/v1/tasks", SYNC):
        response = api.post(path, json=payload)
        assert response.status_code == 403
        assert response.json()["error_code"] == "REALM_MISMATCH"
        assert "'demo'" in response.json()["message"]
    assert api.get("/v1/tasks").json()["tasks"] == []


def test_api_checks_the_caller_before_it_reads_the_body(api: Api) -> None:
    endless = (b"x" * 65536 for _ in range(10_000))
    try:
        response = api.post("/v1/tasks", data=endless, headers={"Authorization": None})
    except requests.ConnectionError:
        return  # the server hung up on it
    refused(response)
