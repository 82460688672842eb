"""A request with a key, in every state that the key can be in: the branches of the proposal."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support.api_server import wait_for
from support.gateway import REPLAYED, Caller, Scene, Way, error_of, new_key
from support.keyed_catalog import Execute, answers, error, reset_after, reset_before
from support.platform import Failpoints
from support.relay import Answer
from support.tcp_proxy import proxied

StartGateway = Callable[..., Caller]
Rows = Callable[[str], list[dict[str, Any]]]

OWNER = {"action": "set-properties", "updates": {"owner": "ana"}}
UNAVAILABLE = error(503, kind="CommitStateUnknownException")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def failpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Failpoints]:
    monkeypatch.setenv("MORAINE_FAILPOINTS", str(tmp_path))
    points = Failpoints(tmp_path)
    yield points
    points.clear()


class Held:
    """A mutation that stands still at the catalog until it is let go."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, execute: Execute) -> Answer:
        self.arrived.set()
        assert self.go_on.wait(30)
        return execute()


# --- [A] Finalized: replay ------------------------------------------------------------------


def test_a_finalized_key_is_replayed(caller: Caller, way: Way, scene: Scene) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    ask = scene.append("t", 1001)
    first = caller.send(*ask, key=key)
    again = caller.send(*ask, key=key)

    assert first.status_code == again.status_code == 200
    assert first.content == again.content
    assert REPLAYED not in first.headers
    assert again.headers[REPLAYED] == "true"
    for name in ("content-type", "etag"):
        assert again.headers[name] == first.headers[name]
    assert len(way.mutations) == 1
    assert scene.snapshots("t") == [1001]


def test_a_replay_is_of_what_was_answered_then(caller: Caller, scene: Scene) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    ask = scene.append("t", 1001)
    first = caller.send(*ask, key=key)
    scene.direct.done(scene.append("t", 1002))
    assert caller.send(*ask, key=key).content == first.content


def test_a_key_is_another_elsewhere(caller: Caller, way: Way, scene: Scene) -> None:
    """It belongs to a method and a path."""
    key = new_key()
    for ask in (
        scene.create_table("t"),
        scene.create_view("v"),
        scene.drop_view("v"),
    ):
        response = caller.send(*ask, key=key)
        assert response.status_code in (200, 204), response.text
        assert REPLAYED not in response.headers
    assert len(way.mutations) == 3


def test_two_spellings_of_a_path_share_a_key(caller: Caller, way: Way, scene: Scene) -> None:
    key = new_key()
    ask = scene.create_table("t")
    assert caller.send(*ask, key=key).status_code == 200
    spelled = ask.path.replace("tables", "%74ables").replace("n", "%6E", 1)
    for path in (spelled, f"{ask.path}/"):
        response = caller.post(path, ask.body, key=key)
        assert (response.status_code, response.headers[REPLAYED]) == (200, "true")
    # The default catalog by its name is the same one.
    named = Caller(f"{caller.url}/prod").send(*ask, key=key)
    assert (named.status_code, named.headers[REPLAYED]) == (200, "true")
    assert len(way.mutations) == 1


def test_another_spelling_of_a_body_is_the_same_request(
    caller: Caller, way: Way, scene: Scene
) -> None:
    key = new_key()
    ask = scene.create_table("t", properties={"a": "1", "b": "2"})
    assert caller.send(*ask, key=key).status_code == 200
    spelled = json.dumps(dict(reversed(ask.body.items())), indent=2).encode()
    again = caller.post(ask.path, spelled, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    assert len(way.mutations) == 1


# --- [B] In progress ------------------------------------------------------------------------


def test_a_duplicate_in_flight_is_told_to_wait(
    start_gateway: StartGateway, way: Way, scene: Scene, pool: ThreadPoolExecutor
) -> None:
    caller = start_gateway(idempotency={"wait": "0.1s"})
    key, held = new_key(), Held()
    way.break_with(held)
    ask = scene.create_table("t")
    first = pool.submit(caller.send, *ask, key=key)
    assert held.arrived.wait(10)

    duplicate = caller.send(*ask, key=key)
    assert duplicate.status_code == 409
    said = error_of(duplicate)
    assert said["subtype"] == "request_in_progress"
    # What a client that knows no keys would take for a lost race.
    assert said["type"] not in ("AlreadyExistsException", "CommitFailedException")
    assert int(duplicate.headers["Retry-After"]) >= 1

    held.go_on.set()
    assert first.result().status_code == 200
    last = caller.send(*ask, key=key)
    assert (last.status_code, last.headers[REPLAYED]) == (200, "true")
    assert len(way.mutations) == 1


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in another process"])
def test_a_duplicate_gets_the_result_of_the_first_if_that_comes_in_time(
    start_gateway: StartGateway,
    way: Way,
    scene: Scene,
    pool: ThreadPoolExecutor,
    elsewhere: bool,
) -> None:
    callers = [start_gateway(idempotency={"wait": "20s"}) for _ in range(1 + elsewhere)]
    key, held = new_key(), Held()
    way.break_with(held)
    ask = scene.create_table("t")
    first = pool.submit(callers[0].send, *ask, key=key)
    assert held.arrived.wait(10)
    others = [pool.submit(callers[-1].send, *ask, key=key) for _ in range(3)]
    time.sleep(0.2)  # so that they wait; nothing is wrong if they do not
    assert not any(other.done() for other in others)
    held.go_on.set()

    assert REPLAYED not in first.result().headers
    for other in others:
        assert other.result().status_code == 200
        assert other.result().headers[REPLAYED] == "true"
        assert other.result().json() == first.result().json()
    assert len(way.mutations) == 1


def test_who_waits_takes_over_if_the_first_comes_to_nothing(
    start_gateway: StartGateway, way: Way, scene: Scene, pool: ThreadPoolExecutor
) -> None:
    caller = start_gateway(idempotency={"wait": "20s"})
    key, held = new_key(), Held()

    def fail(execute: Execute) -> Answer:
        held(lambda: UNAVAILABLE)
        return UNAVAILABLE

    way.break_with(fail)
    ask = scene.create_table("t")
    first = pool.submit(caller.send, *ask, key=key)
    assert held.arrived.wait(10)
    other = pool.submit(caller.send, *ask, key=key)
    held.go_on.set()
    assert first.result().status_code == 503
    assert other.result().status_code == 200
    assert len(way.executed) == 1


def test_a_long_execution_is_kept_alive(
    start_gateway: StartGateway, way: Way, scene: Scene, pool: ThreadPoolExecutor
) -> None:
    """A heartbeat holds the key far beyond the lease."""
    caller = start_gateway(idempotency={"wait": "0s", "lease": "0.6s"})
    key, held = new_key(), Held()
    way.break_with(held)
    ask = scene.create_table("t")
    first = pool.submit(caller.send, *ask, key=key)
    assert held.arrived.wait(10)
    time.sleep(1.5)
    assert caller.send(*ask, key=key).status_code == 409
    held.go_on.set()
    assert first.result().status_code == 200
    assert len(way.mutations) == 1


# --- [C] Another payload --------------------------------------------------------------------


def test_a_key_with_another_payload_is_refused(caller: Caller, way: Way, scene: Scene) -> None:
    key = new_key()
    assert caller.send(*scene.create_table("t"), key=key).status_code == 200
    other = caller.send(*scene.create_table("u"), key=key)
    assert other.status_code == 422
    assert error_of(other)["subtype"] == "idempotency_key_conflict"
    assert len(way.mutations) == 1
    assert scene.tables() == ["t"]


def test_also_while_the_first_is_in_flight(
    caller: Caller, way: Way, scene: Scene, pool: ThreadPoolExecutor
) -> None:
    key, held = new_key(), Held()
    way.break_with(held)
    first = pool.submit(caller.send, *scene.create_table("t"), key=key)
    assert held.arrived.wait(10)
    assert caller.send(*scene.create_table("u"), key=key).status_code == 422
    held.go_on.set()
    assert first.result().status_code == 200


def test_also_when_the_first_was_abandoned(caller: Caller, way: Way, scene: Scene) -> None:
    key = new_key()
    way.break_with(answers(UNAVAILABLE))
    assert caller.send(*scene.create_table("t"), key=key).status_code == 503
    assert caller.send(*scene.create_table("u"), key=key).status_code == 422
    assert scene.tables() == []


def test_a_drop_that_purges_is_another_request(caller: Caller, way: Way, scene: Scene) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    ask = scene.drop_table("t")
    assert caller.send(*ask, key=key).status_code == 204
    same = caller.delete(f"{ask.path}?purgeRequested=false", key=key)
    assert (same.status_code, same.headers[REPLAYED]) == (204, "true")
    assert caller.delete(f"{ask.path}?purgeRequested=true", key=key).status_code == 422
    assert len(way.mutations) == 1


def test_snapshot_ids_that_are_one_double_are_two_requests(
    caller: Caller, way: Way, scene: Scene
) -> None:
    scene.direct.done(scene.create_table("t"))
    key, number = new_key(), 3497810964824022504
    ask = scene.append("t", number)
    other = json.loads(json.dumps(ask.body).replace(str(number), str(number + 1)))
    assert caller.send(*ask, key=key).status_code == 200
    assert caller.post(ask.path, other, key=key).status_code == 422
    assert scene.snapshots("t") == [number]


# --- [D] Reserve, execute, finalize ---------------------------------------------------------


def test_a_new_key_is_reserved_executed_and_finalized(
    caller: Caller, way: Way, scene: Scene, rows: Rows, pool: ThreadPoolExecutor
) -> None:
    key, held = new_key(), Held()
    way.break_with(held)
    ask = scene.create_table("t")
    first = pool.submit(caller.send, *ask, key=key)
    assert held.arrived.wait(10)
    [reserved] = rows(key)
    assert (reserved["http_status"], reserved["attempts"]) == (None, 1)
    assert reserved["owner"]
    assert not reserved["abandoned"]
    assert reserved["realm_id"] == "demo"
    assert reserved["method"] == "POST"
    assert reserved["resource_path"] == f"/catalog/prod/v1/{ask.path}"
    assert len(reserved["payload_hash"]) == 64
    held.go_on.set()
    assert first.result().status_code == 200
    [finalized] = rows(key)
    assert (finalized["http_status"], finalized["owner"]) == (200, None)
    assert finalized["payload_hash"] == reserved["payload_hash"]
    [sent] = way.mutations
    assert sent.header("Idempotency-Key") == ""  # it is the gateway's affair


# --- [E] Errors -----------------------------------------------------------------------------


def test_a_404_is_final(caller: Caller, way: Way, scene: Scene) -> None:
    key = new_key()
    ask = scene.drop_table("t")
    first = caller.send(*ask, key=key)
    assert first.status_code == 404
    scene.direct.done(scene.create_table("t"))
    again = caller.send(*ask, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (404, "true")
    assert again.content == first.content
    assert error_of(again)["type"] == "NoSuchTableException"
    assert scene.tables() == ["t"]
    assert len(way.mutations) == 1


def test_a_409_is_final(caller: Caller, way: Way, scene: Scene) -> None:
    key = new_key()
    ask = scene.create_table("t")
    scene.direct.done(ask)
    first = caller.send(*ask, key=key)
    assert (first.status_code, error_of(first)["type"]) == (409, "AlreadyExistsException")
    scene.direct.done(scene.drop_table("t"))
    again = caller.send(*ask, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (409, "true")
    assert again.content == first.content
    assert scene.tables() == []
    assert len(way.mutations) == 1


def test_a_commit_that_lost_its_race_stays_lost(caller: Caller, scene: Scene) -> None:
    key = new_key()
    scene.direct.done(scene.create_table("t"))
    ask = scene.append("t", 1001)
    scene.direct.done(scene.append("t", 1002))
    for replayed in (None, "true"):
        response = caller.send(*ask, key=key)
        assert (response.status_code, response.headers.get(REPLAYED)) == (409, replayed)
        assert error_of(response)["type"] == "CommitFailedException"
    assert scene.snapshots("t") == [1002]


@pytest.mark.parametrize("status", [400, 422])
def test_other_client_errors_are_final(caller: Caller, way: Way, scene: Scene, status: int) -> None:
    key = new_key()
    way.break_with(answers(error(status)))
    ask = scene.create_table("t")
    assert caller.send(*ask, key=key).status_code == status
    again = caller.send(*ask, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (status, "true")
    assert len(way.mutations) == 1


@pytest.mark.parametrize("status", [401, 403, 419, 429])
def test_who_was_turned_away_may_use_the_key_again(
    caller: Caller, way: Way, scene: Scene, rows: Rows, status: int
) -> None:
    key = new_key()
    way.break_with(answers(error(status)))
    ask = scene.create_table("t")
    assert caller.send(*ask, key=key).status_code == status
    assert rows(key) == []
    # Nothing was tried, so it may even be another request now.
    assert caller.send(*scene.create_table("u"), key=key).status_code == 200
    assert scene.tables() == ["u"]


@pytest.mark.parametrize("status", [408, 500, 501, 502, 503, 504])
def test_what_is_not_final_is_passed_on_and_not_kept(
    caller: Caller, way: Way, scene: Scene, rows: Rows, status: int
) -> None:
    key = new_key()
    failure = error(status, kind="SomeThing")
    way.break_with(answers(failure))
    ask = scene.create_table("t")
    first = caller.send(*ask, key=key)
    assert (first.status_code, first.content) == (status, failure.body)
    [row] = rows(key)
    assert row["abandoned"]
    assert (row["http_status"], row["response_body"], row["owner"]) == (None, None, None)
    assert caller.send(*ask, key=key).status_code == 200
    assert scene.tables() == ["t"]


def test_a_catalog_that_is_still_at_it_itself(caller: Caller, way: Way, scene: Scene) -> None:
    """Its own 409 request_in_progress is no outcome."""
    key = new_key()
    way.break_with(answers(error(409, "request_in_progress")))
    ask = scene.create_table("t")
    assert caller.send(*ask, key=key).status_code == 409
    assert caller.send(*ask, key=key).status_code == 200


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
    caller: Caller,
    other_caller: Caller,
    way: Way,
    scene: Scene,
    rows: Rows,
    ledger: str,
    pool: ThreadPoolExecutor,
) -> None:
    """A process that stood still for longer than its lease: meanwhile another has done the work,
    which is why the catalog refuses it to the first. To its caller that must not look like a
    failure."""
    scene.direct.done(scene.create_table("t"))
    key, held, ask = new_key(), Held(), scene.append("t", 1001)
    way.break_with(held)
    first = pool.submit(caller.send, *ask, key=key)
    assert held.arrived.wait(10)
    with psycopg.connect(ledger, autocommit=True) as connection:
        connection.execute(
            "UPDATE idempotency_records SET lease_expires_at = now() WHERE idempotency_key = %s",
            [key],
        )
    second = other_caller.send(*ask, key=key)
    assert second.status_code == 200
    [row] = rows(key)
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
    scene.direct.done(scene.create_table("t", properties={"owner": "somebody else"}))
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


def test_a_drop_of_what_was_made_anew_since(caller: Caller, way: Way, scene: Scene) -> None:
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
    """The same table, by somebody else, before: the lost answer was a 409."""
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
def test_while_nobody_can_look_nothing_is_repeated(
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


# --- Replays that cannot be given -----------------------------------------------------------


def test_a_result_too_large_to_be_kept_is_made_anew(
    start_gateway: StartGateway, way: Way, scene: Scene, rows: Rows
) -> None:
    caller = start_gateway(idempotency={"max_stored_bytes": 100})
    key, ask = new_key(), scene.create_table("t", properties={"note": "x"})
    first = caller.send(*ask, key=key)
    [row] = rows(key)
    assert (row["http_status"], row["response_body"]) == (200, None)
    again = caller.send(*ask, key=key)
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    assert again.json() == first.json()
    # A small one is kept all the same.
    key, ask = new_key(), scene.drop_table("t")
    assert [caller.send(*ask, key=key).status_code for _ in range(2)] == [204, 204]
    assert rows(key)[0]["response_body"] is not None
    assert len(way.mutations) == 2


@pytest.mark.parametrize("kept", [4 << 20, 0], ids=["kept", "too large"])
def test_a_result_that_is_gone_is_not_made_again(
    start_gateway: StartGateway, way: Way, scene: Scene, kept: int
) -> None:
    caller = start_gateway(idempotency={"max_stored_bytes": kept})
    key, ask = new_key(), scene.create_table("t")
    assert caller.send(*ask, key=key).status_code == 200
    scene.direct.done(scene.drop_table("t"))
    again = caller.send(*ask, key=key)
    assert again.status_code == 500
    assert error_of(again)["subtype"] == "idempotency_replay_failed"
    assert scene.tables() == []
    assert len(way.mutations) == 1


@pytest.mark.parametrize("prepare", ["create", "commit"])
def test_a_result_is_gone_even_if_another_table_has_its_name(
    caller: Caller, way: Way, scene: Scene, prepare: str
) -> None:
    if prepare == "commit":
        scene.direct.done(scene.create_table("t"))
    ask = scene.create_table("t") if prepare == "create" else scene.append("t", 1001)
    key = new_key()
    assert caller.send(*ask, key=key).status_code == 200
    scene.direct.done(scene.drop_table("t"))
    scene.direct.done(scene.create_table("t"))
    again = caller.send(*ask, key=key)
    assert again.status_code == 500
    assert error_of(again)["subtype"] == "idempotency_replay_failed"
    assert scene.snapshots("t") == []
    assert len(way.mutations) == 1


# --- Settings -------------------------------------------------------------------------------


def test_with_check_payload_off_the_key_alone_counts(
    start_gateway: StartGateway, way: Way, scene: Scene
) -> None:
    caller = start_gateway(idempotency={"check_payload": False})
    key = new_key()
    first = caller.send(*scene.create_table("t"), key=key)
    other = caller.send(*scene.create_table("u"), key=key)
    assert (other.status_code, other.headers[REPLAYED]) == (200, "true")
    assert other.json() == first.json()
    assert scene.tables() == ["t"]
    assert len(way.mutations) == 1


def test_after_lifetime_and_grace_a_key_is_unknown(
    start_gateway: StartGateway, way: Way, scene: Scene, rows: Rows
) -> None:
    caller = start_gateway(idempotency={"lifetime": "1s", "grace": "1s"})
    key, ask = new_key(), scene.create_table("t")
    assert caller.send(*ask, key=key).status_code == 200
    wait_for(lambda: time.time() > rows(key)[0]["expires_at"].timestamp())
    late = caller.send(*ask, key=key)
    assert late.status_code == 409
    assert REPLAYED not in late.headers
    assert len(way.mutations) == 2
    [row] = rows(key)
    assert (row["http_status"], row["attempts"]) == (409, 1)


def test_who_is_later_than_the_lifetime_of_its_key_writes_down_nothing(
    caller: Caller,
    other_caller: Caller,
    way: Way,
    scene: Scene,
    rows: Rows,
    ledger: str,
    pool: ThreadPoolExecutor,
) -> None:
    """By then the key may be somebody else's."""
    key, late, new = new_key(), Held(), Held()
    way.break_with(late, new)
    first = pool.submit(caller.send, *scene.create_table("t"), key=key)
    assert late.arrived.wait(10)
    with psycopg.connect(ledger, autocommit=True) as connection:
        connection.execute(
            "UPDATE idempotency_records SET expires_at = now() WHERE idempotency_key = %s", [key]
        )
    second = pool.submit(other_caller.send, *scene.create_table("u"), key=key)
    assert new.arrived.wait(10)
    [row] = rows(key)
    late.go_on.set()
    assert first.result().status_code == 200
    assert rows(key) == [row]
    new.go_on.set()
    assert second.result().status_code == 200
    assert other_caller.send(*scene.create_table("u"), key=key).headers[REPLAYED] == "true"
    assert scene.tables() == ["t", "u"]


def test_grace_is_on_top_of_what_is_advertised(
    start_gateway: StartGateway, scene: Scene, rows: Rows
) -> None:
    caller = start_gateway(idempotency={"lifetime": "30m", "grace": "5m"})
    assert caller.get("config").json()["idempotency-key-lifetime"] == "PT30M"
    key = new_key()
    assert caller.send(*scene.create_table("t"), key=key).status_code == 200
    [row] = rows(key)
    assert (row["expires_at"] - row["created_at"]).total_seconds() == 35 * 60


@pytest.mark.parametrize("key", ["", "-", "a b", "x" * 256, "a,b"])
def test_a_malformed_key_is_refused(caller: Caller, way: Way, scene: Scene, key: str) -> None:
    response = caller.send(*scene.create_table("t"), key=key)
    assert (response.status_code, error_of(response)["type"]) == (400, "BadRequestException")
    assert way.mutations == []


def test_the_key_format_can_be_narrowed(start_gateway: StartGateway, scene: Scene) -> None:
    caller = start_gateway(idempotency={"key_format": "uuid7"})
    v4, v7 = "550e8400-e29b-41d4-a716-446655440000", "01980a5c-0000-7000-8000-0000000000ab"
    ask = scene.create_table("t")
    assert caller.send(*ask, key="abc").status_code == 400
    assert caller.send(*ask, key=v4).status_code == 400
    assert caller.send(*ask, key=v7).status_code == 200
    assert caller.send(*ask, key=v7.upper()).headers[REPLAYED] == "true"


def test_with_the_layer_off_the_header_is_the_catalogs_affair(
    start_gateway: StartGateway, way: Way, scene: Scene, rows: Rows
) -> None:
    caller = start_gateway(idempotency={"enabled": False})
    config = caller.get("config").json()
    assert config == scene.direct.get("config").json()
    assert not any("idempotency" in name for name in config)
    key = new_key()
    response = caller.send(*scene.create_table("t"), key=key)
    assert response.status_code == 200
    assert [request.header("Idempotency-Key") for request in way.mutations] == [key]
    assert rows(key) == []
    # Nor does it look at what is in it.
    assert caller.send(*scene.create_view("v"), key="?").status_code == 200


def test_while_the_ledger_is_away(
    start_gateway: StartGateway, ledger: str, way: Way, scene: Scene
) -> None:
    with proxied(ledger) as proxy:
        caller = start_gateway(url=proxy.url)
        assert caller.get("config").json()["idempotency-key-lifetime"] == "PT30M"
        proxy.cut()
        # What is not promised is not asked for.
        config = caller.get("config").json()
        assert config == scene.direct.get("config").json()
        refused = caller.send(*scene.create_table("t"), key=new_key())
        assert refused.status_code == 503
        assert error_of(refused)["type"] == "ServiceUnavailableException"
        assert way.mutations == []
        # Everything else goes on.
        assert caller.send(*scene.create_table("u")).status_code == 200
        assert caller.get(scene.path("tables", "u")).status_code == 200
        assert caller.get(scene.path("tables")).status_code == 200
        proxy.restore()
        wait_for(lambda: "idempotency-key-lifetime" in caller.get("config").json())
        assert caller.send(*scene.create_table("t"), key=new_key()).status_code == 200


def test_a_staged_create_makes_nothing_and_has_no_use_for_a_key(
    caller: Caller, scene: Scene, rows: Rows
) -> None:
    key = new_key()
    ask = scene.create_table("t", **{"stage-create": True})
    for _ in range(2):
        response = caller.send(*ask, key=key)
        assert response.status_code == 200
        assert REPLAYED not in response.headers
    assert rows(key) == []
    assert scene.tables() == []


def test_without_a_key_nothing_is_as_if_there_were_keys(
    caller: Caller, way: Way, scene: Scene
) -> None:
    ask = scene.create_table("t")
    assert [caller.send(*ask).status_code for _ in range(2)] == [200, 409]
    assert len(way.mutations) == 2
