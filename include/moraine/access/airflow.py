"""Airflow's users as callers, with the rights that they have on Dags.

Airflow looks up every token in its database, with a blocking query. Here that takes threads of its
own, few of them, and at most a few seconds: while Airflow's database is away, callers with such a
token get a 503, and everything else is served as before.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jwt

from moraine.access.model import Action, Caller, Principal
from moraine.errors import MoraineError, Unauthorized
from moraine.threads import contained

ISSUER = "airflow"
_READING = frozenset({Action.READ_TASKS, Action.READ_AUDIT})
_THREADS = 4
_TIMEOUT_SECONDS = 5.0
# Outside Airflow's own processes, the first token has Airflow imported.
_IMPORT_SECONDS = 60.0
# Each waits for one of the threads: what cannot be checked in time is refused at once.
_MAX_PENDING = 1000
# A token that was revoked, or whose user lost a right, may be accepted for so long.
_KNOWN_SECONDS = 5.0
_MAX_KNOWN = 1024

_WHO = ""
_Question = tuple[bytes, str]
"""The token's digest, and an action, or who it is: no token is kept."""
Ask = Callable[[str, str], str]
"""Asks Airflow who a token is of (`_WHO`), or what it lacks for an action: nothing, if it allows
it. Raises Unauthorized for an invalid token."""


class AirflowUnavailable(MoraineError, code="AIRFLOW_UNAVAILABLE", http_status=503, retry_after=5):
    """Airflow cannot check tokens now; try again later."""


@dataclass(frozen=True, slots=True)
class AirflowIdentity:
    """An Airflow user. Its auth manager decides, by the Dag that does the action's work."""

    principal: Principal
    tokens: AirflowTokens = field(repr=False)
    token: str = field(repr=False)

    async def lacks(self, action: Action) -> str | None:
        return await self.tokens.answer(self.token, action.value) or None


class AirflowTokens:
    """Tokens of Airflow's users.

    Answers about valid tokens are remembered for some seconds, and equal questions at the same time
    are one. An invalid token is not remembered: any number of them can be made up.
    """

    def __init__(
        self,
        realm: str,
        ask: Ask,
        prepare: Callable[[], None] | None = None,
        *,
        timeout: float = _TIMEOUT_SECONDS,
        known_for: float = _KNOWN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._realm = realm
        self._ask = ask
        self._timeout = timeout
        self._known_for = known_for
        self._clock = clock
        self._threads = ThreadPoolExecutor(_THREADS, "airflow-tokens")
        self._pending: dict[_Question, asyncio.Future[str]] = {}
        self._known: OrderedDict[_Question, tuple[float, str]] = OrderedDict()
        self._import = asyncio.Lock()
        self._imported = prepare is None
        self._prepare = prepare

    @classmethod
    def of(cls, realm: str, dags: Mapping[Action, str]) -> AirflowTokens:
        """`dags` names, for each action, the Dag whose rights decide."""
        return cls(realm, partial(ask_airflow, dags), import_airflow)

    async def identify(self, token: str, caller: Caller) -> AirflowIdentity:
        principal = Principal(
            self._realm,
            ISSUER,
            await self.answer(token, _WHO),
            certificate=caller.certificate,
            address=caller.address,
        )
        return AirflowIdentity(principal, self, token)

    async def answer(self, token: str, asked: str) -> str:
        question = (hashlib.sha256(token.encode()).digest(), asked)
        until, known = self._known.get(question, (float("-inf"), ""))
        if self._clock() < until:
            return known
        if not self._imported:
            await self._import_once()
        answer = self._pending.get(question)
        if answer is None:
            if len(self._pending) >= _MAX_PENDING:
                raise AirflowUnavailable()
            answer = self._start(question, token)
        done, _ = await asyncio.wait([answer], timeout=self._timeout)
        if not done or answer.cancelled():
            raise AirflowUnavailable("Airflow does not answer in time whether the token is valid.")
        return answer.result()

    async def _import_once(self) -> None:
        assert self._prepare is not None
        try:
            async with asyncio.timeout(_IMPORT_SECONDS), self._import:
                if not self._imported:
                    loop = asyncio.get_running_loop()
                    await loop.run_in_executor(self._threads, contained, self._prepare)
                    self._imported = True
        except TimeoutError:
            raise AirflowUnavailable() from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self, question: _Question, token: str) -> asyncio.Future[str]:
        """It ends when its thread does, which may be long after its callers have given up."""

        def note(ended: asyncio.Future[str]) -> None:
            del self._pending[question]
            if ended.cancelled() or ended.exception() is not None:
                return
            self._known.pop(question, None)
            self._known[question] = (self._clock() + self._known_for, ended.result())
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)

        loop = asyncio.get_running_loop()
        work = partial(self._ask, token, question[1])
        answer = loop.run_in_executor(self._threads, contained, work)
        self._pending[question] = answer
        answer.add_done_callback(note)
        return answer


def import_airflow() -> None:
    """Takes some seconds in a process that is not one of Airflow's."""
    from airflow.api_fastapi.app import create_auth_manager

    create_auth_manager()


def ask_airflow(dags: Mapping[Action, str], token: str, asked: str) -> str:
    """Blocks while Airflow's database does not answer. Not for the event loop."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import (
        DagAccessEntity,
        DagDetails,
    )

    manager: Any = create_auth_manager()
    try:
        # It is a coroutine whose query blocks: it gets an event loop that serves no other request.
        user = asyncio.run(manager.get_user_from_token(token))
    except jwt.InvalidTokenError:
        raise Unauthorized("The token is not valid or has expired; get a new one.") from None
    if asked == _WHO:
        return str(user.get_name())
    action = Action(asked)
    audit = action is Action.READ_AUDIT
    allowed = manager.is_authorized_dag(
        method="GET" if action in _READING else "POST",
        access_entity=DagAccessEntity.AUDIT_LOG if audit else DagAccessEntity.RUN,
        details=DagDetails(id=dags[action]),
        user=user,
    )
    if allowed:
        return ""
    may = "read the audit log" if audit else "read runs" if action in _READING else "start runs"
    return f"This Airflow user may not {may} of {dags[action]}."
