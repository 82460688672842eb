"""The loop of the writer and of the Kafka reader: pauses, retries, leases and how it ends."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Set
from datetime import timedelta
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from moraine.errors import LedgerUnavailable, SparkJobFailed, SparkUnavailable
from moraine.ingest.store import WriterStore
from moraine.ingest.writing.job import job_tag
from moraine.ingest.writing.loop import BatchWorker, LeasedLoop, Work

BATCH, LOST = uuid4(), uuid4()


class Store:
    """Renews leases, and has one lost batch to take over."""

    def __init__(self) -> None:
        self.renewed = threading.Event()
        self.lost = [LOST]

    def heartbeat(self, batches: Iterable[UUID]) -> None:
        assert list(batches) == [BATCH]
        self.renewed.set()

    def lose_silent(self) -> list[UUID]:
        lost, self.lost = self.lost, []
        return lost


class Loop(LeasedLoop):
    def __init__(self, *, parallel: int = 2, **work: Work) -> None:
        self.fake = Store()
        super().__init__(
            cast(WriterStore, self.fake),
            [cast(BatchWorker, self)],
            lease=timedelta(seconds=0.08),
            parallel=parallel,
            poll_interval=timedelta(seconds=0.01),
            idle_pause=timedelta(seconds=0.05),
            first_pause=timedelta(seconds=0.1),
            max_pause=timedelta(seconds=10),
        )
        self.work = work
        self.begun: Counter[str] = Counter()
        self.pauses: list[float] = []
        self.interrupted: list[str] = []

    def next_work(self, excluded: Set[str]) -> tuple[str, Work] | None:
        for subject in self.work.keys() - excluded:
            self.begun[subject] += 1
            return subject, self.work[subject]
        return None

    active = frozenset({BATCH})

    def session(self) -> Loop:
        return self

    def interruptTag(self, tag: str) -> None:
        self.interrupted.append(tag)

    def log_failure(self, subject: str, **reason: Any) -> None:
        self.pauses.append(reason["again_in"])


def failing(error: Exception) -> Work:
    def work() -> int:
        raise error

    return work


def slow(seconds: float = 0.01, amount: int = 1) -> Work:
    def work() -> int:
        time.sleep(seconds)
        return amount

    return work


def test_a_failing_subject_pauses_longer_and_longer_and_holds_up_no_other() -> None:
    loop = Loop(bad=failing(SparkJobFailed()), good=slow())
    assert loop.run(60, lambda: len(loop.pauses) >= 3) == loop.begun["good"] > 3
    assert loop.pauses[:3] == [0.1, 0.2, 0.4]
    assert list(loop.errors) == ["bad"]


def test_a_subject_that_succeeds_again_has_no_error_any_more() -> None:
    answers: list[Work] = [failing(LedgerUnavailable()), slow(amount=5)]
    loop = Loop(subject=lambda: answers.pop(0)() if answers else 0)
    assert loop.run(60, lambda: loop.done > 0) == 5
    assert loop.errors == {}


def test_an_idle_subject_is_polled_at_intervals() -> None:
    loop = Loop(idle=slow(0, amount=0))
    begun = time.monotonic()
    assert loop.run(60, lambda: loop.begun["idle"] > 3) == 0
    assert time.monotonic() - begun >= 3 * 0.05


def test_a_subject_is_worked_on_once_at_a_time() -> None:
    loop = Loop(parallel=4, only=slow(0.2))
    assert loop.run(0.1) == 1, "work in progress is completed"
    assert loop.begun["only"] == 1


def test_spark_that_went_away_ends_the_loop() -> None:
    loop = Loop(table=failing(SparkUnavailable()))
    begun = time.monotonic()
    with pytest.raises(SparkUnavailable):
        loop.run(60)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("end", ["stop", "over"])
def test_it_ends_when_it_is_stopped_or_over(end: str) -> None:
    loop = Loop(table=slow())
    is_over: Callable[[], bool] = lambda: end == "over" and loop.done >= 3  # noqa: E731
    if end == "stop":
        threading.Timer(0.1, loop.stop).start()
    assert loop.run(60, is_over) >= 3


def test_leases_are_renewed_while_work_is_slow_and_lost_batches_interrupted() -> None:
    loop = Loop(table=lambda: int(loop.fake.renewed.wait(10)))
    assert loop.run(0.1) >= 1
    assert loop.interrupted == [job_tag(LOST)]
