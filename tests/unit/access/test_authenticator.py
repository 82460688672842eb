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

from moraine.access.airflow import AirflowTokens
from moraine.access.authenticator import Authenticator, claimed_principal
from moraine.access.model import Action, Caller, Certificate, Principal
from moraine.errors import Unauthorized
from moraine.settings import ApiSettings, IssuerSettings, Settings
from support.issuer import URL, Issuer

DAGS = dict.fromkeys(Action, "table_purge")
CERTIFICATE = Certificate(
    "CN=polaris", ("dns:polaris",), "p7JDyxvO0yTzZ8_Kn4ItGgS9tUbpDhm7sEBmlBqUHXw"
)


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def issued(issuer: Issuer, tmp_path: Path) -> IssuerSettings:
    return IssuerSettings(issuer=URL, jwks_file=issuer.write_key_set(tmp_path))


def identify(
    settings: ApiSettings, header: str | None, certificate: Certificate | None = None
) -> tuple[Principal, set[Action]]:
    """Who the caller is, and what its token allows."""

    async def ask() -> tuple[Principal, set[Action]]:
        tokens = AirflowTokens.of("demo", DAGS)
        authenticator = Authenticator(Settings(realm="demo", api=settings), tokens)
        identity = await authenticator.identify(Caller(header, certificate, "10.0.0.1"))
        allowed = {action for action in Action if await identity.lacks(action) is None}
        return identity.principal, allowed

    return asyncio.run(ask())


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Airflow's auth manager: it knows one token, and says what it was asked."""
    asked: dict[str, Any] = {"allowed": True}

    class Manager:
        async def get_user_from_token(self, token: str) -> Any:
            if token != "good":
                raise jwt.InvalidTokenError
            return types.SimpleNamespace(get_name=lambda: "alice")

        def is_authorized_dag(self, **question: Any) -> bool:
            asked.setdefault("questions", []).append(question)
            return bool(asked["allowed"])

    app = types.ModuleType("airflow.api_fastapi.app")
    app.create_auth_manager = Manager  # type: ignore[attr-defined]
    details = types.ModuleType("airflow.api_fastapi.auth.managers.models.resource_details")
    details.DagAccessEntity = types.SimpleNamespace(RUN="RUN", AUDIT_LOG="AUDIT_LOG")  # type: ignore[attr-defined]
    details.DagDetails = lambda id: id  # type: ignore[attr-defined]
    for module in (app, details):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return asked


def test_authenticator_airflow_users_have_the_rights_that_they_have_on_the_dag(
    airflow: dict[str, Any],
) -> None:
    principal, allowed = identify(ApiSettings(), "Bearer good")
    assert (principal.issuer, principal.subject) == ("airflow", "alice")
    assert principal.name == "airflow alice"
    assert allowed == set(Action)
    assert {question["details"] for question in airflow["questions"]} == {"table_purge"}
    asked = {
        action: (question["method"], question["access_entity"])
        for action, question in zip(Action, airflow["questions"], strict=True)
    }
    assert asked[Action.READ_TASKS] == ("GET", "RUN")
    assert asked[Action.EXECUTE_TASKS] == asked[Action.STEER_TASKS] == ("POST", "RUN")
    assert asked[Action.READ_AUDIT] == ("GET", "AUDIT_LOG")


def test_authenticator_airflow_users_without_rights_have_none(airflow: dict[str, Any]) -> None:
    airflow["allowed"] = False
    assert identify(ApiSettings(), "Bearer good")[1] == set()


def test_authenticator_token_that_airflow_does_not_know_is_refused(airflow: dict[str, Any]) -> None:
    with pytest.raises(Unauthorized):
        identify(ApiSettings(), "Bearer bad")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic good", "good"])
def test_authenticator_header_without_a_bearer_token_is_refused(header: str | None) -> None:
    with pytest.raises(Unauthorized):
        identify(ApiSettings(), header)


def test_authenticator_tokens_go_to_the_checker_of_their_issuer(
    issuer: Issuer, issued: IssuerSettings, airflow: dict[str, Any]
) -> None:
    both = ApiSettings(jwt=issued)
    principal, _ = identify(both, f"Bearer {issuer.token()}")
    assert principal.name == f"{URL} polaris"
    assert "questions" not in airflow, "the issuer's tokens are none of Airflow's business"
    assert identify(both, "Bearer good")[0].issuer == "airflow"
    with pytest.raises(Unauthorized):
        identify(both, f"Bearer {issuer.token(iss='https://elsewhere.example')}")


def test_authenticator_each_issuer_has_its_own_keys_and_names(
    issuer: Issuer, issued: IssuerSettings, tmp_path: Path
) -> None:
    other = Issuer("key-2")
    second = IssuerSettings(
        issuer="https://second.example",
        jwks_file=other.write_key_set(tmp_path),
        audience="",
        subject_claim="client_id",
    )
    both = ApiSettings(jwt=issued, issuers={"second": second}, accept_airflow_tokens=False)
    token = other.token(iss="https://second.example", aud=None, client_id="spark", sub=None)
    assert identify(both, f"Bearer {token}")[0].name == "https://second.example spark"
    forged = issuer.token(iss="https://second.example", client_id="spark")
    with pytest.raises(Unauthorized):
        identify(both, f"Bearer {forged}")


def test_authenticator_without_airflow_only_the_issuer_is_trusted(
    issuer: Issuer, issued: IssuerSettings
) -> None:
    only = ApiSettings(jwt=issued, accept_airflow_tokens=False)
    identify(only, f"Bearer {issuer.token()}")
    with pytest.raises(Unauthorized, match="issuer"):
        identify(only, "Bearer good")


def test_authenticator_clock_that_is_a_little_off_is_forgiven(
    issuer: Issuer, issued: IssuerSettings
) -> None:
    only = ApiSettings(jwt=issued, accept_airflow_tokens=False)
    identify(only, f"Bearer {issuer.token(exp=int(time.time()) - 5)}")
    with pytest.raises(Unauthorized):
        identify(only, f"Bearer {issuer.token(exp=int(time.time()) - 60)}")


TASKS = {Action.READ_TASKS, Action.EXECUTE_TASKS, Action.STEER_TASKS}


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        pytest.param("execute_tasks", TASKS, id="the specification's scope"),
        pytest.param("tasks:read", {Action.READ_TASKS}, id="one action"),
        pytest.param("otlp:write openid", {Action.WRITE_OTLP}, id="with others"),
        pytest.param(["audit:read"], {Action.READ_AUDIT}, id="a list"),
        pytest.param("write_rows", {Action.WRITE_INGEST}, id="a name of the operator's"),
        pytest.param("ingest:write", set(), id="a name that was replaced"),
        pytest.param("tasks:", set(), id="a prefix"),
        pytest.param("", set(), id="none"),
        pytest.param(7, set(), id="not a scope"),
        pytest.param({"tasks:read": True}, set(), id="an object"),
    ],
)
def test_authenticator_scopes_allow_actions(
    issuer: Issuer, issued: IssuerSettings, scope: Any, allowed: set[Action]
) -> None:
    named = issued.model_copy(update={"scopes": {Action.WRITE_INGEST: "write_rows"}})
    settings = ApiSettings(jwt=named, accept_airflow_tokens=False)
    assert identify(settings, f"Bearer {issuer.token(scope=scope)}")[1] == allowed


@pytest.mark.parametrize("subject", [None, "", "a\nb", "x" * 256, 7, ["polaris"]])
def test_authenticator_token_that_names_no_caller_is_refused(
    issuer: Issuer, issued: IssuerSettings, subject: Any
) -> None:
    with pytest.raises(Unauthorized):
        identify(ApiSettings(jwt=issued), f"Bearer {issuer.token(sub=subject)}")


def test_authenticator_roles_come_from_the_claim_of_the_settings(
    issuer: Issuer, issued: IssuerSettings
) -> None:
    nested = issued.model_copy(update={"roles_claim": "realm_access.roles"})
    token = issuer.token(realm_access={"roles": ["admin", 7, "reader"]})
    assert identify(ApiSettings(jwt=nested), f"Bearer {token}")[0].roles == ("admin", "reader")
    assert identify(ApiSettings(jwt=nested), f"Bearer {issuer.token()}")[0].roles == ()


def test_authenticator_bound_token_is_worth_nothing_without_its_certificate(
    issuer: Issuer, issued: IssuerSettings
) -> None:
    settings = ApiSettings(jwt=issued)
    bound = f"Bearer {issuer.token(cnf={'x5t#S256': CERTIFICATE.thumbprint})}"
    assert identify(settings, bound, CERTIFICATE)[0].certificate == CERTIFICATE
    for presented in (None, Certificate("CN=polaris", (), "another"), Certificate("CN=polaris")):
        with pytest.raises(Unauthorized):
            identify(settings, bound, presented)


@pytest.mark.parametrize("cnf", [None, {}, {"jkt": "x"}, {"x5t#S256": ""}, {"x5t#S256": 7}, "x"])
def test_authenticator_unbound_tokens_can_be_refused(
    issuer: Issuer, issued: IssuerSettings, cnf: Any
) -> None:
    strict = issued.model_copy(update={"require_bound_tokens": True})
    with pytest.raises(Unauthorized):
        identify(ApiSettings(jwt=strict), f"Bearer {issuer.token(cnf=cnf)}", CERTIFICATE)


def test_authenticator_caller_whom_a_catalog_knows_is_named_by_its_token(issuer: Issuer) -> None:
    def name(header: str | None) -> str:
        return claimed_principal("demo", "catalog:prod", Caller(header)).name

    assert name(f"Bearer {issuer.token(sub='spark')}") == "catalog:prod spark"
    for blanks in ("Bearer  {}", "Bearer\t{}", " Bearer {} ", "bearer \t {}"):
        header = blanks.format(issuer.token(sub="spark"))
        assert name(header) == "catalog:prod spark", "a catalog may be as lenient"
    assert name("") == name("Bearer") == name("Bearer ") == "catalog:prod anonymous"
    assert name(None) == "catalog:prod anonymous"
    assert name("Bearer opaque-token") == "catalog:prod opaque"
    assert name(f"Bearer {issuer.token(sub=7)}") == "catalog:prod opaque"
