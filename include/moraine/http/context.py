"""What routes need from the process that serves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fastapi import Depends, Request
from starlette.types import Scope

from moraine.access.guard import Guard
from moraine.access.model import Action, Caller, Principal
from moraine.access.peer import address_of, certificate_of
from moraine.settings import Settings
from moraine.threads import Threads


class Context(Protocol):
    """What every app has. Each capability adds what its own routes need, as its own protocol;
    `app.context.AppContext` implements all of them."""

    @property
    def settings(self) -> Settings: ...
    @property
    def guard(self) -> Guard: ...
    @property
    def in_thread(self) -> Threads: ...


def context_of(request: Request) -> Any:
    return request.app.state.context


def caller_of(scope: Scope) -> Caller:
    """What the request says of its sender."""
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    header = given[0].decode("latin-1") if len(given) == 1 else None
    return Caller(header, certificate_of(scope), address_of(scope))


def principal_for(action: Action) -> Callable[[Request], Any]:
    """A dependency that gives the caller, and refuses one without this right."""

    async def identify(request: Request) -> Principal:
        context: Context = context_of(request)
        return await context.guard.identify(caller_of(request.scope), action)

    return identify


def requires(action: Action) -> Any:
    """A dependency that refuses callers without this right."""
    return Depends(principal_for(action))
