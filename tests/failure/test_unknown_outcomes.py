"""Engines whose commit was under way when a gateway was killed, or whose catalog is slow, with the
default settings: each statement succeeds, is done once, and leaves a table that can be read.

A lost owner is waited for as long as its lease is, so all statements go on at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moraine.local.stack import Stack
from support.balancer import Balancer
from support.gateway import ApiProcess, Caller, Scene, Way, running_gateway
from support.keyed_catalog import UNAVAILABLE, Held
from support.platform import Failpoints
from support.relay import Answer, Forward, Request
from support.s3_catalog import add_catalog
from support.statements import (
    APPEND,
    ON_DISK,
    STATEMENTS,
    UPDATE,
    Place,
    Statement,
    connect,
)
from support.waiting import PATIENCE, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TAKEN_OVER = "idempotency.taken_over"
POINTS = ["idempotency.reserved", "idempotency.executed", "idempotency.finalized", TAKEN_OVER]
SLOW = {"update": UPDATE, "pyiceberg append": APPEND}


@dataclass
class Trial:
    """A statement on a table of its own."""

    statement: Statement
    at: Place
    table: str
    ended: Future[None] = field(default_factory=Future)
    statuses: list[int] = field(default_factory=list)
    """What its client was answered, one after the other."""

    def begin(self, pool: ThreadPoolExecutor) -> None:
        self.ended = pool.submit(self.statement.run, self.at, self.table)

    def check(self) -> None:
        self.statement.check(self.at, self.table)
        assert self.ended.exception() is None


Trials = dict[str, Trial]


class LosesAnswers(Way):
    """The catalog does what it is asked to, and the client must ask what came of it."""

    def answer(self, request: Request, forward: Forward) -> Answer:
        answer = super().answer(request, forward)
        is_staged = b'"stage-create":true' in request.body
        return UNAVAILABLE if request.method == "POST" and not is_staged else answer


class Engines:
    """Spark and PyIceberg before a real catalog, and what stands between."""

    def __init__(self, stack: Stack, spark: SparkSession, folder: Path) -> None:
        self.catalog = stack.catalog.url
        self.ledger = stack.environment()["MORAINE_LEDGER__URL"]
        self._spark = spark
        self._folder = folder
        self._direct = connect(self.catalog)

    def place(self, name: str, balancer: Balancer) -> Place:
        uri = f"{balancer.url}/catalog"
        add_catalog(self._spark, name, uri, ON_DISK)
        return Place(self._spark, name, uri, Scene(Caller(self.catalog), name), self._direct)

    def prepare(self, at: Place, statements: dict[str, Statement]) -> Trials:
        trials = {}
        for number, (name, statement) in enumerate(statements.items()):
            trials[name] = Trial(statement, at, f"t{number}")
            statement.prepare(at, f"t{number}")
        return trials

    def killed_at(self, point: str, survivor: str) -> Trials:
        """All statements come to the point, where their gateway is killed."""
        name = point.replace(".", "_")
        folder = self._folder / name
        failpoints = Failpoints(folder / "failpoints")
        failpoints.folder.mkdir(parents=True)
        with ExitStack() as stack:
            kind = LosesAnswers if point == TAKEN_OVER else Way
            way = stack.enter_context(kind(self.catalog))
            api = ApiProcess(folder, self.ledger, way.url, failpoints=str(failpoints.folder))
            process = stack.enter_context(api.running())
            balancer = stack.enter_context(Balancer(api.url, survivor))
            trials = self.prepare(self.place(name, balancer), STATEMENTS)
            pool = stack.enter_context(ThreadPoolExecutor(len(trials)))
            stack.callback(process.kill)  # lets go what is held, if something else fails
            for trial in trials.values():
                failpoints.hold_at(point)
                trial.begin(pool)
                wait_for(
                    lambda trial=trial: not failpoints.armed(point) or trial.ended.done(),
                    "the statement does not come to the point",
                )
                assert not trial.ended.done(), trial.ended.exception()
            process.kill()
            for trial in trials.values():
                trial.ended.exception()
        return trials

    def slow(self) -> Trials:
        """The balancer gives up on a commit that is at the catalog, and the catalog answers only
        after a repetition has been told that it is in progress."""
        with ExitStack() as stack:
            way = stack.enter_context(Way(self.catalog))
            gateway = stack.enter_context(running_gateway(self.ledger, {"prod": way.url}))
            balancer = stack.enter_context(Balancer(gateway))
            trials = self.prepare(self.place("slow", balancer), SLOW)
            pool = stack.enter_context(ThreadPoolExecutor(len(trials)))
            held: dict[str, Held] = {}
            for name, trial in trials.items():
                held[name] = Held()
                way.break_with(held[name])
                balancer.give_up_on_the_next(held[name].arrived)
                trial.begin(pool)
                assert held[name].arrived.wait(PATIENCE)
            for name, trial in trials.items():
                wait_for(
                    lambda trial=trial: 503 in balancer.statuses(trial.table) or trial.ended.done(),
                    "no repetition was answered",
                )
                held[name].go_on.set()
            for trial in trials.values():
                trial.ended.exception()
                trial.statuses = balancer.statuses(trial.table)
        return trials


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    from pyspark.sql import SparkSession

    with Stack.ephemeral(tmp_path_factory.mktemp("stack")) as stack:
        stack.up({"postgres", "catalog", "spark"})
        spark = SparkSession.builder.remote(stack.spark.client_url).create()
        yield Engines(stack, spark, tmp_path_factory.mktemp("engines"))
        spark.stop()


@pytest.fixture(scope="module")
def trials(engines: Engines) -> dict[str, Trials]:
    with (
        running_gateway(engines.ledger, {"prod": engines.catalog}) as survivor,
        ThreadPoolExecutor(len(POINTS) + 1) as pool,
    ):
        running = {point: pool.submit(engines.killed_at, point, survivor) for point in POINTS}
        running["slow"] = pool.submit(engines.slow)
        return {name: one.result() for name, one in running.items()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("point", POINTS)
def test_engine_commits_while_the_gateway_is_killed(
    trials: dict[str, Trials], point: str, name: str
) -> None:
    trials[point][name].check()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SLOW)
def test_engine_commits_to_a_catalog_slower_than_a_duplicate_waits(
    trials: dict[str, Trials], name: str
) -> None:
    trials["slow"][name].check()
    first, *waited, last = trials["slow"][name].statuses
    assert (first, set(waited), last) == (504, {503}, 200)
