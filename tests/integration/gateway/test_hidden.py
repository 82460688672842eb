"""A table that is hidden, because it is being purged: to whom, and to which requests."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from moraine.drops.tombstones import TombstoneStore
from moraine.ledger.pools import open_pool
from support.gateway import KEY, REPLAYED, Caller, Scene, Way, error_of, new_key, raw_request
from support.gateway_fixtures import Rows
from support.keyed_catalog import reset_after, reset_before
from support.waiting import wait_for


class Curtain:
    """Hides a table of the scene."""

    def __init__(self, store: TombstoneStore, caller: Caller, scene: Scene) -> None:
        self._store = store
        self._caller = caller
        self._scene = scene
        self.task_id = uuid4()

    def draw(self, table: str) -> None:
        path = self._scene.path("tables", table)
        assert self._caller.get(path).status_code == 200
        names = "prod", (self._scene.namespace,), table
        assert self._store.add(*names, str(uuid4()), self.task_id)
        wait_for(lambda: self._caller.get(path).status_code == 404, "it is still shown")

    def lift(self) -> None:
        self._store.remove(self.task_id)


@pytest.fixture
def curtain(ledger: str, caller: Caller, scene: Scene) -> Iterator[Curtain]:
    with open_pool(ledger, size=1) as pool:
        curtain = Curtain(TombstoneStore(pool, "demo"), caller, scene)
        yield curtain
        curtain.lift()


def test_a_finished_key_is_answered_again(
    caller: Caller, way: Way, scene: Scene, curtain: Curtain
) -> None:
    create, creating = scene.create_table("t"), new_key()
    first = caller.send(*create, key=creating)
    commit, committing = scene.append("t", 1001), new_key()
    second = caller.send(*commit, key=committing)
    assert first.status_code == second.status_code == 200
    way.seen.clear()

    curtain.draw("t")

    for ask, key, answered in ((create, creating, first), (commit, committing, second)):
        again = caller.send(*ask, key=key)
        assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
        assert again.json() == answered.json()
    taken = caller.send(*create, key=new_key())
    assert (taken.status_code, error_of(taken)["type"]) == (409, "AlreadyExistsException")
    gone = caller.send(*commit, key=new_key())
    assert (gone.status_code, error_of(gone)["type"]) == (404, "NoSuchTableException")
    assert way.mutations == []


def test_an_unknown_outcome_is_looked_up_and_never_called_failed(
    caller: Caller, way: Way, scene: Scene, curtain: Curtain, rows: Rows
) -> None:
    """A client that is told 404 cleans up, and the table may be brought back with its snapshot."""
    scene.direct.done(scene.create_table("t"))
    made, not_made = new_key(), new_key()
    commit = scene.append("t", 1001)
    way.break_with(reset_after)
    assert caller.send(*commit, key=made).status_code == 502
    other = scene.append("t", 1002)
    way.break_with(reset_before)
    assert caller.send(*other, key=not_made).status_code == 502
    curtain.draw("t")
    way.seen.clear()

    found = caller.send(*commit, key=made)
    assert (found.status_code, found.headers[REPLAYED]) == (200, "true")
    refused = caller.send(*other, key=not_made)
    assert (refused.status_code, error_of(refused)["type"]) == (404, "NoSuchTableException")
    assert rows(not_made)[0]["http_status"] == 404
    assert way.mutations == []
    assert scene.snapshots("t") == [1001]


@pytest.mark.parametrize("keyed", [True, False], ids=["with a key", "without a key"])
def test_no_spelling_of_a_path_goes_past_it(
    caller: Caller, way: Way, scene: Scene, curtain: Curtain, keyed: bool
) -> None:
    scene.direct.done(scene.create_table("t"))
    curtain.draw("t")
    way.seen.clear()
    body = scene.append("t", 1001).body
    for path in (
        f"%6Eamespaces/{scene.namespace}/%74ables/t",
        f"namespaces/{scene.namespace}/tables/%74",
        f"namespaces/{scene.namespace}/tables/t/",
    ):
        headers = {KEY: new_key()} if keyed else {}
        with raw_request(caller.url, "GET", f"/v1/{path}") as response:
            assert response.status == 404
        with raw_request(caller.url, "POST", f"/v1/{path}", headers, body) as response:
            assert response.status == 404
        with raw_request(caller.url, "DELETE", f"/v1/{path}", headers) as response:
            assert response.status == 404
    assert way.seen == []


def test_nor_does_a_body_that_is_malformed(
    caller: Caller, way: Way, scene: Scene, curtain: Curtain
) -> None:
    scene.direct.done(scene.create_table("t"))
    curtain.draw("t")
    assert caller.post(scene.path("tables", "t"), {"updates": [7]}).status_code == 404
    assert way.mutations == []
