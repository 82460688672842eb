"""The guard: what it refuses, what it writes down, and what it does if it cannot write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from moraine.access.audit import ALLOWED, REFUSED
from moraine.access.authenticator import Authenticator
from moraine.access.guard import _MAX_STRANGERS, _ROW_EVERY_SECONDS, Authorizer, Guard, Strangers
from moraine.access.model import Action, Caller, Principal, QualifiedName
from moraine.access.policy import PolicyUnavailable
from moraine.errors import Forbidden, LedgerUnavailable, Unauthorized
from moraine.settings import ApiSettings, IssuerSettings, Settings
from moraine.threads import Threads
from support.issuer import URL, Issuer

ISSUER = Issuer()
ORDERS = QualifiedName("prod", ("shop",), "orders")
TASK = UUID("0199c2f2-7d3c-7a5e-8a57-1f0b6d2c9e11")


@dataclass
class Log:
    """An audit log in memory."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    full: list[dict[str, Any]] = field(default_factory=list)
    broken: bool = False

    def add(self, principal: Principal, act: str, outcome: str, **more: Any) -> None:
        if self.broken:
            raise LedgerUnavailable
        self.rows.append((principal.name, act, outcome))
        self.full.append({"principal": principal, **more})


@dataclass
class Rules:
    """A policy that allows what is listed; None stands for any table."""

    allowed: set[tuple[Action, QualifiedName | None]] = field(default_factory=set)
    away: bool = False

    async def allows(self, _principal: Principal, action: Action, table: Any) -> bool:
        if self.away:
            raise PolicyUnavailable
        return (action, table) in self.allowed


@dataclass
class Door:
    log: Log
    rules: Rules
    guard: Guard

    def run(self, asked: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await asked

        return asyncio.run(wait())

    def identify(self, token: str | None, action: Action | None, address: str = "10.0.0.1") -> Any:
        header = None if token is None else f"Bearer {token}"
        return self.run(self.guard.identify(Caller(header, None, address), action))


@pytest.fixture
def door(tmp_path: Path) -> Door:
    jwt = IssuerSettings(issuer=URL, jwks_file=ISSUER.write_key_set(tmp_path))
    settings = Settings(realm="demo", api=ApiSettings(jwt=jwt, accept_airflow_tokens=False))
    log = Log()
    rules = Rules({(action, table) for action in Action for table in (None, ORDERS)})
    guard = Guard("demo", Authenticator(settings, None), rules, log, Threads())  # type: ignore[arg-type]
    return Door(log, rules, guard)


READ, EXECUTE, STEER = Action.READ_TASKS, Action.EXECUTE_TASKS, Action.STEER_TASKS
CALLER = f"{URL} polaris"


def test_a_caller_who_may_is_let_in_and_not_written_down(door: Door) -> None:
    assert door.identify(ISSUER.token(), READ).name == CALLER
    assert door.log.rows == []


def test_a_caller_without_the_scope_is_refused_and_written_down(door: Door) -> None:
    with pytest.raises(Forbidden, match="tasks:execute"):
        door.identify(ISSUER.token(scope="tasks:read"), EXECUTE)
    assert door.log.rows == [(CALLER, "tasks:execute", REFUSED)]
    assert door.log.full[0]["principal"].address == "10.0.0.1"
    assert "tasks:execute" in door.log.full[0]["reason"]


def test_a_caller_whom_the_policy_allows_nothing_is_refused_at_the_door(door: Door) -> None:
    door.rules.allowed = {(EXECUTE, ORDERS)}
    with pytest.raises(Forbidden, match="policy"):
        door.identify(ISSUER.token(), EXECUTE)
    assert door.log.rows == [(CALLER, "tasks:execute", REFUSED)]


def test_a_token_without_the_scope_is_not_helped_by_the_policy(door: Door) -> None:
    for action in Action:
        with pytest.raises(Forbidden):
            door.identify(ISSUER.token(scope="openid"), action)


def test_a_door_without_an_action_asks_only_who_it_is(door: Door) -> None:
    door.rules.allowed = set()
    assert door.identify(ISSUER.token(scope=""), None).name == CALLER
    with pytest.raises(Unauthorized):
        door.identify("x.y.z", None)
    assert door.log.rows == [("unknown ", "call", REFUSED)]


def test_an_act_is_written_down_before_it_is_done(door: Door) -> None:
    principal = door.identify(ISSUER.token(), STEER)
    door.run(door.guard.authorize(principal, STEER, ORDERS, "cancel", TASK))
    assert door.log.rows == [(CALLER, "cancel", ALLOWED)]
    assert door.log.full[0]["table"] == "prod.shop.orders"
    assert door.log.full[0]["task_id"] == TASK


def test_a_read_is_written_down_only_if_it_is_refused(door: Door) -> None:
    principal = door.identify(ISSUER.token(), READ)
    door.run(door.guard.authorize(principal, READ, ORDERS))
    assert door.log.rows == []
    other = QualifiedName("prod", ("hr",), "a.b")
    with pytest.raises(Forbidden, match=r"polaris tasks:read on prod\.hr\.`a\.b`"):
        door.run(door.guard.authorize(principal, READ, other))
    assert door.log.rows == [(CALLER, "tasks:read", REFUSED)]
    assert door.log.full[0]["table"] == "prod.hr.`a.b`"


def test_a_refused_act_is_written_down_by_its_name(door: Door) -> None:
    principal = door.identify(ISSUER.token(), STEER)
    door.rules.allowed.clear()
    with pytest.raises(Forbidden):
        door.run(door.guard.authorize(principal, STEER, ORDERS, "retry", TASK))
    assert door.log.rows == [(CALLER, "retry", REFUSED)]
    assert door.log.full[0]["task_id"] == TASK


def test_lists_ask_the_policy_without_a_row(door: Door) -> None:
    principal = door.identify(ISSUER.token(), READ)
    assert door.run(door.guard.allows(principal, READ, ORDERS))
    door.rules.allowed.clear()
    assert not door.run(door.guard.allows(principal, READ, ORDERS))
    assert door.log.rows == []


def test_nothing_is_allowed_that_cannot_be_written_down(door: Door) -> None:
    principal = door.identify(ISSUER.token(), EXECUTE)
    door.log.broken = True
    with pytest.raises(LedgerUnavailable):
        door.run(door.guard.authorize(principal, EXECUTE, ORDERS, "submit"))
    door.rules.allowed.clear()
    with pytest.raises(LedgerUnavailable):
        door.run(door.guard.authorize(principal, EXECUTE, ORDERS, "submit"))


def test_nothing_is_allowed_if_the_policy_cannot_be_asked(door: Door) -> None:
    principal = door.identify(ISSUER.token(), EXECUTE)
    door.rules.away = True
    with pytest.raises(PolicyUnavailable):
        door.run(door.guard.authorize(principal, EXECUTE, ORDERS, "submit"))
    with pytest.raises(PolicyUnavailable):
        door.identify(ISSUER.token(), READ)
    assert door.log.rows == []


def test_an_authorizer_without_a_door_writes_the_same(door: Door) -> None:
    authorizer = Authorizer(door.rules, door.log, Threads())  # type: ignore[arg-type]
    kafka = Principal("demo", "moraine", "kafka:orders")
    door.run(authorizer.authorize(kafka, Action.WRITE_INGEST, ORDERS, "create"))
    assert door.log.rows == [("moraine kafka:orders", "create", ALLOWED)]


# --- Strangers --------------------------------------------------------------------------------


def test_a_stranger_is_written_down_once_a_minute(door: Door) -> None:
    token = ISSUER.token(aud="other")
    for _ in range(5):
        with pytest.raises(Unauthorized):
            door.identify(token, READ)
    with pytest.raises(Unauthorized):
        door.identify(None, EXECUTE, "10.0.0.2")
    assert door.log.rows == [
        ("unknown ", "tasks:read", REFUSED),
        ("unknown ", "tasks:execute", REFUSED),
    ]
    addresses = [row["principal"].address for row in door.log.full]
    assert addresses == ["10.0.0.1", "10.0.0.2"]
    assert all(token not in str(row) for row in door.log.full)


def test_a_stranger_does_not_get_the_name_that_the_token_claims(door: Door) -> None:
    with pytest.raises(Unauthorized):
        door.identify(Issuer().token(sub="admin"), READ)
    assert "admin" not in str(door.log.full)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_many_strangers_take_neither_memory_nor_rows_without_end() -> None:
    clock = Clock()
    strangers = Strangers(clock)
    due = sum(strangers.is_due(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}") for n in range(100_000))
    assert due == _MAX_STRANGERS
    assert len(strangers._noted) == _MAX_STRANGERS
    assert not strangers.is_due("a new one")
    clock.now += _ROW_EVERY_SECONDS
    assert strangers.is_due("a new one")
    assert len(strangers._noted) == 1, "those of the last minute are forgotten"


def test_an_address_is_due_again_after_a_minute_and_not_earlier() -> None:
    clock = Clock()
    strangers = Strangers(clock)
    assert strangers.is_due("a")
    clock.now += _ROW_EVERY_SECONDS - 1
    assert not strangers.is_due("a")
    assert strangers.is_due("b")
    clock.now += 1
    assert strangers.is_due("a")
    assert not strangers.is_due("b")
