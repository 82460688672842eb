"""Authentication: who a caller is, by a token of a trusted issuer or of Airflow."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jwt
from fastapi.security.utils import get_authorization_scheme_param

from moraine.access.key_sets import key_set_of
from moraine.access.model import Action, Caller, Principal
from moraine.errors import Unauthorized
from moraine.log import get_logger
from moraine.settings import IssuerSettings, Settings

log = get_logger(__name__)

_LEEWAY_SECONDS = 30
_MAX_NAME = 255
_SEED_ACTIONS = frozenset({Action.READ_TASKS, Action.EXECUTE_TASKS, Action.STEER_TASKS})
"""What the one scope of the Delegation Service's specification allows."""


class Identity(Protocol):
    """A verified caller with the rights that its token gives."""

    @property
    def principal(self) -> Principal: ...

    async def lacks(self, action: Action) -> str | None:
        """None if the token allows the action; what is missing if it does not."""
        ...


class TokenChecker(Protocol):
    async def identify(self, token: str, caller: Caller) -> Identity:
        """Who sent this token. Raises Unauthorized if it is not valid."""
        ...


class Authenticator:
    """Gives each token to the checker of the issuer that it names."""

    def __init__(self, settings: Settings, airflow: TokenChecker | None) -> None:
        """`airflow` checks tokens without a known issuer; None refuses them."""
        self._airflow = airflow if settings.api.accept_airflow_tokens else None
        self._issuers: dict[str, TokenChecker] = {
            issuer.issuer: IssuedTokens(issuer, settings.realm)
            for issuer in (settings.api.jwt, *settings.api.issuers.values())
            if issuer.enabled
        }

    async def identify(self, caller: Caller) -> Identity:
        scheme, token = get_authorization_scheme_param(caller.authorization)
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized()
        checker = self._issuers.get(_claimed_issuer(token), self._airflow)
        if checker is None:
            raise Unauthorized("The token's issuer is not one this service trusts.")
        return await checker.identify(token, caller)


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """An identity whose token says what it allows."""

    principal: Principal
    actions: frozenset[Action]
    scopes: Mapping[Action, str]
    """The scope that allows each action, for the error."""

    async def lacks(self, action: Action) -> str | None:
        return (
            None if action in self.actions else f"The token lacks the scope {self.scopes[action]}."
        )


class IssuedTokens:
    """JWTs of one issuer."""

    def __init__(self, settings: IssuerSettings, realm: str) -> None:
        self._settings = settings
        self._realm = realm
        self._keys = key_set_of(settings)
        self._scopes = {action: settings.scopes.get(action, action.value) for action in Action}

    async def identify(self, token: str, caller: Caller) -> Identity:
        try:
            claims = await self._claims(token)
            self._check_binding(claims, caller)
            subject = _text(claims, self._settings.subject_claim)
        except (jwt.PyJWTError, RecursionError, ValueError) as error:
            log.info("auth.refused", issuer=self._settings.issuer, reason=type(error).__name__)
            raise Unauthorized(f"The token is not valid ({type(error).__name__}).") from None
        principal = Principal(
            realm=self._realm,
            issuer=self._settings.issuer,
            subject=subject,
            roles=_roles(claims, self._settings.roles_claim),
            certificate=caller.certificate,
            address=caller.address,
        )
        return TokenIdentity(principal, self._actions(claims), self._scopes)

    async def _claims(self, token: str) -> dict[str, Any]:
        key_id = jwt.get_unverified_header(token).get("kid")
        audience = self._settings.audience
        required = ["exp", "iss", "aud"] if audience else ["exp", "iss"]
        return jwt.decode(
            token,
            await self._keys.find(key_id),
            algorithms=self._settings.algorithms,
            audience=audience or None,
            issuer=self._settings.issuer,
            leeway=_LEEWAY_SECONDS,
            options={"require": required, "verify_aud": bool(audience)},
        )

    def _check_binding(self, claims: Mapping[str, Any], caller: Caller) -> None:
        """RFC 8705: a token that names a certificate is worth nothing without it."""
        confirmation = claims.get("cnf")
        if confirmation is None and not self._settings.require_bound_tokens:
            return
        wanted = confirmation.get("x5t#S256") if isinstance(confirmation, dict) else None
        presented = caller.certificate.thumbprint if caller.certificate else ""
        if (
            not isinstance(wanted, str)
            or not presented
            or not hmac.compare_digest(wanted.encode(), presented.encode())
        ):
            raise NotItsCertificate("the token is bound to another certificate, or to none")

    def _actions(self, claims: Mapping[str, Any]) -> frozenset[Action]:
        given = claims.get("scope", claims.get("scp", ""))
        granted = given.split() if isinstance(given, str) else given
        if not isinstance(granted, list):
            return frozenset()
        whole = _SEED_ACTIONS if self._settings.scope in granted else frozenset()
        return whole | {action for action, scope in self._scopes.items() if scope in granted}


class NotItsCertificate(jwt.InvalidTokenError):
    """The token is bound to a certificate that the caller did not present."""


def _text(claims: Mapping[str, Any], name: str) -> str:
    found = claims.get(name)
    if not isinstance(found, str) or not 0 < len(found) <= _MAX_NAME or not found.isprintable():
        raise jwt.InvalidTokenError(f"{name} names no caller")
    return found


def _roles(claims: Mapping[str, Any], path: str) -> tuple[str, ...]:
    found: Any = claims
    for name in path.split(".") if path else ():
        found = found.get(name) if isinstance(found, dict) else None
    return (
        tuple(filter(lambda role: isinstance(role, str), found)) if isinstance(found, list) else ()
    )


def claimed_principal(realm: str, issuer: str, caller: Caller) -> Principal:
    """A caller whose token the catalog verifies. Two opaque tokens may be of one caller."""
    # A catalog may accept other blanks than one space, and then it knows the caller.
    _, _, token = " ".join((caller.authorization or "").split()).partition(" ")
    try:
        subject = _text(_unverified(token), "sub") if token else "anonymous"
    except jwt.InvalidTokenError:
        subject = "opaque"
    return Principal(realm, issuer, subject, certificate=caller.certificate, address=caller.address)


def _claimed_issuer(token: str) -> str:
    issuer = _unverified(token).get("iss")
    return issuer if isinstance(issuer, str) else ""


def _unverified(token: str) -> dict[str, Any]:
    try:
        claims: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, RecursionError):
        return {}
    return claims
