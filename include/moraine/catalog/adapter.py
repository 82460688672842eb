"""A transport for `requests` sessions that makes a catalog's mutations safe to repeat."""

from __future__ import annotations

import itertools
import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
import uuid6
from requests.adapters import HTTPAdapter
from requests.utils import rewind_body

from moraine.catalog.answers import keep_body, read_error, read_object, words_of
from moraine.catalog.config import ConfigCache, Place, ServerConfig, is_suspect
from moraine.catalog.endpoints import Endpoint, find_mutation
from moraine.catalog.errors import (
    CatalogError,
    IdempotencyKeyConflict,
    IdempotencyWindowExpired,
    ReplayFailed,
    RequestInProgress,
)
from moraine.catalog.retries import (
    AGAIN,
    IN_PROGRESS,
    ONCE,
    REPLAY_FAILED,
    Judge,
    Outcome,
    RetryPolicy,
    Stop,
    Verdict,
    is_loss,
    judge_mutation,
    judge_read,
    parse_retry_after,
)
from moraine.idempotency.key import HEADER

# Not structlog: until it is configured it prints, and this runs in other people's programs.
log = logging.getLogger(__name__)

_MOST_BYTES = 256 << 20
_MOST_CONFIG_BYTES = 4 << 20
_OF_A_BODY = ("Content-Length", "Content-Type", "Transfer-Encoding", HEADER)
_RAISED: dict[str, type[CatalogError]] = {
    IN_PROGRESS: RequestInProgress,
    REPLAY_FAILED: ReplayFailed,
    "idempotency_key_conflict": IdempotencyKeyConflict,
}

Options = Mapping[str, Any]


class IdempotentAdapter(HTTPAdapter):
    """Gives each mutation a key, and repeats it under that key while the server remembers it.

    Mount it on any session, at the catalog's address. `uri` is needed only if it has a `/v1/` in
    it, `warehouse` if the catalog's configuration depends on one. Threads may share it.
    """

    def __init__(
        self,
        *,
        uri: str = "",
        warehouse: str = "",
        policy: RetryPolicy | None = None,
        timeout: float | tuple[float, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
        **options: Any,
    ) -> None:
        """`timeout` is for mutations that have a key and come without one; pyiceberg sets none."""
        super().__init__(**options)
        self._uri = uri.rstrip("/")
        self._warehouse = warehouse
        self._policy = policy or RetryPolicy()
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
            "timeout": timeout,
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
        return self._repeat(request, options, judge_read, self._policy)

    def _mutate(
        self, request: requests.PreparedRequest, base: str, options: Options
    ) -> requests.Response:
        place = (base, self._warehouse)
        config = self.configs.get(place, lambda: self._fetch_config(place, request, options))
        lifetime = config.key_lifetime if config else None
        policy, window = ONCE, math.inf
        if lifetime is not None:
            request.headers.setdefault(HEADER, str(uuid6.uuid7()))
            if options["timeout"] is None:
                options = {**options, "timeout": self._timeout}
            if _can_be_sent_again(request):
                policy, window = self._policy, lifetime.total_seconds()
        response = self._repeat(request, options, judge_mutation, policy, window)
        if is_suspect(response.status_code, str(read_error(response).get("type"))):
            self.configs.forget(place)
        return response

    def _repeat(
        self,
        request: requests.PreparedRequest,
        options: Options,
        judge: Judge,
        policy: RetryPolicy,
        window: float = math.inf,
    ) -> requests.Response:
        began = self._clock()
        doubtful: Outcome | None = None
        for attempts in itertools.count(1):
            outcome = self._attempt(request, options, judge)
            verdict = judge(outcome)
            if verdict is Verdict.RESULT:
                return _surface(request, outcome)
            if verdict is Verdict.UNKNOWN:
                doubtful = outcome
            decision: float | Stop = Stop.ENOUGH
            if verdict in AGAIN:
                decision = policy.decide(
                    attempts=attempts,
                    elapsed=self._clock() - began,
                    chance=self._chance(),
                    retry_after=_retry_after(outcome),
                    window=window,
                )
            if isinstance(decision, float):
                self._prepare_again(request, outcome, attempts, decision)
                if self._clock() - began <= window:
                    continue
                decision = Stop.EXPIRED
            if decision is Stop.EXPIRED:
                raise _expired(request, outcome, attempts, window) from outcome.error
            # That the last attempt was turned away does not undo what one before it may have done.
            return _surface(request, doubtful or outcome)
        raise AssertionError("it counts for ever")

    def _attempt(
        self, request: requests.PreparedRequest, options: Options, judge: Judge
    ) -> Outcome:
        try:
            response = super().send(request, **options)
            if judge is judge_read:
                return Outcome(response)
            keep_body(response, _MOST_BYTES)
        except requests.RequestException as error:
            if not is_loss(error):
                raise
            return Outcome(error=error)
        return Outcome(response, subtype=_subtype(response))

    def _prepare_again(
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
        """The uri of the catalog that the request would change; None if it changes none."""
        url, method = str(request.url).partition("?")[0], str(request.method)
        if self._uri:
            start, below = url[: len(self._uri)], url[len(self._uri) :]
            ours = start.lower() == self._uri.lower()  # requests writes hosts in lower case
            return self._uri if ours and find_mutation(method, below) == "" else None
        parts = urlsplit(url)
        path = find_mutation(method, parts.path)
        return None if path is None else f"{parts.scheme}://{parts.netloc}{path}"

    def _fetch_config(
        self, place: Place, mutation: requests.PreparedRequest, options: Options
    ) -> ServerConfig | None:
        """Asked for as whoever sends the mutation. None if there is no answer to go by."""
        base, warehouse = place
        request = mutation.copy()
        for name in _OF_A_BODY:
            request.headers.pop(name, None)
        request.prepare_method("GET")
        request.prepare_url(
            f"{base}/{Endpoint.GET_CONFIG.path('', {})}",
            {"warehouse": warehouse} if warehouse else {},
        )
        request.body = None
        try:
            response = self._read(request, {**options, "stream": True})
            body = read_object(response, _MOST_CONFIG_BYTES)
        except requests.RequestException as error:
            log.info("catalog.config got=%s", type(error).__name__)
            return None
        return ServerConfig.from_json(body) if response.status_code == requests.codes.ok else None

    # Sessions are pickled with their adapters, and those with what __attrs__ names.
    __attrs__ = [  # noqa: RUF012
        *HTTPAdapter.__attrs__,
        *("_uri", "_warehouse", "_policy", "_timeout", "_clock", "_sleep", "_chance"),
    ]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        self.configs = ConfigCache(self._clock)


def _surface(request: requests.PreparedRequest, outcome: Outcome) -> requests.Response:
    """The answer, unless it is one that a client which knows no keys would misread."""
    if outcome.response is None:
        assert outcome.error is not None
        raise outcome.error
    response = outcome.response
    if kind := _RAISED.get(outcome.subtype):
        key = request.headers.get(HEADER)
        words = words_of(response, read_error(response))
        error = kind(f"{kind.__doc__} ({words})", status=response.status_code, key=key)
        error.request, error.response = request, response  # type: ignore[attr-defined]
        raise error
    return response


def _expired(
    request: requests.PreparedRequest, outcome: Outcome, attempts: int, window: float
) -> IdempotencyWindowExpired:
    key = str(request.headers.get(HEADER))
    return IdempotencyWindowExpired(
        f"After {attempts} attempts the catalog has not said what came of the request with the key "
        f"{key}, which it remembers for {window:g} seconds; the last attempt got {outcome}. "
        "Look whether it was carried out before you repeat it, with a new key.",
        key=key,
        attempts=attempts,
        response=outcome.response,
        error=outcome.error,
    )


def _subtype(response: requests.Response) -> str:
    if response.status_code < 400:
        return ""
    error = read_error(response)
    # Older drafts of the specification have it where Iceberg has the type.
    named = (str(error.get(place)) for place in ("subtype", "type"))
    return next((name for name in named if name in _RAISED), "")


def _retry_after(outcome: Outcome) -> float:
    if outcome.response is None:
        return 0.0
    return parse_retry_after(outcome.response.headers.get("Retry-After"), time.time())


def _is_stream(body: Any) -> bool:
    return not isinstance(body, bytes | str | None)


def _can_be_sent_again(request: requests.PreparedRequest) -> bool:
    """A file can be rewound to where requests found it, a generator cannot."""
    found_at = getattr(request, "_body_position", None)
    return not _is_stream(request.body) or (
        isinstance(found_at, int) and hasattr(request.body, "seek")
    )
