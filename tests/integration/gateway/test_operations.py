"""Every mutation of the spec: with a key, replayed, and with its answer lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from moraine.iceberg.endpoints import OPERATION_IDS, Endpoint
from support.gateway import REPLAYED, SCHEMA, Ask, Caller, Scene, Way, new_key
from support.keyed_catalog import Fault, answers, error, reset_after, reset_before

Prepare = Callable[[Scene], Ask]

WIDER = {
    **SCHEMA,
    "schema-id": 1,
    "fields": [
        *SCHEMA["fields"],
        {"id": 2, "name": "note", "type": "string", "required": False, "doc": "free text"},
    ],
}


def create_table(scene: Scene) -> Ask:
    return scene.create_table(
        "t",
        properties={"owner": "ana"},
        **{
            "partition-spec": {
                "spec-id": 0,
                "fields": [{"source-id": 1, "transform": "bucket[4]", "name": "id_bucket"}],
            }
        },
    )


def _table(scene: Scene) -> Any:
    return scene.direct.done(scene.create_table("t"))


def append(scene: Scene) -> Ask:
    _table(scene)
    return scene.append("t", 9007199254740993)


def set_properties(scene: Scene) -> Ask:
    _table(scene)
    return scene.commit(
        "t",
        {"action": "set-properties", "updates": {"a": "1"}},
        {"action": "remove-properties", "removals": ["b"]},
    )


def widen(scene: Scene) -> Ask:
    _table(scene)
    return scene.commit(
        "t",
        {"action": "add-schema", "schema": WIDER, "last-column-id": 2},
        {"action": "set-current-schema", "schema-id": -1},
        requirements=({"type": "assert-current-schema-id", "current-schema-id": 0},),
    )


def commit_staged(scene: Scene) -> Ask:
    staged = scene.direct.done(scene.create_table("t", **{"stage-create": True}))["metadata"]
    return scene.commit(
        "t",
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": staged["schemas"][0], "last-column-id": 1},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged["location"]},
        requirements=({"type": "assert-create"},),
    )


def transaction(scene: Scene) -> Ask:
    for name in ("t", "u"):
        scene.direct.done(scene.create_table(name))
    owner = {"action": "set-properties", "updates": {"owner": "ana"}}
    return scene.transaction(scene.appended("t", 77), scene.change("u", owner))


def register_table(scene: Scene) -> Ask:
    file = _table(scene)["metadata-location"]
    scene.direct.done(scene.drop_table("t"))
    return scene.register_table("r", file)


def rename_table(scene: Scene) -> Ask:
    _table(scene)
    return scene.rename_table("t", "u")


def drop_table(scene: Scene) -> Ask:
    _table(scene)
    return scene.drop_table("t")


def drop_table_with_its_files(scene: Scene) -> Ask:
    ask = drop_table(scene)
    return ask._replace(path=f"{ask.path}?purgeRequested=true")


def _view(scene: Scene) -> Any:
    return scene.direct.done(scene.create_view("v"))


def register_view(scene: Scene) -> Ask:
    # The fixture deletes a dropped view's file; it does not mind two views of one.
    return scene.register_view("r", _view(scene)["metadata-location"])


def replace_view(scene: Scene) -> Ask:
    _view(scene)
    return scene.replace_view("v", 2)


def drop_view(scene: Scene) -> Ask:
    _view(scene)
    return scene.drop_view("v")


def rename_view(scene: Scene) -> Ask:
    _view(scene)
    return scene.rename_view("v", "w")


def drop_namespace(scene: Scene) -> Ask:
    scene.direct.done(scene.create_namespace("below"))
    return scene.drop_namespace("below")


def update_namespace(scene: Scene) -> Ask:
    scene.direct.done(scene.update_namespace([], a="1", b="2"))
    return scene.update_namespace(["b"], a="3", c="4")


OPERATIONS: dict[str, tuple[Endpoint, Prepare]] = {
    "create namespace": (
        Endpoint.CREATE_NAMESPACE,
        lambda scene: scene.create_namespace("below", owner="ana"),
    ),
    "drop namespace": (Endpoint.DROP_NAMESPACE, drop_namespace),
    "update namespace": (Endpoint.UPDATE_NAMESPACE, update_namespace),
    "create table": (Endpoint.CREATE_TABLE, create_table),
    "register table": (Endpoint.REGISTER_TABLE, register_table),
    "append": (Endpoint.COMMIT_TABLE, append),
    "set properties": (Endpoint.COMMIT_TABLE, set_properties),
    "widen": (Endpoint.COMMIT_TABLE, widen),
    "commit staged": (Endpoint.COMMIT_TABLE, commit_staged),
    "drop table": (Endpoint.DROP_TABLE, drop_table),
    "drop table with its files": (Endpoint.DROP_TABLE, drop_table_with_its_files),
    "rename table": (Endpoint.RENAME_TABLE, rename_table),
    "transaction": (Endpoint.COMMIT_TRANSACTION, transaction),
    "create view": (Endpoint.CREATE_VIEW, lambda scene: scene.create_view("v")),
    "register view": (Endpoint.REGISTER_VIEW, register_view),
    "replace view": (Endpoint.REPLACE_VIEW, replace_view),
    "drop view": (Endpoint.DROP_VIEW, drop_view),
    "rename view": (Endpoint.RENAME_VIEW, rename_view),
}
FAULTS: dict[str, Fault] = {
    "reset before": reset_before,
    "reset after": reset_after,
    "503 before": answers(error(503)),
    "503 after": answers(error(503), executed=True),
}


def test_none_is_missing() -> None:
    assert {endpoint for endpoint, _ in OPERATIONS.values()} == set(OPERATION_IDS)


def shape(value: Any) -> Any:
    """What an answer has, without what differs from one table to the next."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value]
    return type(value).__name__


@pytest.mark.parametrize("name", OPERATIONS)
def test_once_with_a_key_and_once_replayed(
    name: str, caller: Caller, way: Way, scene: Scene, direct: Caller
) -> None:
    _, prepare = OPERATIONS[name]
    twin = Scene(direct)
    expected = direct.send(*prepare(twin))
    assert expected.status_code in (200, 204), expected.text
    ask = prepare(scene)
    before, key = scene.state(), new_key()

    first = caller.send(*ask, key=key)
    after = scene.state()
    assert first.status_code == expected.status_code, first.text
    assert after != before
    assert [sorted(part) for part in after.values()] == [
        sorted(part) for part in twin.state().values()
    ]
    if expected.content:
        assert shape(first.json()) == shape(expected.json())

    again = caller.send(*ask, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (first.status_code, "true")
    assert again.content == first.content or again.json() == first.json()
    assert scene.state() == after
    assert len(way.mutations) == 1


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_with_its_answer_lost(
    name: str, fault: str, caller: Caller, way: Way, scene: Scene, direct: Caller
) -> None:
    _, prepare = OPERATIONS[name]
    twin = Scene(direct)
    expected = direct.send(*prepare(twin))
    assert expected.status_code in (200, 204), expected.text
    ask = prepare(scene)
    before, key = scene.state(), new_key()

    way.break_with(FAULTS[fault])
    lost = caller.send(*ask, key=key)
    assert lost.status_code in (502, 503), lost.text
    found = scene.state()
    assert (found != before) == ("after" in fault)

    again = caller.send(*ask, key=key)
    assert again.status_code == expected.status_code, again.text
    after = scene.state()
    if "after" in fault:
        assert after == found
        assert again.headers[REPLAYED] == "true"
    assert [sorted(part) for part in after.values()] == [
        sorted(part) for part in twin.state().values()
    ]
    assert len(way.executed) == 1
    if expected.content:
        assert set(again.json()) >= set(expected.json()) - {"missing"}
    last = caller.send(*ask, key=key)
    assert (last.status_code, last.headers[REPLAYED]) == (again.status_code, "true")
    assert scene.state() == after


@pytest.mark.parametrize("name", OPERATIONS)
def test_by_another_process_after_the_first_was_lost(
    name: str, caller: Caller, other_caller: Caller, way: Way, scene: Scene
) -> None:
    """Nothing of it is in the memory of the one that began."""
    ask, key = OPERATIONS[name][1](scene), new_key()
    way.break_with(reset_after)
    assert caller.send(*ask, key=key).status_code == 502
    found = scene.state()
    again = other_caller.send(*ask, key=key)
    assert again.status_code in (200, 204), again.text
    assert again.headers[REPLAYED] == "true"
    assert scene.state() == found
    assert len(way.executed) == 1
