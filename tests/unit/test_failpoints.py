"""Failpoints: a name that does not exist is an error in the code, in tests, and when armed."""

from __future__ import annotations

import ast
import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import moraine
from moraine.failpoints import FAILPOINTS, UnknownFailpoint, async_failpoint, failpoint
from support.platform import Failpoints
from support.sources import nodes
from support.waiting import wait_for

SOURCES = sorted(Path(moraine.__path__[0]).rglob("*.py"))
TESTS = sorted(Path(__file__).parents[1].rglob("*.py"))
REACHED = {"failpoint", "async_failpoint"}
ARMED = {"armed", "hit", "hold_at", "kill_at", "killed_at", "release", "stop_at", "wait_until_hit"}
UNKNOWN = "no.such"
NAME = re.compile(r"[a-z]+(?:\.[a-z_]+)+")


def arguments(file: Path, functions: set[str]) -> Iterator[ast.expr]:
    """The last argument of every call of these functions."""
    text = file.read_text()
    if not any(f"{name}(" in text for name in functions):
        return  # parsing it would take longer than all else here
    for node in nodes(file):
        if isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in functions:
                yield node.args[-1]


def literals(*parts: ast.AST) -> set[str]:
    """The names among the parts of an expression."""
    found = (part.value for part in parts if isinstance(part, ast.Constant))
    return {text for text in found if isinstance(text, str) and NAME.fullmatch(text)}


def spelled(node: ast.expr) -> set[str]:
    """The failpoints that a literal or an f-string can mean."""
    if isinstance(node, ast.JoinedStr):
        parts = (
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"[a-z_]+"
            for part in node.values
        )
        pattern = re.compile("".join(parts))
        return {name for name in FAILPOINTS if pattern.fullmatch(name)} or {ast.unparse(node)}
    return literals(*ast.walk(node))


def test_failpoints_are_all_reached_by_the_code_and_no_others() -> None:
    reached = set()
    for file in SOURCES:
        for argument in arguments(file, REACHED):
            if isinstance(argument, ast.Name):  # its callers name the point
                words = literals(*nodes(file))
                reached |= {word for word in words if word in FAILPOINTS}
            else:
                reached |= spelled(argument)
    assert reached == FAILPOINTS


def test_failpoints_that_tests_arm_exist() -> None:
    unknown = {
        f"{file.name}: {name}"
        for file in TESTS
        for argument in arguments(file, ARMED)
        for name in literals(*ast.walk(argument)) - FAILPOINTS
    }
    assert unknown == set()


def test_failpoint_that_is_unknown_cannot_be_armed(tmp_path: Path) -> None:
    points = Failpoints(tmp_path)
    for use in (points.kill_at, points.hold_at, points.hit, points.release, points.armed):
        with pytest.raises(UnknownFailpoint, match="There is no failpoint"):
            use(UNKNOWN)
    assert list(tmp_path.iterdir()) == []


def test_failpoint_that_is_unknown_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failpoint(UNKNOWN)  # nothing is armed in this process, so nothing is checked
    monkeypatch.setenv("MORAINE_FAILPOINTS", str(tmp_path))
    with pytest.raises(UnknownFailpoint):
        failpoint(UNKNOWN)
    with pytest.raises(UnknownFailpoint):
        asyncio.run(async_failpoint(UNKNOWN))


def test_failpoint_that_is_held_waits_until_it_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MORAINE_FAILPOINTS", str(tmp_path))
    points = Failpoints(tmp_path)
    points.hold_at("storage.copied")
    thread = threading.Thread(target=failpoint, args=("storage.copied",))
    thread.start()
    points.wait_until_hit("storage.copied")
    assert not points.armed("storage.copied")
    failpoint("storage.copied")  # it was armed once
    assert thread.is_alive()
    points.release("storage.copied")
    thread.join(10)
    wait_for(lambda: not thread.is_alive(), "the thread is still held")
