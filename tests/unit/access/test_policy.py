"""Which principal may do what with which table."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from moraine.access.model import Action, Certificate, Principal, QualifiedName
from moraine.access.policy import (
    FilePolicy,
    NoPolicy,
    OpaPolicy,
    PolicyUnavailable,
    RuleSet,
    policy_of,
)
from moraine.settings import PolicySettings

ISSUER = "https://id.example.com"
ALICE = Principal("demo", ISSUER, "alice", roles=("loaders", "readers"))
CERTIFIED = Principal(
    "demo",
    ISSUER,
    "polaris",
    certificate=Certificate("CN=polaris,O=Example", ("dns:polaris.example", "uri:spiffe://x/p")),
)
ORDERS = QualifiedName("prod", ("shop",), "orders")
DEEP = QualifiedName("prod", ("shop", "eu"), "orders")
DOTTED = QualifiedName("prod", ("a.b",), "orders")
READ, EXECUTE, INGEST = Action.READ_TASKS, Action.EXECUTE_TASKS, Action.WRITE_INGEST


def allows(rules: list[dict[str, Any]], principal: Principal, action: Action, table: Any) -> bool:
    return RuleSet.model_validate({"rules": rules}).allows(principal, action, table)


@pytest.mark.parametrize(
    ("patterns", "table", "fits"),
    [
        (["prod.shop.orders"], ORDERS, True),
        (["prod.shop.orders"], DEEP, False),
        (["prod.shop.Orders"], ORDERS, False),
        (["prod.shop.order"], ORDERS, False),
        (["prod.shop.*"], ORDERS, True),
        (["prod.shop.*"], DEEP, False),
        (["prod.*.*"], ORDERS, True),
        (["prod.*"], ORDERS, False),
        (["*"], ORDERS, False),
        (["prod.sh?p.o*s"], ORDERS, True),
        (["prod.**"], ORDERS, True),
        (["prod.**"], DEEP, True),
        (["prod.shop.**"], DEEP, True),
        (["prod.shop.eu.**"], DEEP, True),
        (["prod.shop.eu.**"], ORDERS, False),
        (["prod.shop.orders.**"], ORDERS, True),
        (["prod.shop.orders.x.**"], ORDERS, False),
        (["pro.**"], ORDERS, False),
        (["*.**"], ORDERS, True),
        (["**"], ORDERS, True),
        (["**"], QualifiedName("", (), ""), True),
        (["prod.a.b.orders"], DOTTED, False),
        (["prod.a.**"], DOTTED, False),
        ([["prod", "a.b", "orders"]], DOTTED, True),
        ([["prod", "a.*", "*"]], DOTTED, True),
        ([["prod", "a.b", "**"]], DOTTED, True),
        ([["prod", "shop.orders"]], ORDERS, False),
        ([[]], ORDERS, False),
        (["dev.**", "prod.shop.*"], ORDERS, True),
        (["prod.shop.t[1]"], QualifiedName("prod", ("shop",), "t[1]"), True),
        (["prod.shop.t[1]"], QualifiedName("prod", ("shop",), "t1"), False),
        (["prod.shop.[!x]*"], ORDERS, False),
        (["prod.shop.a*"], QualifiedName("prod", ("shop",), "a\nb"), True),
        (["prod.shop.orders"], QualifiedName("prod", ("shop",), "orders\n"), False),
    ],
)
def test_patterns_of_tables(patterns: list[Any], table: QualifiedName, fits: bool) -> None:
    allow = [{"actions": ["*"], "tables": patterns}]
    assert allows(allow, ALICE, READ, table) is fits
    deny = [{"actions": ["*"]}, {"effect": "deny", "actions": ["*"], "tables": patterns}]
    assert allows(deny, ALICE, READ, table) is not fits


@pytest.mark.parametrize("pattern", ["**.orders", "prod.**.orders", ["**", "orders"], ["**", "**"]])
def test_a_pattern_that_would_quietly_match_nothing_is_refused(pattern: Any) -> None:
    """A denial that denies nothing is worse than none."""
    with pytest.raises(ValueError, match=r"\*\*"):
        RuleSet.model_validate({"rules": [{"actions": ["*"], "tables": [pattern]}]})


@pytest.mark.parametrize(
    ("rule", "principal", "action", "fits"),
    [
        ({"actions": ["tasks:read"]}, ALICE, READ, True),
        ({"actions": ["tasks:read"]}, ALICE, EXECUTE, False),
        ({"actions": ["tasks:*"]}, ALICE, EXECUTE, True),
        ({"actions": ["tasks:*"]}, ALICE, INGEST, False),
        ({"actions": ["ingest:write", "tasks:read"]}, ALICE, INGEST, True),
        ({"actions": ["*"], "subjects": ["alice"]}, ALICE, READ, True),
        ({"actions": ["*"], "subjects": ["bob", "al*"]}, ALICE, READ, True),
        ({"actions": ["*"], "subjects": ["Alice"]}, ALICE, READ, False),
        ({"actions": ["*"], "subjects": ["lice"]}, ALICE, READ, False),
        ({"actions": ["*"], "issuers": [ISSUER]}, ALICE, READ, True),
        ({"actions": ["*"], "issuers": ["https://id.example.com.evil"]}, ALICE, READ, False),
        ({"actions": ["*"], "issuers": ["airflow"]}, ALICE, READ, False),
        ({"actions": ["*"], "roles": ["loaders"]}, ALICE, READ, True),
        ({"actions": ["*"], "roles": ["admins", "read*"]}, ALICE, READ, True),
        ({"actions": ["*"], "roles": ["admins"]}, ALICE, READ, False),
        ({"actions": ["*"], "roles": ["*"]}, CERTIFIED, READ, False),
        ({"actions": ["*"], "roles": []}, ALICE, READ, False),
        ({"actions": ["*"], "certificates": ["*"]}, ALICE, READ, False),
        ({"actions": ["*"], "certificates": ["CN=polaris,*"]}, CERTIFIED, READ, True),
        ({"actions": ["*"], "certificates": ["CN=polaris"]}, CERTIFIED, READ, False),
        ({"actions": ["*"], "certificates": ["dns:polaris.example"]}, CERTIFIED, READ, True),
        ({"actions": ["*"], "certificates": ["uri:spiffe://x/*"]}, CERTIFIED, READ, True),
        ({"actions": ["*"], "certificates": ["dns:other.example"]}, CERTIFIED, READ, False),
        (
            {"actions": ["*"], "subjects": ["polaris"], "certificates": ["CN=other*"]},
            CERTIFIED,
            READ,
            False,
        ),
    ],
)
def test_a_rule_applies_if_everything_that_it_names_fits(
    rule: dict[str, Any], principal: Principal, action: Action, fits: bool
) -> None:
    assert allows([rule], principal, action, ORDERS) is fits
    assert allows([rule], principal, action, None) is fits


ALLOW = {"actions": ["*"], "tables": ["prod.**"]}
DENY = {"effect": "deny", "actions": ["*"], "tables": ["prod.shop.**"]}


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        pytest.param([], False, id="no rule allows it"),
        pytest.param([ALLOW], True, id="a rule allows it"),
        pytest.param([ALLOW, DENY], False, id="a denial after"),
        pytest.param([DENY, ALLOW], False, id="a denial before"),
        pytest.param([DENY], False, id="only a denial"),
        pytest.param([ALLOW, {**DENY, "subjects": ["bob"]}], True, id="another's denial"),
        pytest.param([ALLOW, {**DENY, "actions": ["audit:*"]}], True, id="of another action"),
        pytest.param([ALLOW, {**DENY, "tables": ["prod.hr.**"]}], True, id="of another table"),
        pytest.param([{**ALLOW, "tables": ["dev.**"]}], False, id="allowed elsewhere"),
    ],
)
def test_denials_win_and_nothing_is_allowed_by_default(
    rules: list[dict[str, Any]], allowed: bool
) -> None:
    assert allows(rules, ALICE, READ, ORDERS) is allowed


def test_whether_a_caller_may_at_all_is_asked_without_a_table() -> None:
    elsewhere = [{**ALLOW, "tables": ["dev.**"]}]
    assert allows(elsewhere, ALICE, READ, None)
    assert allows([ALLOW, DENY], ALICE, READ, None), "some tables are left"
    assert not allows([DENY], ALICE, READ, None)
    assert not allows([], ALICE, READ, None)


# --- The file ---------------------------------------------------------------------------------


def ask(policy: Any, action: Action = READ, table: Any = ORDERS) -> bool:
    return bool(asyncio.run(policy.allows(ALICE, action, table)))


BROKEN = [
    pytest.param("[[rules]", "line 1", id="no TOML"),
    pytest.param("[[rules]]\nsubjects = ['alice']", "actions", id="no actions"),
    pytest.param("[[rules]]\nactions = []", "actions", id="empty actions"),
    pytest.param("[[rules]]\nactions = ['*']\nsubjects = []", "subjects", id="empty subjects"),
    pytest.param("[[rules]]\nactions = ['*']\ntables = []", "tables", id="empty tables"),
    pytest.param("[[rules]]\nactions = ['*']\nsubject = 'x'", "subject", id="a name misspelt"),
    pytest.param("[[rules]]\nactions = ['*']\neffect = 'refuse'", "effect", id="another effect"),
    pytest.param("[[rule]]\nactions = ['*']", "rule", id="another section"),
    pytest.param("rules = 7", "rules", id="a number"),
]


@pytest.mark.parametrize(("text", "named"), BROKEN)
def test_a_broken_file_at_the_start_is_an_error(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=named) as raised:
        policy_of(PolicySettings(file=file))
    assert str(file) in str(raised.value)


def test_a_file_that_is_not_there_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        policy_of(PolicySettings(file=tmp_path / "policy.toml"))


def write(file: Path, text: str | bytes, at: int) -> None:
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    os.utime(file, ns=(at, at))


@pytest.mark.parametrize("broken", [case.values[0] for case in BROKEN] + [b"\xff", None, "folder"])
def test_a_broken_change_leaves_the_rules_as_they_are(tmp_path: Path, broken: Any) -> None:
    file = tmp_path / "policy.toml"
    write(file, "[[rules]]\nactions = ['tasks:read']", 1)
    policy = FilePolicy(file)
    assert (ask(policy, READ), ask(policy, EXECUTE)) == (True, False)
    if broken in (None, "folder"):
        file.unlink()
    if broken == "folder":
        file.mkdir()
    elif broken is not None:
        write(file, broken, 2)
    for _ in range(2):
        assert (ask(policy, READ), ask(policy, EXECUTE)) == (True, False)
    if broken == "folder":
        file.rmdir()
    write(file, "[[rules]]\nactions = ['tasks:execute']", 3)
    assert (ask(policy, READ), ask(policy, EXECUTE)) == (False, True)


def test_a_change_that_could_not_be_read_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is the same as at the failed attempt, so its time does not tell."""
    file = tmp_path / "policy.toml"
    write(file, "[[rules]]\nactions = ['*']", 1)
    policy = FilePolicy(file)
    write(file, "", 2)
    with monkeypatch.context() as patch:

        def fail(_self: Path) -> bytes:
            raise PermissionError

        patch.setattr(Path, "read_bytes", fail)
        assert ask(policy)
    assert not ask(policy)


def test_the_file_may_be_emptied(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    write(file, "[[rules]]\nactions = ['*']", 1)
    policy = FilePolicy(file)
    assert ask(policy)
    write(file, "", 2)
    assert not ask(policy)
    assert not ask(policy, table=None)


def test_the_example_of_the_manual_does_what_the_manual_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    example = next(part for part in page.split("```") if part.lstrip().startswith("[[rules]]"))
    file = tmp_path / "policy.toml"
    file.write_text(example)
    policy = FilePolicy(file)
    loader = Principal("demo", ISSUER, "x", roles=("loaders",))

    def may(principal: Principal, action: Action, *levels: str) -> bool:
        table = QualifiedName(levels[0], tuple(levels[1:-1]), levels[-1])
        return asyncio.run(policy.allows(principal, action, table))

    assert may(loader, INGEST, "prod", "landing", "t")
    assert may(loader, INGEST, "prod", "name.with.dots", "t")
    assert not may(loader, INGEST, "prod", "name", "with", "dots", "t")
    assert not may(loader, EXECUTE, "prod", "landing", "t")
    assert not may(loader, INGEST, "prod", "finance", "t")
    assert not may(CERTIFIED, EXECUTE, "prod", "shop", "t"), "the example names another issuer"


def test_without_a_policy_tokens_alone_decide() -> None:
    policy = policy_of(PolicySettings())
    assert isinstance(policy, NoPolicy)
    assert all(ask(policy, action, table) for action in Action for table in (ORDERS, None))


# --- Open Policy Agent ------------------------------------------------------------------------


@dataclass
class Agent:
    answer: Any = None
    status: int = 200
    delay: float = 0.0
    chunked: bool = False
    url: str = ""
    asked: list[Any] = field(default_factory=list)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        await asyncio.sleep(self.delay)
        answer = self.answer
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        if self.status in (302, 307):
            return web.Response(status=self.status, headers={"Location": f"{self.url}/other"})
        if self.chunked:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(body)
            return response
        return web.Response(body=body, status=self.status, content_type="application/json")


def with_agent(agent: Agent, scenario: Callable[[OpaPolicy], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        app = web.Application()
        app.router.add_post("/v1/data/moraine", agent.serve)
        app.router.add_post("/other", agent.serve)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        agent.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        settings = PolicySettings(
            opa_url=f"{agent.url}/v1/data/moraine",
            opa_timeout=timedelta(seconds=0.5 if agent.delay else 5),
        )
        policy = policy_of(settings)
        assert isinstance(policy, OpaPolicy)
        try:
            return await scenario(policy)
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def decision(agent: Agent, principal: Principal = ALICE, table: Any = ORDERS) -> bool:
    async def scenario(policy: OpaPolicy) -> bool:
        return await policy.allows(principal, EXECUTE, table)

    return bool(with_agent(agent, scenario))


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [
        ({"result": True}, True),
        ({"result": {"allow": True}}, True),
        ({"result": {"allow": True, "reason": "x"}}, True),
        ({"result": False}, False),
        ({"result": {"allow": False}}, False),
        ({}, False),
        ({"result": None}, False),
        ({"result": {}}, False),
        ({"result": "true"}, False),
        ({"result": 1}, False),
        ({"result": [True]}, False),
        ({"result": {"allow": "true"}}, False),
        ({"result": {"allow": 1}}, False),
        ({"allow": True}, False),
        ([], False),
        (True, False),
        (None, False),
    ],
)
def test_only_a_clear_yes_of_the_agent_allows(answer: Any, allowed: bool) -> None:
    assert decision(Agent(answer)) is allowed


YES = {"result": True}


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(Agent(YES, status=500), id="500"),
        pytest.param(Agent(YES, status=404), id="404"),
        pytest.param(Agent(YES, status=307), id="a redirect"),
        pytest.param(Agent(YES, status=302), id="a redirect to a GET"),
        pytest.param(Agent(YES, delay=5), id="slow"),
        pytest.param(Agent(b"<html>"), id="html"),
        pytest.param(Agent(b"\xff\xfe"), id="bytes"),
        pytest.param(Agent(b""), id="empty"),
        pytest.param(Agent(b"[" * 20_000), id="nested"),
        pytest.param(Agent({**YES, "more": "x" * (64 << 10)}), id="too large"),
        pytest.param(Agent({**YES, "more": "x" * (64 << 10)}, chunked=True), id="chunked"),
    ],
)
def test_nothing_is_allowed_if_the_agent_does_not_answer(agent: Agent) -> None:
    with pytest.raises(PolicyUnavailable) as raised:
        decision(agent)
    assert raised.value.http_status == 503
    assert len(agent.asked) == 1


def test_nor_if_no_agent_is_there() -> None:
    policy = OpaPolicy(PolicySettings(opa_url="http://127.0.0.1:9/v1/data/moraine"))
    with pytest.raises(PolicyUnavailable):
        ask(policy)


def test_what_the_agent_is_asked() -> None:
    agent = Agent(YES)
    assert decision(agent, CERTIFIED, DOTTED)
    assert decision(agent, ALICE, None)
    certified, alice = (asked["input"] for asked in agent.asked)
    assert certified == {
        "principal": {
            "realm": "demo",
            "issuer": ISSUER,
            "subject": "polaris",
            "roles": [],
            "certificate": {
                "subject": "CN=polaris,O=Example",
                "names": ["dns:polaris.example", "uri:spiffe://x/p"],
            },
        },
        "action": "tasks:execute",
        "table": {"catalog": "prod", "namespace": ["a.b"], "name": "orders"},
    }
    assert alice["principal"]["certificate"] is None
    assert alice["principal"]["roles"] == ["loaders", "readers"]
    assert alice["table"] is None
