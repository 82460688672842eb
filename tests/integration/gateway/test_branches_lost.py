"""A key whose request lost its answer: what the catalog has decides, and it is carried out once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.gateway import REPLAYED, Caller, Scene, Way, error_of, new_key
from support.gateway_fixtures import Rows, StartGateway
from support.keyed_catalog import UNAVAILABLE, Held, answers, error, reset_after, reset_before
from support.platform import Failpoints
from support.relay import Answer
from support.tcp_proxy import proxied
from support.waiting import wait_for

# --- R1, R2, and what is in the way ---------------------------------------------------------

LOST_AFTER = {"reset": reset_after, "503": answers(UNAVAILABLE, executed=True)}
LOST_BEFORE = {"reset": reset_before, "503": answers(UNAVAILABLE)}


@pytest.mark.parametrize("how", LOST_AFTER)
def test_r1_the_change_is_there(
    caller: Caller, way: Way, scene: Scene, rows: Rows, how: str
) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    ask = scene.append("t", 1001)
    way.break_with(LOST_AFTER[how])
    assert caller.send(*ask, key=key).status_code in (502, 503)
    file = scene.load("t")["metadata-location"]
    again = caller.send(*ask, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    assert again.json()["metadata-location"] == file
    assert set(again.json()) == {"metadata-location", "metadata"}
    assert scene.snapshots("t") == [1001]
    assert len(way.executed) == 1
    [row] = rows(key)
    assert (row["http_status"], row["attempts"]) == (200, 2)
    # From now on it is an ordinary replay.
    assert caller.send(*ask, key=key).content == again.content


@pytest.mark.parametrize("how", LOST_BEFORE)
def test_r2_it_is_taken_over(caller: Caller, way: Way, scene: Scene, rows: Rows, how: str) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    ask = scene.append("t", 1001)
    way.break_with(LOST_BEFORE[how])
    assert caller.send(*ask, key=key).status_code in (502, 503)
    assert scene.snapshots("t") == []
    again = caller.send(*ask, key=key)
    assert again.status_code == 200
    assert scene.snapshots("t") == [1001]
    [row] = rows(key)
    assert (row["http_status"], row["attempts"]) == (200, 2)
    assert caller.send(*ask, key=key).headers[REPLAYED] == "true"
    assert len(way.executed) == 1


def test_who_was_thought_dead_cannot_write_down_an_outcome(
    start_gateway: StartGateway,
    other_caller: Caller,
    way: Way,
    scene: Scene,
    rows: Rows,
    ledger: str,
    pool: ThreadPoolExecutor,
) -> None:
    """A process that was cut off from the ledger for longer than its lease: meanwhile another has
    done the work, which is why the catalog refuses it to the first. To its caller that must not
    look like a failure."""
    with proxied(ledger) as proxy:
        caller = start_gateway(url=proxy.url, idempotency={"lease": "1s"})
        scene.direct.done(scene.create_table("t"))
        key, held, ask = new_key(), Held(), scene.append("t", 1001)
        way.break_with(held)
        first = pool.submit(caller.send, *ask, key=key)
        assert held.arrived.wait(60)
        proxy.cut()
        wait_for(lambda: rows(key)[0]["abandoned"], "the lease does not run out")
        second = other_caller.send(*ask, key=key)
        assert second.status_code == 200
        [row] = rows(key)
        proxy.restore()
        held.go_on.set()
        late = first.result()
    assert (late.status_code, late.headers[REPLAYED]) == (200, "true"), late.text
    assert late.content == second.content
    assert rows(key) == [row]
    assert scene.snapshots("t") == [1001]


def test_r1_when_the_ledger_was_away_at_the_end(
    start_gateway: StartGateway,
    ledger: str,
    way: Way,
    scene: Scene,
    rows: Rows,
    failpoints: Failpoints,
    pool: ThreadPoolExecutor,
) -> None:
    """The finalize gap: the answer goes out, and the key stays open."""
    with proxied(ledger) as proxy:
        caller = start_gateway(url=proxy.url, idempotency={"lease": "1s"})
        scene.direct.done(scene.create_table("t"))
        key, ask = new_key(), scene.append("t", 1001)
        failpoints.hold_at("idempotency.executed")
        first = pool.submit(caller.send, *ask, key=key)
        failpoints.wait_until_hit("idempotency.executed")
        proxy.cut()
        failpoints.release("idempotency.executed")
        assert first.result().status_code == 200
        proxy.restore()
        [row] = rows(key)
        assert row["http_status"] is None
        again = caller.send(*ask, key=key)
        assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
        assert scene.snapshots("t") == [1001]
        assert len(way.executed) == 1
        assert rows(key)[0]["http_status"] == 200


def test_something_else_is_in_the_way(caller: Caller, way: Way, scene: Scene) -> None:
    key = new_key()
    ask = scene.create_table("t", properties={"owner": "me"})
    way.break_with(answers(UNAVAILABLE))
    assert caller.send(*ask, key=key).status_code == 503
    scene.direct.done(scene.create_table("t", properties={"owner": "another"}))
    state = scene.state()
    for _ in range(2):
        again = caller.send(*ask, key=key)
        assert again.status_code == 422
        assert error_of(again)["subtype"] == "idempotency_key_conflict"
        assert f"{scene.namespace}.t" in error_of(again)["message"]
    assert scene.state() == state
    assert len(way.executed) == 0


def test_a_table_of_that_name_is_another_one_now(caller: Caller, way: Way, scene: Scene) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    ask = scene.append("t", 1001)
    way.break_with(answers(UNAVAILABLE))
    assert caller.send(*ask, key=key).status_code == 503
    scene.direct.done(scene.drop_table("t"))
    scene.direct.done(scene.create_table("t"))
    assert caller.send(*ask, key=key).status_code == 422
    assert scene.snapshots("t") == []


def test_a_refusal_that_the_first_attempt_itself_is_the_reason_for(
    caller: Caller, way: Way, scene: Scene
) -> None:
    """The first attempt is so late that the second is refused because of it."""
    key = new_key()
    ask = scene.create_table("t")
    way.break_with(answers(UNAVAILABLE), lambda execute: (execute(), execute())[1])
    assert caller.send(*ask, key=key).status_code == 503
    again = caller.send(*ask, key=key)
    assert again.status_code == 200, again.text
    assert again.json()["metadata-location"] == scene.load("t")["metadata-location"]


def test_a_drop_of_what_was_created_again_since(caller: Caller, way: Way, scene: Scene) -> None:
    """The drop was carried out, its answer lost, and the name given to another table."""
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    ask = scene.drop_table("t")
    way.break_with(reset_after)
    assert caller.send(*ask, key=key).status_code == 502
    made = scene.direct.done(scene.create_table("t"))
    assert caller.send(*ask, key=key).status_code == 204
    assert scene.load("t")["metadata"]["table-uuid"] == made["metadata"]["table-uuid"]


def test_a_create_of_what_was_there_before_is_no_success(
    caller: Caller, way: Way, scene: Scene
) -> None:
    """The same table, by another caller, before: the lost answer was a 409."""
    key = new_key()
    ask = scene.create_table("t")
    scene.direct.done(ask)
    way.break_with(reset_after)
    assert caller.send(*ask, key=key).status_code == 502
    assert caller.send(*ask, key=key).status_code == 409


def test_nor_if_the_catalog_could_not_say_whether_it_was_there(
    caller: Caller, way: Way, scene: Scene
) -> None:
    key = new_key()
    ask = scene.create_table("t")
    scene.direct.done(ask)
    way.break_reads_with(answers(UNAVAILABLE))
    way.break_with(reset_after)
    statuses = [caller.send(*ask, key=key).status_code for _ in range(3)]
    assert statuses[0] == 503
    assert statuses[-1] == 409
    assert 200 not in statuses


def test_what_cannot_be_loaded_can_be_dropped(caller: Caller, scene: Scene) -> None:
    made = scene.direct.done(scene.create_table("t"))
    Path(made["metadata-location"].removeprefix("file:")).unlink()
    assert scene.direct.get(scene.path("tables", "t")).status_code >= 400
    key = new_key()
    for replayed in (None, "true"):
        response = caller.send(*scene.drop_table("t"), key=key)
        assert (response.status_code, response.headers.get(REPLAYED)) == (204, replayed)
    assert scene.tables() == []


def test_a_404_that_is_not_the_catalogs_proves_nothing(
    caller: Caller, way: Way, scene: Scene
) -> None:
    """Say, of a load balancer that knows no route: the table may be there as ever."""
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    ask = scene.drop_table("t")
    way.break_with(answers(UNAVAILABLE))
    assert caller.send(*ask, key=key).status_code == 503
    way.break_reads_with(answers(Answer(404, b"<h1>404</h1>", (("Content-Type", "text/html"),))))
    assert caller.send(*ask, key=key).status_code == 503
    assert scene.tables() == ["t"]
    assert caller.send(*ask, key=key).status_code == 204
    assert scene.tables() == []


@pytest.mark.parametrize("status", [500, 503])
def test_while_the_catalog_cannot_be_read_nothing_is_repeated(
    caller: Caller, way: Way, scene: Scene, rows: Rows, status: int
) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    ask = scene.append("t", 1001)
    way.break_with(answers(UNAVAILABLE))
    assert caller.send(*ask, key=key).status_code == 503
    way.break_reads_with(answers(error(status)))
    assert caller.send(*ask, key=key).status_code == 503
    assert scene.snapshots("t") == []
    assert rows(key)[0]["abandoned"]
    assert caller.send(*ask, key=key).status_code == 200


# --- The examples of the proposal -----------------------------------------------------------


def test_example_1a_without_a_key_a_success_looks_like_a_failure(
    caller: Caller, way: Way, scene: Scene
) -> None:
    scene.direct.done(scene.create_table("my_table"))
    ask = scene.append("my_table", 1)
    way.break_with(answers(UNAVAILABLE, executed=True))
    assert caller.send(*ask).status_code == 503
    retried = caller.send(*ask)
    assert (retried.status_code, error_of(retried)["type"]) == (409, "CommitFailedException")
    assert scene.snapshots("my_table") == [1]  # whose files the client now deletes


def test_example_1b_with_a_key_it_is_a_success(caller: Caller, way: Way, scene: Scene) -> None:
    scene.direct.done(scene.create_table("my_table"))
    key, ask = new_key(), scene.append("my_table", 1)
    way.break_with(answers(UNAVAILABLE, executed=True))
    assert caller.send(*ask, key=key).status_code == 503
    retried = caller.send(*ask, key=key)
    assert retried.status_code == 200
    assert [s["snapshot-id"] for s in retried.json()["metadata"]["snapshots"]] == [1]
    assert scene.snapshots("my_table") == [1]
    assert len(scene.load("my_table")["metadata"]["metadata-log"]) == 1


def test_example_2_a_duplicate_create_table(caller: Caller, way: Way, scene: Scene) -> None:
    ask = scene.create_table("orders")
    first, second = (caller.send(*ask, key="key-xyz") for _ in range(2))
    assert first.status_code == second.status_code == 200
    assert first.json() == second.json()
    assert caller.send(*ask).status_code == 409  # as ever, without one
    assert scene.tables() == ["orders"]
