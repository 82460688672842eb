"""The branches of the proposal: a key in progress, of another request or new, and final errors."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from moraine.local.stack import Stack
from support.gateway import REPLAYED, Ask, Caller, Scene, Way, error_of, new_key
from support.gateway_fixtures import Rows, StartGateway
from support.keyed_catalog import UNAVAILABLE, Execute, Held, answers, error
from support.relay import Answer
from support.waiting import wait_for

# --- [B] In progress ------------------------------------------------------------------------


def asks_of_every_kind(scene: Scene) -> list[Ask]:
    for name in ("one", "two", "three", "old", "gone"):
        scene.direct.done(scene.create_table(name))
    scene.direct.done(scene.create_view("view"))
    return [
        scene.append("one", 1001),
        scene.transaction(scene.appended("two", 1002), scene.appended("three", 1003)),
        scene.create_table("new"),
        scene.rename_table("old", "renamed"),
        scene.drop_table("gone"),
        scene.replace_view("view", 2),
        scene.create_namespace("below"),
        scene.update_namespace([], owner="me"),
    ]


def test_a_duplicate_in_flight_is_not_told_that_it_failed(
    start_gateway: StartGateway, way: Way, scene: Scene
) -> None:
    """The first is alive, and at work for longer than its lease and than a duplicate waits."""
    caller = start_gateway(idempotency={"lease": "3s", "wait": "5s"})
    asks, flights, held = asks_of_every_kind(scene), [], []
    with ThreadPoolExecutor(2 * len(asks)) as pool:
        for ask in asks:
            held.append(Held())
            way.break_with(held[-1])
            key = new_key()
            flights.append((ask, key, pool.submit(caller.send, *ask, key=key)))
            assert held[-1].arrived.wait(60)

        duplicates = [pool.submit(caller.send, *ask, key=key) for ask, key, _ in flights]
        for duplicate in (one.result() for one in duplicates):
            # What Iceberg's clients take for unknown, and repeat.
            assert duplicate.status_code == 503
            said = error_of(duplicate)
            assert (said["type"], said["subtype"]) == (
                "RequestInProgressException",
                "request_in_progress",
            )
            assert int(duplicate.headers["Retry-After"]) >= 1

        for one in held:
            one.go_on.set()
        for ask, key, first in flights:
            assert first.result().status_code in (200, 204)
            last = caller.send(*ask, key=key)
            assert last.status_code == first.result().status_code
            assert last.headers[REPLAYED] == "true"
    assert len(way.mutations) == len(asks)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "in another process"])
def test_a_duplicate_gets_the_result_of_the_first_if_that_comes_in_time(
    start_gateway: StartGateway,
    way: Way,
    scene: Scene,
    pool: ThreadPoolExecutor,
    elsewhere: bool,
) -> None:
    callers = [start_gateway() for _ in range(1 + elsewhere)]
    key, held = new_key(), Held()
    way.break_with(held)
    ask = scene.create_table("t")
    first = pool.submit(callers[0].send, *ask, key=key)
    assert held.arrived.wait(60)
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
    caller = start_gateway()
    key, held = new_key(), Held()

    def fail(execute: Execute) -> Answer:
        held(lambda: UNAVAILABLE)
        return UNAVAILABLE

    way.break_with(fail)
    ask = scene.create_table("t")
    first = pool.submit(caller.send, *ask, key=key)
    assert held.arrived.wait(60)
    other = pool.submit(caller.send, *ask, key=key)
    time.sleep(0.5)  # so that it waits by now
    held.go_on.set()
    assert first.result().status_code == 503
    assert other.result().status_code == 200
    assert len(way.executed) == 1


def test_a_heartbeat_goes_on_after_an_error(
    start_gateway: StartGateway,
    way: Way,
    scene: Scene,
    pool: ThreadPoolExecutor,
    postgres: Stack,
    ledger_url: str,
) -> None:
    """A ledger that was read-only for a while, as after a failover, has its heartbeats again."""
    caller = start_gateway(url=ledger_url, idempotency={"lease": "1.5s"})
    held, ask = Held(), scene.create_table("t")
    way.break_with(held)
    first = pool.submit(caller.send, *ask, key=new_key())
    assert held.arrived.wait(60)

    with psycopg.connect(postgres.postgres.admin_url, autocommit=True) as admin:

        def set_read_only(value: str) -> None:
            database = ledger_url.rpartition("/")[2]
            admin.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = {value}")
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s",
                [database],
            )

        def is_alive() -> bool:
            query = "SELECT lease_expires_at > now() FROM idempotency_records"
            with psycopg.connect(ledger_url) as ledger:
                [(alive,)] = ledger.execute(query).fetchall()
            return bool(alive)

        assert is_alive()
        set_read_only("on")
        wait_for(lambda: not is_alive(), "it was written to")
        set_read_only("off")
        wait_for(is_alive, "no heartbeat comes any more")
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
    assert held.arrived.wait(60)
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
    assert held.arrived.wait(60)
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
    """Its own 409 request_in_progress is no outcome, and is not told to a client as one."""
    key = new_key()
    way.break_with(answers(error(409, "request_in_progress")))
    ask = scene.create_table("t")
    told = caller.send(*ask, key=key)
    assert (told.status_code, error_of(told)["subtype"]) == (503, "request_in_progress")
    assert caller.send(*ask, key=key).status_code == 200
