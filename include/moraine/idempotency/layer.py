"""Reserve, execute, finalize: what makes a request with a key happen once.

                 ┌──────────── new key ───────────► reserve ─► execute ─► finalize ─► answer
request + key ───┤ finalized ─────────────────────► replay                       (5xx: abandon)
                 │ in progress, alive ────────────► wait, then 409
                 │ in progress, abandoned ────────► look: applied ─► finalize ─► answer   (R1)
                 │                                        not applied ─► execute …        (R2)
                 │                                        incompatible ─► 422
                 └ other payload ─────────────────► 422
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from moraine.errors import LedgerUnavailable, MoraineError
from moraine.failpoints import async_failpoint
from moraine.idempotency.model import (
    REPLAYED,
    Claim,
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


class KeyConflict(MoraineError):
    """This Idempotency-Key was used for another request; use a new key."""

    code = "IDEMPOTENCY_KEY_CONFLICT"
    http_status = 422
    subtype = "idempotency_key_conflict"


class RequestInProgress(MoraineError):
    """A request with this Idempotency-Key is being executed; ask again with the same key."""

    code = "REQUEST_IN_PROGRESS"
    http_status = 409
    subtype = "request_in_progress"
    retry_after = 1


class ReplayFailed(MoraineError):
    """The request was carried out, but its result cannot be given again; it was not repeated."""

    code = "IDEMPOTENCY_REPLAY_FAILED"
    http_status = 500
    subtype = "idempotency_replay_failed"


class _Overtaken(Exception):
    """Somebody else has taken the key over, thinking this process dead. It was refused what the
    other has done; what became of the request is in the record."""


@dataclass(frozen=True, slots=True)
class Applied:
    """R1: the change is there, and this is the answer to it."""

    response: Response


@dataclass(frozen=True, slots=True)
class NotApplied:
    """R2: it is not, and may be made."""


@dataclass(frozen=True, slots=True)
class Incompatible:
    """Something else is in its place."""

    reason: str


Finding = Applied | NotApplied | Incompatible


class Mutation(ABC):
    """A request that changes something, as one API understands it."""

    scope: Scope
    payload_hash: str
    looks_first: bool = False
    """Whether its intent needs a look at what it is going to change. Then it is only asked for
    when the key turns out to be new."""

    @abstractmethod
    async def intent(self) -> dict[str, Any]:
        """What it is meant to bring about, without a secret: it is kept."""

    @abstractmethod
    async def execute(self, intent: dict[str, Any]) -> Response:
        """Do it. If it raises anything, nobody knows whether it was done."""

    @abstractmethod
    async def reconcile(self, intent: dict[str, Any]) -> Finding:
        """Look whether it was done."""

    @abstractmethod
    async def replay(self, record: Record) -> Response:
        """Give the kept answer again, to this caller; ReplayFailed if that cannot be done."""

    def without_secrets(self, response: Response) -> Response:
        """The part of an answer that may be kept."""
        return response

    def subtype_of(self, _response: Response) -> str | None:
        """What tells a conflict that will pass from one that will not."""
        return None


class Layer:
    """`wait` is how long a duplicate waits for the first one's result."""

    def __init__(
        self,
        store: RecordStore,
        *,
        lease: timedelta,
        wait: timedelta,
        checks_payload: bool = True,
    ) -> None:
        self.store = store
        self._pulse = lease.total_seconds() / 3
        self._wait = wait.total_seconds()
        self._checks_payload = checks_payload
        self._executing: dict[Claim, asyncio.Event] = {}

    async def handle(self, mutation: Mutation) -> Response:
        scope = mutation.scope
        give_up_at = asyncio.get_running_loop().time() + self._wait
        pause = _FIRST_LOOK
        record = await self.store.find(scope) if mutation.looks_first else None
        while True:
            if record is None:
                intent = await mutation.intent()
                found = await self.store.reserve(scope, mutation.payload_hash, intent)
                if isinstance(found, Claim):
                    with contextlib.suppress(_Overtaken):
                        return await self._execute(found, mutation, intent)
                    found = await self.store.find(scope)
                record = found
                continue
            if self._checks_payload and record.payload_hash != mutation.payload_hash:
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
        """Keep alive what this process is executing, until cancelled."""
        while True:
            await asyncio.sleep(self._pulse)
            if self._executing:
                with contextlib.suppress(LedgerUnavailable):
                    await self.store.heartbeat(self._executing)

    async def _execute(self, claim: Claim, mutation: Mutation, intent: dict[str, Any]) -> Response:
        async with self._holding(claim):
            await async_failpoint("idempotency.reserved")
            response = await mutation.execute(intent)
            await async_failpoint("idempotency.executed")
            if not claim.first and response.status >= 400 and self._is_final(mutation, response):
                # It may be refused because an earlier try of it went through after all.
                finding = await mutation.reconcile(intent)
                if isinstance(finding, Applied):
                    response = _marked(finding.response)
            return await self._settle(claim, mutation, response)

    async def _reconcile(
        self, claim: Claim, mutation: Mutation, intent: dict[str, Any]
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

    async def _settle(self, claim: Claim, mutation: Mutation, response: Response) -> Response:
        """Keep what is final; what is not leaves the key to whoever asks next."""
        if self._is_final(mutation, response):
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
        return response

    def _is_final(self, mutation: Mutation, response: Response) -> bool:
        return is_final(response.status, mutation.subtype_of(response))

    async def _written(self, change: Awaitable[bool]) -> bool | None:
        """The answer is known and goes out, even if it could not be written down (None): a key
        that stays open is reconciled."""
        try:
            return await change
        except LedgerUnavailable:
            return None

    @contextlib.asynccontextmanager
    async def _holding(self, claim: Claim) -> AsyncIterator[None]:
        """Heartbeats while the block runs. If it breaks, the outcome is unknown."""
        with self._announced(claim):
            try:
                yield
            except BaseException:
                await asyncio.shield(self._written(self.store.abandon(claim)))
                raise

    @contextlib.contextmanager
    def _announced(self, claim: Claim) -> Iterator[None]:
        ended = self._executing[claim] = asyncio.Event()
        try:
            yield
        finally:
            del self._executing[claim]
            ended.set()

    async def _wait_for(self, scope: Scope, left: float, pause: float) -> None:
        """Until the request ends, if it is this process that executes it; or else a while."""
        ending = next((e for claim, e in self._executing.items() if claim.scope == scope), None)
        if ending is None:
            await asyncio.sleep(min(left, pause))
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), left)


def _marked(response: Response) -> Response:
    return response.with_header(REPLAYED, "true")
