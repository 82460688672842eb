"""Reserve, execute, finalize: a request with a key is executed once.

                 ┌──────────── new key ───────────► reserve ─► execute ─► finalize ─► answer
request + key ───┤ finalized ─────────────────────► replay                       (5xx: abandon)
                 │ in progress, alive ────────────► wait, then "in progress"
                 │ in progress, abandoned ────────► check: applied ─► finalize ─► answer  (R1)
                 │                                         not applied ─► execute …       (R2)
                 │                                         incompatible ─► 422
                 └ other payload ─────────────────► 422
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from typing import Any

from moraine.errors import LedgerUnavailable, MoraineError
from moraine.failpoints import async_failpoint
from moraine.idempotency.model import (
    REPLAYED,
    KeyClaim,
    Record,
    Response,
    Scope,
    is_final,
    is_refusal,
)
from moraine.idempotency.store import RecordStore
from moraine.log import get_logger

log = get_logger(__name__)

_FIRST_LOOK, _LONGEST_PAUSE = 0.02, 0.25
_LATER = 429  # no client takes it for an outcome


class KeyConflict(MoraineError, code="IDEMPOTENCY_KEY_CONFLICT", http_status=422):
    """This Idempotency-Key was used for another request; use a new key."""

    subtype = "idempotency_key_conflict"


class RequestInProgress(MoraineError, code="REQUEST_IN_PROGRESS", http_status=409, retry_after=1):
    """A request with this Idempotency-Key is being executed; retry with the same key."""

    subtype = "request_in_progress"


class RepetitionRefused(MoraineError, code="REPETITION_REFUSED", http_status=503, retry_after=1):
    """A retry was refused; the first request with its key may have been executed."""

    def __init__(self, status: int) -> None:
        super().__init__(
            f"This retry was refused with {status}. The first request with this Idempotency-Key "
            "may have been executed all the same: fix the cause and retry with the same key."
        )


class ReplayFailed(MoraineError, code="IDEMPOTENCY_REPLAY_FAILED", http_status=500):
    """The request was executed, but its result cannot be replayed; it was not repeated."""

    subtype = "idempotency_replay_failed"


class _Overtaken(Exception):
    """Another process has taken the key over, because this one seemed dead, and was faster. So this
    request was refused; its outcome is in the record."""


@dataclass(frozen=True, slots=True)
class Applied:
    """R1: the change took effect, and this is the response to it."""

    response: Response


@dataclass(frozen=True, slots=True)
class NotApplied:
    """R2: the change did not take effect, and may be made."""


@dataclass(frozen=True, slots=True)
class Incompatible:
    """Another change has taken its place."""

    reason: str


Finding = Applied | NotApplied | Incompatible


class Mutation(ABC):
    """A request that changes something, as one API understands it."""

    scope: Scope
    payload_hash: str
    looks_first: bool = False
    """Whether its intent is read from what it is going to change. Then `intent` is called only when
    the key is new."""

    @abstractmethod
    async def intent(self) -> dict[str, Any]:
        """What the request is meant to change. It is stored, so it must hold no secret."""

    @abstractmethod
    async def execute(self, intent: dict[str, Any]) -> Response:
        """Execute the request. After any exception the outcome is unknown."""

    @abstractmethod
    async def reconcile(self, intent: dict[str, Any]) -> Finding:
        """Find out whether the request took effect."""

    @abstractmethod
    async def replay(self, record: Record) -> Response:
        """The stored response for this caller. Raises ReplayFailed if there is none."""

    async def check_caller(self, record: Record) -> None:
        """Raise for a caller who may know nothing of the first request. Callers of Moraine's own
        API are identified before it looks at their keys."""
        del record

    def without_secrets(self, response: Response) -> Response:
        """The part of a response that may be stored."""
        return response


@dataclass(slots=True, repr=False)
class Layer:
    """`wait` is how long a duplicate waits for the first request's result. It is longer than a
    lease, so that a duplicate outlasts an owner that died."""

    store: RecordStore
    _: KW_ONLY
    heartbeat: timedelta
    wait: timedelta
    checks_payload: bool = True
    _executing: dict[KeyClaim, asyncio.Event] = field(default_factory=dict, init=False)

    async def handle(self, mutation: Mutation) -> Response:
        scope = mutation.scope
        give_up_at = asyncio.get_running_loop().time() + self.wait.total_seconds()
        pause = _FIRST_LOOK
        record = await self.store.find(scope) if mutation.looks_first else None
        while True:
            if record is None:
                intent = await mutation.intent()
                found = await self.store.reserve(scope, mutation.payload_hash, intent)
                if isinstance(found, KeyClaim):
                    with contextlib.suppress(_Overtaken):
                        return await self._execute(found, mutation, intent)
                    found = await self.store.find(scope)
                record = found
                continue
            if self.checks_payload and record.payload_hash != mutation.payload_hash:
                await mutation.check_caller(record)
                raise KeyConflict()
            if record.response is not None:
                log.info("idempotency.replayed", path=scope.resource_path)
                return _marked(await mutation.replay(record))
            if record.abandoned:
                claim = await self.store.take_over(scope, record.attempts)
                if claim:
                    with contextlib.suppress(_Overtaken):
                        return await self._reconcile(claim, mutation, record.intent)
            else:
                left = give_up_at - asyncio.get_running_loop().time()
                if left <= 0:
                    raise RequestInProgress()
                await self._wait_for(scope, left, pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            record = await self.store.find(scope)

    async def beat(self) -> None:
        """Extend the leases of what this process executes, until cancelled. No error ends it: a
        request without heartbeats would be taken over while it is still executed."""
        while True:
            await asyncio.sleep(self.heartbeat.total_seconds())
            if not self._executing:
                continue
            try:
                await self.store.heartbeat(self._executing)
            except Exception as error:
                log.warning("idempotency.heartbeat_failed", error=type(error).__name__)

    async def _execute(
        self, claim: KeyClaim, mutation: Mutation, intent: dict[str, Any]
    ) -> Response:
        async with self._holding(claim):
            await async_failpoint("idempotency.reserved")
            response = await mutation.execute(intent)
            await async_failpoint("idempotency.executed")
            if not claim.first and response.status >= 400 and is_final(response.status):
                # It may be refused because an earlier try took effect after all.
                finding = await mutation.reconcile(intent)
                if isinstance(finding, Applied):
                    response = _marked(finding.response)
            return await self._settle(claim, mutation, response)

    async def _reconcile(
        self, claim: KeyClaim, mutation: Mutation, intent: dict[str, Any]
    ) -> Response:
        async with self._holding(claim):
            await async_failpoint("idempotency.taken_over")
            finding = await mutation.reconcile(intent)
            log.info(
                "idempotency.reconciled",
                path=claim.scope.resource_path,
                attempt=claim.attempts,
                finding=type(finding).__name__,
            )
            if isinstance(finding, Applied):
                return await self._settle(claim, mutation, _marked(finding.response))
            if isinstance(finding, Incompatible):
                raise KeyConflict(finding.reason)
        return await self._execute(claim, mutation, intent)

    async def _settle(self, claim: KeyClaim, mutation: Mutation, response: Response) -> Response:
        """Write a final outcome; otherwise leave the key to the next request."""
        if is_final(response.status):
            kept = mutation.without_secrets(response)
            written = await self._written(self.store.finalize(claim, kept))
            if not written:
                log.warning("idempotency.not_finalized", path=claim.scope.resource_path)
            if written is False and response.status >= 400:
                raise _Overtaken()
            await async_failpoint("idempotency.finalized")
        elif is_refusal(response.status) and claim.first:
            await self._written(self.store.release(claim))
        else:
            await self._written(self.store.abandon(claim))
            if is_refusal(response.status) and response.status != _LATER:
                raise RepetitionRefused(response.status)
        return response

    async def _written(self, change: Awaitable[bool]) -> bool | None:
        """The response is known and is sent even if it cannot be written (None): a key that stays
        open is reconciled."""
        try:
            return await change
        except LedgerUnavailable:
            return None

    @contextlib.asynccontextmanager
    async def _holding(self, claim: KeyClaim) -> AsyncIterator[None]:
        """Heartbeats while the block runs. If the block raises, the outcome is unknown."""
        ended = self._executing[claim] = asyncio.Event()
        try:
            yield
        except BaseException:
            await asyncio.shield(self._written(self.store.abandon(claim)))
            raise
        finally:
            del self._executing[claim]
            ended.set()

    async def _wait_for(self, scope: Scope, left: float, pause: float) -> None:
        """Wait until the request ends, if this process executes it; otherwise for `pause`."""
        ending = next((e for claim, e in self._executing.items() if claim.scope == scope), None)
        if ending is None:
            await asyncio.sleep(min(left, pause))
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), left)


def _marked(response: Response) -> Response:
    return response.with_header(REPLAYED, "true")
