"""The guard at every door: who is it, may they, and write it down."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn
from uuid import UUID

from moraine.access.audit import ALLOWED, REFUSED, AuditLog
from moraine.access.authenticator import Authenticator
from moraine.access.model import Action, Caller, Principal, QualifiedName
from moraine.access.policy import Policy
from moraine.errors import Forbidden, Unauthorized
from moraine.threads import Threads

_ROW_EVERY_SECONDS = 60.0
_MAX_STRANGERS = 1000
UNKNOWN = "unknown"


class Authorizer:
    """Asks the policy, and writes down what it says."""

    def __init__(self, policy: Policy, audit: AuditLog, in_thread: Threads) -> None:
        self.audit = audit
        self._policy = policy
        self._in_thread = in_thread

    async def allows(self, principal: Principal, action: Action, table: QualifiedName) -> bool:
        """Whether to show something. It is not written down."""
        return await self._policy.allows(principal, action, table)

    async def authorize(
        self,
        principal: Principal,
        action: Action,
        table: QualifiedName,
        act: str = "",
        task_id: UUID | None = None,
    ) -> None:
        """Raise Forbidden if the policy does not allow it. An act is written down before it is
        done; without one, only a refusal is."""
        if not await self._policy.allows(principal, action, table):
            reason = f"The policy does not allow {principal.subject} {action.value} on {table}."
            await self._refuse(principal, act or action.value, reason, str(table), task_id)
        if act:
            await self._in_thread(
                self.audit.add, principal, act, ALLOWED, table=str(table), task_id=task_id
            )

    async def _refuse(
        self,
        principal: Principal,
        act: str,
        reason: str,
        table: str = "",
        task_id: UUID | None = None,
    ) -> NoReturn:
        await self._in_thread(
            self.audit.add, principal, act, REFUSED, table=table, task_id=task_id, reason=reason
        )
        raise Forbidden(reason)


class Guard(Authorizer):
    """The same at a door, where callers have to say who they are."""

    def __init__(
        self,
        realm: str,
        authenticator: Authenticator,
        policy: Policy,
        audit: AuditLog,
        in_thread: Threads,
    ) -> None:
        super().__init__(policy, audit, in_thread)
        self._realm = realm
        self._authenticator = authenticator
        self._strangers = Strangers()

    async def identify(self, caller: Caller, action: Action | None = None) -> Principal:
        """The caller, if its token allows the action and the policy allows it with any table."""
        try:
            identity = await self._authenticator.identify(caller)
        except Unauthorized as refusal:
            await self._note_stranger(caller, action, str(refusal))
            raise
        principal = identity.principal
        if action is not None:
            lacking = await identity.lacks(action)
            if lacking is None and not await self._policy.allows(principal, action, None):
                lacking = f"The policy does not allow {principal.subject} {action.value}."
            if lacking is not None:
                await self._refuse(principal, action.value, lacking)
        return principal

    async def _note_stranger(self, caller: Caller, action: Action | None, reason: str) -> None:
        """A row for every refused request would let strangers fill the ledger."""
        if self._strangers.is_due(caller.address):
            stranger = Principal(
                self._realm, UNKNOWN, "", certificate=caller.certificate, address=caller.address
            )
            act = action.value if action else "call"
            await self._in_thread(self.audit.add, stranger, act, REFUSED, reason=reason)


class Strangers:
    """Which addresses were written down in the last minute. Beyond some number, none is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._noted: dict[str, float] = {}
        self._full_until = float("-inf")

    def is_due(self, address: str) -> bool:
        now = self._clock()
        if self._noted.get(address, float("-inf")) + _ROW_EVERY_SECONDS > now:
            return False
        if len(self._noted) >= _MAX_STRANGERS:
            if now < self._full_until:
                return False
            recent = {a: at for a, at in self._noted.items() if at + _ROW_EVERY_SECONDS > now}
            self._noted = recent
            if len(recent) >= _MAX_STRANGERS:
                self._full_until = min(recent.values()) + _ROW_EVERY_SECONDS
                return False
        self._noted[address] = now
        return True
