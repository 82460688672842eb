"""The public keys of token issuers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import jwt

from moraine.access.answers import read_answer
from moraine.errors import MoraineError
from moraine.log import get_logger
from moraine.settings import IssuerSettings
from moraine.tls.contexts import client_context

log = get_logger(__name__)

_FRESH_SECONDS = 300.0
# Tokens choose their key id, so an unknown one must not cause a request each time.
_PAUSE_AFTER_SUCCESS = 10.0
_PAUSE_AFTER_FAILURE = 5.0
_TIMEOUT = aiohttp.ClientTimeout(total=5)
_MAX_BYTES = 1 << 20
_DISCOVERY = "/.well-known/openid-configuration"
# What fetching and reading keys raises. A token cannot cause these errors.
_FAILURES = (
    aiohttp.ClientError,
    TimeoutError,
    OSError,
    ValueError,
    RecursionError,
    jwt.PyJWKSetError,
)

Clock = Callable[[], float]


class KeySetUnavailable(
    MoraineError, code="KEY_SET_UNAVAILABLE", http_status=503, retry_after=_PAUSE_AFTER_FAILURE
):
    """The issuer's keys cannot be fetched, so no token can be checked; try again later."""


class KeySet(Protocol):
    async def find(self, key_id: str | None) -> jwt.PyJWK:
        """The key of that id. Raises InvalidKeyError if the issuer has none."""
        ...


class FileKeys:
    """Keys in a file. It is read again when it changes, so keys can be rotated."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._changed_at = 0
        self._keys: list[jwt.PyJWK] = []

    async def find(self, key_id: str | None) -> jwt.PyJWK:
        try:
            changed_at = self._file.stat().st_mtime_ns
            if changed_at != self._changed_at:
                self._keys = _parse(self._file.read_bytes())
                self._changed_at = changed_at
        except _FAILURES as error:
            log.error("auth.keys.unavailable", file=str(self._file), error=type(error).__name__)
            raise KeySetUnavailable() from None
        return _choose(self._keys, key_id)


class RemoteKeys:
    """Keys that the issuer publishes, fetched by one task at a time.

    Old keys are used while new ones are fetched, and while the issuer is away."""

    def __init__(self, settings: IssuerSettings, clock: Clock = time.monotonic) -> None:
        self._settings = settings
        self._url = settings.jwks_url
        self._clock = clock
        self._keys: list[jwt.PyJWK] = []
        self._fetched_at = self._next_fetch = float("-inf")
        self._failed = False
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None) -> jwt.PyJWK:
        age = self._clock() - self._fetched_at
        usable = age < _FRESH_SECONDS + self._settings.stale_keys.total_seconds()
        if usable:
            try:
                found = _choose(self._keys, key_id)
            except jwt.InvalidKeyError:
                pass  # the issuer may have a new key
            else:
                if age >= _FRESH_SECONDS:
                    self._fetch_soon()
                return found
        if fetching := self._fetch_soon():
            await asyncio.shield(fetching)
        if self._failed:
            raise KeySetUnavailable()
        return _choose(self._keys, key_id)

    def _fetch_soon(self) -> asyncio.Task[None] | None:
        """The fetch under way; None if the last one was a moment ago."""
        if self._fetching is None or self._fetching.done():
            if self._clock() < self._next_fetch:
                return None
            self._fetching = asyncio.create_task(self._fetch())
        return self._fetching

    async def _fetch(self) -> None:
        try:
            async with aiohttp.ClientSession(
                timeout=_TIMEOUT,
                connector=aiohttp.TCPConnector(ssl=client_context(self._settings.tls)),
            ) as session:
                self._url = self._url or await self._discover(session)
                self._keys = _parse(await _get(session, self._url))
        except _FAILURES as error:
            log.error(
                "auth.keys.unavailable",
                issuer=self._settings.issuer,
                error=type(error).__name__,
                stale=bool(self._keys),
            )
            self._failed = True
            self._url = self._settings.jwks_url  # the issuer may have moved its keys
            self._next_fetch = self._clock() + _PAUSE_AFTER_FAILURE
        else:
            self._failed = False
            self._fetched_at = self._clock()
            self._next_fetch = self._fetched_at + _PAUSE_AFTER_SUCCESS

    async def _discover(self, session: aiohttp.ClientSession) -> str:
        """OpenID Connect Discovery: the document must name the issuer that it was asked for."""
        issuer = self._settings.issuer
        document = json.loads(await _get(session, issuer.rstrip("/") + _DISCOVERY))
        url = document.get("jwks_uri") if isinstance(document, dict) else None
        if not isinstance(url, str) or document.get("issuer") != issuer:
            raise ValueError("not the discovery document of this issuer")
        return url


def key_set_of(settings: IssuerSettings) -> KeySet:
    return FileKeys(settings.jwks_file) if settings.jwks_file else RemoteKeys(settings)


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url, allow_redirects=False) as response:
        return await read_answer(response, _MAX_BYTES)


def _parse(document: bytes) -> list[jwt.PyJWK]:
    try:
        found: Any = json.loads(document)
        if not isinstance(found, dict):
            raise jwt.PyJWKSetError("not an object")
        # Keys to encrypt with are not keys to sign with.
        signing = [key for key in found.get("keys", ()) if key.get("use", "sig") == "sig"]
        return jwt.PyJWKSet.from_dict({"keys": signing}).keys
    except (AttributeError, TypeError, RecursionError, jwt.PyJWTError) as error:
        raise ValueError("not a key set") from error


def _choose(keys: list[jwt.PyJWK], key_id: str | None) -> jwt.PyJWK:
    for key in keys:
        if key.key_id == key_id or (key_id is None and len(keys) == 1):
            return key
    raise jwt.InvalidKeyError("no key of the issuer has the token's kid")
