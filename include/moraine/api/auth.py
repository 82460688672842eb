"""Who calls, and what they may do: Airflow's tokens, or JWTs of a configured issuer."""

from __future__ import annotations

import functools
import json
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import anyio.to_thread
import jwt
from fastapi import Request
from fastapi.security.utils import get_authorization_scheme_param

from moraine.errors import Forbidden, MoraineError, Unauthorized
from moraine.log import get_logger
from moraine.settings import ApiSettings, IssuerSettings

log = get_logger(__name__)

_LEEWAY_SECONDS = 30
_KEY_SET_TIMEOUT_SECONDS = 5
# What fetching and reading a key set raises, and a token cannot cause.
_NO_KEYS = (jwt.PyJWKClientConnectionError, jwt.PyJWKSetError, json.JSONDecodeError, OSError)


class KeySetUnavailable(MoraineError):
    """The issuer's keys cannot be had, so nobody's token can be judged; try again later."""

    code = "KEY_SET_UNAVAILABLE"
    http_status = 503


class Access(StrEnum):
    READ = "GET"
    EXECUTE = "POST"


class TokenChecker(Protocol):
    async def check(self, token: str, access: Access, dag_id: str) -> None:
        """Return if the token is good for that access; raise Unauthorized or Forbidden if not."""


class Authenticator:
    """Sends each token to whoever can judge it, by the issuer it names."""

    def __init__(self, settings: ApiSettings, dag_id: str) -> None:
        self._dag_id = dag_id
        self._issuer = settings.jwt.issuer
        self._issued: TokenChecker | None = (
            IssuedTokens(settings.jwt) if settings.jwt.enabled else None
        )
        self._airflow: TokenChecker | None = (
            AirflowTokens() if settings.accept_airflow_tokens else None
        )

    async def check(self, request: Request, access: Access, dag_id: str = "") -> None:
        """`dag_id`: whose runs the caller must have a right to, if not the purge's."""
        await self.check_header(request.headers.get("Authorization"), access, dag_id)

    async def check_header(self, header: str | None, access: Access, dag_id: str = "") -> None:
        scheme, token = get_authorization_scheme_param(header)
        if scheme.lower() != "bearer" or not token:
            raise Unauthorized()
        foreign = self._issued is not None and _claimed_issuer(token) == self._issuer
        checker = self._issued if foreign else self._airflow
        if checker is None:
            raise Unauthorized("The token's issuer is not one this service trusts.")
        await checker.check(token, access, dag_id or self._dag_id)


class AirflowTokens:
    """Airflow users, with the rights they have on the operation's Dag."""

    async def check(self, token: str, access: Access, dag_id: str) -> None:
        from airflow.api_fastapi.app import create_auth_manager
        from airflow.api_fastapi.auth.managers.models.resource_details import (
            DagAccessEntity,
            DagDetails,
        )

        manager: Any = create_auth_manager()
        try:
            user = await manager.get_user_from_token(token)
        except jwt.InvalidTokenError:
            raise Unauthorized("The token is not valid or has expired; get a new one.") from None
        allowed = manager.is_authorized_dag(
            method=access.value,
            access_entity=DagAccessEntity.RUN,
            details=DagDetails(id=dag_id),
            user=user,
        )
        if not allowed:
            raise Forbidden(f"This Airflow user may not {access.name.lower()} runs of {dag_id}.")


class IssuedTokens:
    """JWTs of one issuer, with a scope that lets them execute tasks."""

    def __init__(self, settings: IssuerSettings) -> None:
        self._settings = settings
        if not settings.jwks_url and settings.jwks_file is None:
            raise ValueError("api.jwt.issuer is set: set api.jwt.jwks-url or api.jwt.jwks-file too")
        self._remote = (
            jwt.PyJWKClient(settings.jwks_url, timeout=_KEY_SET_TIMEOUT_SECONDS)
            if settings.jwks_url
            else None
        )

    async def check(self, token: str, access: Access, dag_id: str) -> None:
        del access, dag_id  # one scope covers all that callers of this kind do
        claims = await anyio.to_thread.run_sync(self._claims, token)
        scopes = claims.get("scope", claims.get("scp", ""))
        granted = scopes.split() if isinstance(scopes, str) else scopes
        if not isinstance(granted, list) or self._settings.scope not in granted:
            raise Forbidden(f"The token lacks the scope {self._settings.scope}.")

    def _claims(self, token: str) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                self._key(token),
                algorithms=self._settings.algorithms,
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except _NO_KEYS as error:
            log.error("auth.keys.unavailable", reason=type(error).__name__)
            raise KeySetUnavailable() from None
        except (jwt.PyJWTError, RecursionError) as error:
            log.info("auth.refused", reason=type(error).__name__)
            raise Unauthorized(f"The token is not valid ({type(error).__name__}).") from None

    def _key(self, token: str) -> jwt.PyJWK:
        if self._remote is not None:
            return self._remote.get_signing_key_from_jwt(token)
        assert self._settings.jwks_file is not None
        file = self._settings.jwks_file
        wanted = jwt.get_unverified_header(token).get("kid")
        for key in _keys_in(file, file.stat().st_mtime_ns):
            if wanted is None or key.key_id == wanted:
                return key
        raise jwt.InvalidKeyError("no key of the set has the token's kid")


@functools.lru_cache(maxsize=4)
def _keys_in(file: Path, _changed_at: int) -> list[jwt.PyJWK]:
    """Parsed once for each version of the file, so keys can be rotated without a restart."""
    try:
        return jwt.PyJWKSet.from_json(file.read_text()).keys
    except ValueError as error:
        raise jwt.PyJWKSetError(f"{file} is not JSON") from error


def _claimed_issuer(token: str) -> str | None:
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, RecursionError):
        return None
    issuer = claims.get("iss")
    return issuer if isinstance(issuer, str) else None
