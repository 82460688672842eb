"""A transport for `requests` sessions that makes a catalog's mutations safe to retry.

Each mutation carries an `Idempotency-Key`. The adapter makes one; a caller that may have to repeat
an operation in another process brings its own:

    with idempotency_key("orders-2026-11-18"):
        catalog.create_table("shop.orders", schema)
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests
import uuid6
from requests.adapters import HTTPAdapter
from requests.utils import rewind_body

from moraine.catalog.answers import keep_body, read_error, read_object, words_of
from moraine.client.errors import (
    CatalogError,
    IdempotencyKeyConflict,
    IdempotencyReplayFailed,
    IdempotencyWindowExpired,
    RequestStillInProgress,
)
from moraine.client.retries import (
    AGAIN,
    IN_PROGRESS,
    KEY_CONFLICT,
    ONCE,
    REPLAY_FAILED,
    HttpRetryPolicy,
    Judge,
    Judgement,
    Outcome,
    StopReason,
    is_loss,
    judge_mutation,
    judge_read,
    parse_retry_after,
)
from moraine.http.keys import HEADER, parse_key
from moraine.iceberg.config import ConfigCache, Place, ServerConfig, is_suspect
from moraine.iceberg.endpoints import Endpoint, find_mutation

# Not structlog: it prints until it is configured, and this runs in other programs.
log = logging.getLogger(__name__)

_MAX_BYTES = 256 << 20
_MAX_CONFIG_BYTES = 4 << 20
_BODY_HEADERS = ("Content-Length", "Content-Type", "Transfer-Encoding", HEADER)
_RAISED: dict[str, type[CatalogError]] = {
    IN_PROGRESS: RequestStillInProgress,
    REPLAY_FAILED: IdempotencyReplayFailed,
    KEY_CONFLICT: IdempotencyKeyConflict,
}

Options = Mapping[str, Any]


@dataclass(slots=True)
class _CallersKey:
    key: str
    used_for: tuple[Any, ...] | None = None

    def is_for(self, request: requests.PreparedRequest) -> bool:
        """A key is for one request and its repetitions, so the first one of the block takes it."""
        asked = (request.method, request.url, request.body)
        if self.used_for is None:
            self.used_for = asked
        return self.used_for == asked


_callers_key: ContextVar[_CallersKey | None] = ContextVar("callers_key", default=None)


@contextmanager
def idempotency_key(key: str) -> Iterator[None]:
    """Send the first mutation of the block with this key, and every exact repetition of it.

    Another mutation in the block gets a key of its own: PyIceberg sends one if it rebases a commit
    that lost a race. Raises InvalidKey for a malformed key, before anything is sent.
    """
    parse_key([key], "any")
    token = _callers_key.set(_CallersKey(key))
    try:
        yield
    finally:
        _callers_key.reset(token)


class IdempotentAdapter(HTTPAdapter):
    """Gives each mutation a key, and retries it with that key during the key's lifetime.

    Mount it on any session, at the catalog's address. `uri` is needed only if it has a `/v1/` in
    it, `warehouse` if the catalog's configuration depends on one. Thread-safe.
    """

    def __init__(
        self,
        *,
        uri: str = "",
        warehouse: str = "",
        policy: HttpRetryPolicy | None = None,
        timeout: float | tuple[float, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
        **options: Any,
    ) -> None:
        """`timeout` is for requests that come without one. PyIceberg never sets one."""
        super().__init__(**options)
        self._uri = uri.rstrip("/")
        self._warehouse = warehouse
        self._policy = policy or HttpRetryPolicy()
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self.configs = ConfigCache(clock)

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        options = {
            "stream": stream,
            "timeout": self._timeout if timeout is None else timeout,
            "verify": verify,
            "cert": cert,
            "proxies": proxies,
        }
        if request.method in ("GET", "HEAD"):
            return self._read(request, options)
        base = self._find_catalog(request)
        if base is None:
            return super().send(request, **options)
        return self._mutate(request, base, options)

    def _read(self, request: requests.PreparedRequest, options: Options) -> requests.Response:
        return self._retry(request, options, judge_read, self._policy)

    def _mutate(
        self, request: requests.PreparedRequest, base: str, options: Options
    ) -> requests.Response:
        callers = _callers_key.get()
        if callers is not None and callers.is_for(request):
            request.headers.setdefault(HEADER, callers.key)
        place = (base, self._warehouse)
        config = self.configs.get(place, lambda: self._fetch_config(place, request, options))
        lifetime = config.key_lifetime if config else None
        policy, window = ONCE, math.inf
        if lifetime is not None:
            request.headers.setdefault(HEADER, str(uuid6.uuid7()))
            if _can_be_resent(request):
                policy, window = self._policy, lifetime.total_seconds()
        response = self._retry(request, options, judge_mutation, policy, window)
        if is_suspect(response.status_code, str(read_error(response).get("type"))):
            self.configs.forget(place)
        return response

    def _retry(
        self,
        request: requests.PreparedRequest,
        options: Options,
        judge: Judge,
        policy: HttpRetryPolicy,
        window: float = math.inf,
    ) -> requests.Response:
        began = self._clock()
        doubtful: Outcome | None = None
        for attempts in itertools.count(1):
            outcome = self._attempt(request, options, judge)
            judgement = judge(outcome)
            if judgement is Judgement.RESULT:
                return _surface(request, outcome)
            if judgement is Judgement.UNKNOWN:
                doubtful = outcome
            decision: float | StopReason = StopReason.EXHAUSTED
            if judgement in AGAIN:
                decision = policy.decide(
                    attempts=attempts,
                    elapsed=self._clock() - began,
                    chance=self._chance(),
                    retry_after=_retry_after(outcome),
                    window=window,
                )
            if isinstance(decision, float):
                self._prepare_retry(request, outcome, attempts, decision)
                if self._clock() - began <= window:
                    continue
                decision = StopReason.EXPIRED
            if decision is StopReason.EXPIRED:
                raise _expired(request, outcome, attempts, window) from outcome.error
            # The refusal of the last attempt does not undo what an earlier one may have done.
            return _surface(request, doubtful or outcome)
        raise AssertionError("unreachable: itertools.count has no end")

    def _attempt(
        self, request: requests.PreparedRequest, options: Options, judge: Judge
    ) -> Outcome:
        try:
            response = super().send(request, **options)
            if judge is judge_read:
                return Outcome(response)
            keep_body(response, _MAX_BYTES)
        except requests.RequestException as error:
            if not is_loss(error):
                raise
            return Outcome(error=error)
        return Outcome(response, subtype=_subtype(response))

    def _prepare_retry(
        self, request: requests.PreparedRequest, outcome: Outcome, attempts: int, delay: float
    ) -> None:
        key = request.headers.get(HEADER)
        log.info("catalog.retry key=%s attempt=%d got=%s wait=%.2f", key, attempts, outcome, delay)
        if outcome.response is not None:
            outcome.response.close()
        self._sleep(delay)
        if _is_stream(request.body):
            rewind_body(request)

    def _find_catalog(self, request: requests.PreparedRequest) -> str | None:
        """The uri of the catalog that the request changes; None if it is no mutation."""
        url, method = str(request.url).partition("?")[0], str(request.method)
        if self._uri:
            start, below = url[: len(self._uri)], url[len(self._uri) :]
            ours = start.lower() == self._uri.lower()  # requests lower-cases the host
            return self._uri if ours and find_mutation(method, below) == "" else None
        parts = urlsplit(url)
        path = find_mutation(method, parts.path)
        return None if path is None else f"{parts.scheme}://{parts.netloc}{path}"

    def _fetch_config(
        self, place: Place, mutation: requests.PreparedRequest, options: Options
    ) -> ServerConfig | None:
        """Fetched with the credentials of the mutation; None if there is no usable answer."""
        base, warehouse = place
        request = mutation.copy()
        for name in _BODY_HEADERS:
            request.headers.pop(name, None)
        request.prepare_method("GET")
        request.prepare_url(
            f"{base}/{Endpoint.GET_CONFIG.path('', {})}",
            {"warehouse": warehouse} if warehouse else {},
        )
        request.body = None
        try:
            response = self._read(request, {**options, "stream": True})
            body = read_object(response, _MAX_CONFIG_BYTES)
        except requests.RequestException as error:
            log.info("catalog.config got=%s", type(error).__name__)
            return None
        return ServerConfig.from_json(body) if response.status_code == requests.codes.ok else None

    # A pickled session includes its adapters, each with the attributes in __attrs__.
    __attrs__ = [  # noqa: RUF012
        *HTTPAdapter.__attrs__,
        *("_uri", "_warehouse", "_policy", "_timeout", "_clock", "_sleep", "_chance"),
    ]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self.configs = ConfigCache(self._clock)


def _surface(request: requests.PreparedRequest, outcome: Outcome) -> requests.Response:
    """The answer. One that a client without keys would misread is raised as an error."""
    if outcome.response is None:
        assert outcome.error is not None
        raise outcome.error
    response = outcome.response
    if kind := _RAISED.get(outcome.subtype):
        words = words_of(response, read_error(response))
        raise kind(
            f"{kind.__doc__} ({words})",
            key=_key_of(request),
            request=request,
            response=response,
        )
    return response


def _expired(
    request: requests.PreparedRequest, outcome: Outcome, attempts: int, window: float
) -> IdempotencyWindowExpired:
    key = _key_of(request)
    return IdempotencyWindowExpired(
        f"After {attempts} attempts the outcome of the request with the key {key} is unknown, and "
        f"no further attempt fits into the key's lifetime of {window:g} seconds. The last attempt "
        f"got {outcome}. "
        "Check whether the request was carried out before you repeat it with a new key.",
        key=key,
        attempts=attempts,
        request=request,
        response=outcome.response,
        error=outcome.error,
    )


def _key_of(request: requests.PreparedRequest) -> str:
    return str(request.headers.get(HEADER) or "")


def _subtype(response: requests.Response) -> str:
    if response.status_code < 400:
        return ""
    error = read_error(response)
    # Older drafts of the specification put it where Iceberg has the type.
    names = (str(error.get(field)) for field in ("subtype", "type"))
    return next((name for name in names if name in _RAISED), "")


def _retry_after(outcome: Outcome) -> float:
    if outcome.response is None:
        return 0.0
    return parse_retry_after(outcome.response.headers.get("Retry-After"), time.time())


def _is_stream(body: Any) -> bool:
    return not isinstance(body, bytes | str | None)


def _can_be_resent(request: requests.PreparedRequest) -> bool:
    """A file can be rewound to where `requests` found it; a generator cannot."""
    start = getattr(request, "_body_position", None)
    return not _is_stream(request.body) or (
        isinstance(start, int) and hasattr(request.body, "seek")
    )
