"""Stacks end after the last test that needs them, and not before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.release import Release


class Stacks:
    """Stands in for pytest's fixtures, and remembers which were ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def item(self, nodeid: str, *fixtures: str) -> Any:
        session = SimpleNamespace(_fixturemanager=self)
        return SimpleNamespace(
            nodeid=nodeid, fixturenames=fixtures, session=session, _request=nodeid
        )

    def getfixturedefs(self, name: str, item: Any) -> list[Any]:
        def finish(request: Any) -> None:
            self.ended.append(f"{name} after {request}")

        return [SimpleNamespace(scope="session", finish=finish)]


def group_of(nodeid: str) -> str:
    return nodeid[0]


def test_release_ends_a_stack_after_the_last_test_of_its_group() -> None:
    stacks = Stacks()
    items = [
        stacks.item("a1", "running_platform", "tmp_path"),
        stacks.item("b1", "running_platform"),
        stacks.item("a2", "running_platform", "broker"),
        stacks.item("a3", "broker"),
        stacks.item("a4", "tmp_path"),
    ]
    release = Release(items, group_of)
    for item in items:
        release.after(item)
    assert stacks.ended == [
        "running_platform after b1",
        "running_platform after a2",
        "broker after a3",
    ]


def test_release_in_one_process_ends_a_stack_once() -> None:
    stacks = Stacks()
    items = [stacks.item(nodeid, "broker") for nodeid in ("a1", "b1", "a2")]
    release = Release(items, lambda nodeid: "all")
    for item in items:
        release.after(item)
    assert stacks.ended == ["broker after a2"]
