"""kill -9 of the process that serves the gateway, while requests with keys stand at every point
where one can be lost; and one request fifty times at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import requests

from support.gateway import REPLAYED, ApiProcess, Ask, Caller, Scene, Way, new_key
from support.keyed_catalog import Execute, answers, error
from support.platform import Failpoints
from support.relay import Answer

Rows = Callable[[str], list[dict[str, Any]]]
Prepare = Callable[[Scene], Ask]

POINTS = [
    "idempotency.reserved",
    "idempotency.executed",
    "idempotency.finalized",
    "idempotency.taken_over",
]
# What became of the first attempt, before the one that takes over is killed.
TAKEN_OVER = {"not applied": answers(error(503)), "applied": answers(error(503), executed=True)}


@pytest.fixture(scope="module")
def failpoints(tmp_path_factory: pytest.TempPathFactory) -> Failpoints:
    return Failpoints(tmp_path_factory.mktemp("failpoints"))


@pytest.fixture(scope="module")
def api(
    tmp_path_factory: pytest.TempPathFactory, ledger: str, running_way: Way, failpoints: Failpoints
) -> ApiProcess:
    return ApiProcess(
        tmp_path_factory.mktemp("api"),
        ledger,
        running_way.url,
        failpoints=str(failpoints.folder),
        idempotency__lease="1s",
        idempotency__wait="20s",
    )


@pytest.fixture
def caller(api: ApiProcess) -> Caller:
    return Caller(api.url)


@pytest.fixture(autouse=True)
def _disarmed(failpoints: Failpoints) -> Iterator[None]:
    yield
    failpoints.clear()


def create(scene: Scene) -> Ask:
    return scene.create_table("t", properties={"owner": "ana"})


def commit(scene: Scene) -> Ask:
    scene.direct.done(scene.create_table("t"))
    return scene.append("t", 1001)


def drop(scene: Scene) -> Ask:
    scene.direct.done(scene.create_table("t"))
    return scene.drop_table("t")


OPERATIONS: dict[str, Prepare] = {"create": create, "commit": commit, "drop": drop}


class Lost:
    """A request that was at a point when its process was killed."""

    def __init__(self, point: str, name: str, direct: Caller) -> None:
        self.point = point
        self.name = name
        self.key = new_key()
        self.scene = Scene(direct)
        self.ask = OPERATIONS[name](self.scene)
        self.before = self.scene.state()
        self.answer: Future[requests.Response] = Future()

    def check_done_once(self, caller: Caller, way: Way) -> None:
        """Asked for again, it is answered as if nothing had happened, and is there once."""
        found = self.scene.state()
        seen = len(self._sent(way))
        again = caller.send(*self.ask, key=self.key)
        label = (self.name, self.point, again.text)
        assert again.status_code == (204 if self.name == "drop" else 200), label
        after = self.scene.state()
        assert after != self.before, label
        if found != self.before:
            # It was there already, so nothing more was asked of the catalog.
            assert after == found, label
            assert len(self._sent(way)) == seen, label
            assert again.headers[REPLAYED] == "true", label
        executed = [request for request in way.executed if request in self._sent(way)]
        assert len(executed) == 1, label
        if self.name == "drop":
            assert self.scene.tables() == [], label
        else:
            assert self.scene.tables() == ["t"], label
            loaded = self.scene.load("t")
            assert again.json()["metadata-location"] == loaded["metadata-location"], label
            assert len(loaded["metadata"]["metadata-log"]) == (self.name == "commit"), label
        last = caller.send(*self.ask, key=self.key)
        assert (last.status_code, last.headers[REPLAYED]) == (again.status_code, "true"), label
        assert self.scene.state() == after, label

    def _sent(self, way: Way) -> list[Any]:
        path = f"/v1/{self.ask.path}"
        return [r for r in way.mutations if r.method == self.ask.method and r.target == path]


@pytest.mark.parametrize("name", OPERATIONS)
def test_gateway_killed_at_every_point(
    name: str, api: ApiProcess, caller: Caller, way: Way, direct: Caller, failpoints: Failpoints
) -> None:
    lost: list[Lost] = []
    with api.running() as process, ThreadPoolExecutor(8) as pool:

        def bring_to(point: str, label: str) -> None:
            one = Lost(label, name, direct)
            if label in TAKEN_OVER:
                way.break_with(TAKEN_OVER[label])
                assert caller.send(*one.ask, key=one.key).status_code == 503
            failpoints.hold_at(point)
            one.answer = pool.submit(caller.send, *one.ask, key=one.key)
            failpoints.wait_until_hit(point)
            lost.append(one)

        for point in POINTS[:3]:
            bring_to(point, point)
        for label in TAKEN_OVER:
            bring_to(POINTS[3], label)
        process.kill()
        process.wait()
        for one in lost:
            assert isinstance(one.answer.exception(), requests.ConnectionError)
    failpoints.clear()
    with api.running():
        for one in lost:
            one.check_done_once(caller, way)


def test_gateway_request_killed_at_every_point_in_turn(
    api: ApiProcess, caller: Caller, way: Way, direct: Caller, failpoints: Failpoints, rows: Rows
) -> None:
    """Reserved; taken over; executed, and not written down; found, and not answered."""
    lost = Lost("all of them", "commit", direct)
    for point in [POINTS[0], POINTS[3], POINTS[1], POINTS[2]]:
        failpoints.kill_at(point)
        with api.running(), pytest.raises(requests.ConnectionError):
            caller.send(*lost.ask, key=lost.key)
        assert failpoints.hit(point)
        failpoints.clear()
    assert [(row["http_status"], row["attempts"]) for row in rows(lost.key)] == [(200, 4)]
    with api.running():
        lost.check_done_once(caller, way)


def test_gateway_executes_fifty_concurrent_duplicates_once(
    api: ApiProcess, caller: Caller, way: Way, direct: Caller, rows: Rows
) -> None:
    together = threading.Barrier(50)
    arrived = threading.Event()
    scene = Scene(direct)
    ask, key = commit(scene), new_key()

    def slowly(execute: Execute) -> Answer:
        arrived.wait(0.5)  # so that the others find it in progress
        return execute()

    way.break_with(slowly)

    def send(_: int) -> requests.Response:
        together.wait()
        return caller.send(*ask, key=key)

    with api.running(), ThreadPoolExecutor(50) as pool:
        responses = list(pool.map(send, range(50)))
    assert {response.status_code for response in responses} == {200}
    assert len({response.content for response in responses}) == 1
    assert sum(REPLAYED not in response.headers for response in responses) == 1
    assert len(way.executed) == 1
    assert scene.snapshots("t") == [1001]
    assert len(scene.load("t")["metadata"]["metadata-log"]) == 1
    assert [row["attempts"] for row in rows(key)] == [1]
