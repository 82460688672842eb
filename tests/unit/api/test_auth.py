"""Which tokens are judged by whom, without a server or a network."""

from __future__ import annotations

import asyncio
import sys
import time
import types
from pathlib import Path
from typing import Any

import jwt
import pytest
from fastapi import Request

from moraine.api.auth import Access, Authenticator, IssuedTokens
from moraine.errors import Forbidden, Unauthorized
from moraine.settings import ApiSettings, IssuerSettings
from support.issuer import URL, Issuer


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def issued(issuer: Issuer, tmp_path: Path) -> IssuerSettings:
    return IssuerSettings(issuer=URL, jwks_file=issuer.write_key_set(tmp_path))


def check(settings: ApiSettings, authorization: str | None, access: Access = Access.READ) -> None:
    headers = [] if authorization is None else [(b"authorization", authorization.encode())]
    request = Request({"type": "http", "headers": headers})
    asyncio.run(Authenticator(settings, "table_purge").check(request, access))


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Airflow's auth manager: it knows one token, and says what it was asked."""
    asked: dict[str, Any] = {"allowed": True}

    class Manager:
        async def get_user_from_token(self, token: str) -> str:
            if token != "good":
                raise jwt.InvalidTokenError
            return "somebody"

        def is_authorized_dag(self, **question: Any) -> bool:
            asked.update(question)
            return bool(asked["allowed"])

    app = types.ModuleType("airflow.api_fastapi.app")
    app.create_auth_manager = Manager  # type: ignore[attr-defined]
    details = types.ModuleType("airflow.api_fastapi.auth.managers.models.resource_details")
    details.DagAccessEntity = types.SimpleNamespace(RUN="RUN")  # type: ignore[attr-defined]
    details.DagDetails = lambda id: id  # type: ignore[attr-defined]
    for module in (app, details):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


def test_an_airflow_user_is_asked_for_the_right_on_the_operations_dag(
    airflow: dict[str, Any],
) -> None:
    check(ApiSettings(), "Bearer good", Access.EXECUTE)
    assert (airflow["method"], airflow["access_entity"]) == ("POST", "RUN")
    assert (airflow["details"], airflow["user"]) == ("table_purge", "somebody")
    check(ApiSettings(), "Bearer good", Access.READ)
    assert airflow["method"] == "GET"


def test_an_airflow_user_without_the_right_is_forbidden(airflow: dict[str, Any]) -> None:
    airflow["allowed"] = False
    with pytest.raises(Forbidden):
        check(ApiSettings(), "Bearer good")


def test_a_token_that_airflow_does_not_know(airflow: dict[str, Any]) -> None:
    with pytest.raises(Unauthorized):
        check(ApiSettings(), "Bearer bad")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic good", "good"])
def test_no_bearer_token(header: str | None) -> None:
    with pytest.raises(Unauthorized):
        check(ApiSettings(), header)


def test_tokens_go_to_whoever_they_name(
    issuer: Issuer, issued: IssuerSettings, airflow: dict[str, Any]
) -> None:
    both = ApiSettings(jwt=issued)
    check(both, f"Bearer {issuer.token()}")
    assert "method" not in airflow, "the issuer's tokens are none of Airflow's business"
    check(both, "Bearer good")
    assert airflow["method"] == "GET"
    with pytest.raises(Unauthorized):
        check(both, f"Bearer {issuer.token(iss='https://elsewhere.example')}")


def test_without_airflow_only_the_issuer_is_trusted(issuer: Issuer, issued: IssuerSettings) -> None:
    only = ApiSettings(jwt=issued, accept_airflow_tokens=False)
    check(only, f"Bearer {issuer.token()}")
    with pytest.raises(Unauthorized, match="issuer"):
        check(only, "Bearer good")


def test_a_clock_that_is_a_little_off_is_forgiven(issuer: Issuer, issued: IssuerSettings) -> None:
    only = ApiSettings(jwt=issued, accept_airflow_tokens=False)
    check(only, f"Bearer {issuer.token(exp=int(time.time()) - 5)}")
    with pytest.raises(Unauthorized):
        check(only, f"Bearer {issuer.token(exp=int(time.time()) - 60)}")


def test_an_issuer_without_keys_is_an_error_at_start() -> None:
    with pytest.raises(ValueError, match="jwks"):
        IssuedTokens(IssuerSettings(issuer=URL))
