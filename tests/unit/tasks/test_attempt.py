"""The heartbeat beside the work: what it carries, what stops the work, and what does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import cast

import pytest

from moraine.errors import Cancelled, LeaseLost
from moraine.tasks.store import TaskStore
from moraine.tasks.worker import Attempt

from .fakes import FakeStore, a_task

SOON = timedelta(milliseconds=5)
NEVER = timedelta(hours=1)


def attempt_at(store: FakeStore, interval: timedelta = SOON) -> Attempt:
    return Attempt(cast(TaskStore, store), store.claim, interval)


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_attempt() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


class Interrupted(Exception):
    """What the work raises when it is interrupted in a call that blocks."""


def run(attempt: Attempt, work: Callable[[Attempt], object]) -> None:
    with attempt:
        work(attempt)


def work_until_interrupted(attempt: Attempt) -> None:
    pulled = threading.Event()
    attempt.on_stop(pulled.set)
    assert pulled.wait(timeout=10), "the work was not interrupted"
    raise Interrupted


@pytest.mark.parametrize(
    ("answer", "expected"), [(True, Cancelled), (LeaseLost("gone"), LeaseLost)]
)
def test_attempt_is_interrupted_and_ended_by_a_cancel_or_a_lost_lease(
    answer: bool | Exception, expected: type[Exception]
) -> None:
    store = FakeStore(a_task(), False, False, answer)
    with pytest.raises(expected) as stopped:
        run(attempt_at(store), work_until_interrupted)
    assert isinstance(stopped.value.__cause__, Interrupted)
    assert len(store.beats) == 3, "nothing is beaten after the end"


def test_attempt_that_is_not_interruptible_still_ends_with_the_stop() -> None:
    store = FakeStore(a_task(), False, True)
    with pytest.raises(Cancelled), attempt_at(store):
        store.wait_for(lambda beats: len(beats) >= 2)


def test_attempt_tells_work_that_asks_whether_to_stop() -> None:
    def work(attempt: Attempt) -> None:
        stopped = threading.Event()
        attempt.on_stop(stopped.set)
        stopped.wait(timeout=10)
        attempt.check()

    lost = LeaseLost("gone")
    with pytest.raises(LeaseLost) as raised:
        run(attempt_at(FakeStore(a_task(), False, lost)), work)
    assert raised.value is lost
    assert lost.__cause__ is None, "the work itself raised it"


@pytest.mark.parametrize("answer", [True, LeaseLost("gone")])
def test_attempt_does_not_begin_work_when_it_is_already_over(answer: bool | Exception) -> None:
    begun: list[Attempt] = []
    with pytest.raises((Cancelled, LeaseLost)):
        run(attempt_at(FakeStore(a_task(), answer)), begun.append)
    assert not begun


def test_attempt_interrupts_a_late_subscriber_at_once() -> None:
    late = threading.Event()

    def work(attempt: Attempt) -> None:
        first = threading.Event()
        attempt.on_stop(first.set)
        first.wait(timeout=10)
        attempt.on_stop(late.set)

    with pytest.raises(Cancelled):
        run(attempt_at(FakeStore(a_task(), False, True)), work)
    assert late.is_set()


def test_attempt_calls_the_other_interrupts_if_one_fails() -> None:
    def fail() -> None:
        raise OSError("Spark is gone")

    def work(attempt: Attempt) -> None:
        attempt.on_stop(fail)
        work_until_interrupted(attempt)

    with pytest.raises(Cancelled) as stopped:
        run(attempt_at(FakeStore(a_task(), False, True)), work)
    assert isinstance(stopped.value.__cause__, Interrupted)


def test_attempt_does_not_take_a_silent_ledger_for_a_lost_lease() -> None:
    store = FakeStore(a_task())
    store.down = True
    interrupted = threading.Event()
    attempt = attempt_at(store)
    with attempt:
        attempt.on_stop(interrupted.set)
        store.wait_for(lambda beats: len(beats) >= 4)
        attempt.check()
    assert not interrupted.is_set()


def test_attempt_keeps_progress_while_the_ledger_is_away() -> None:
    store = FakeStore(a_task())
    attempt = attempt_at(store)
    with attempt:
        store.down = True
        attempt.report(files=7)
        store.wait_for(lambda beats: beats.count({"files": 7}) >= 3)
        store.down = False
        met = len(store.beats)
        store.wait_for(lambda beats: len(beats) >= met + 3)
    assert store.written == [{"files": 7}], "it is written, and once it is it is not carried again"


def test_attempt_writes_only_the_newest_progress_after_the_ledger_was_away() -> None:
    store = FakeStore(a_task())
    attempt = attempt_at(store)
    with attempt:
        store.down = True
        attempt.report(files=7)
        store.wait_for(lambda beats: {"files": 7} in beats)
        attempt.report(files=8)
        store.wait_for(lambda beats: {"files": 8} in beats)
        store.down = False
    assert store.written == [{"files": 8}]


def test_attempt_reports_progress_once_and_the_newest_wins() -> None:
    store = FakeStore(a_task())
    attempt = attempt_at(store, NEVER)
    with attempt:
        attempt.report(files=1)
        attempt.report(files=2)
    assert store.beats == [None, {"files": 2}]


def test_attempt_without_news_ends_without_a_heartbeat() -> None:
    store = FakeStore(a_task())
    with attempt_at(store, NEVER):
        pass
    assert store.beats == [None]


def test_attempt_obeys_a_stop_that_the_last_heartbeat_finds() -> None:
    store = FakeStore(a_task(), False, True)
    attempt = attempt_at(store, NEVER)
    with pytest.raises(Cancelled), attempt:
        attempt.report(files=1)


def test_attempt_heartbeat_goes_on_if_progress_cannot_be_written() -> None:
    store = FakeStore(a_task())
    attempt = attempt_at(store)
    with attempt:
        attempt.report(files=object())
        store.wait_for(lambda beats: any(beats) and beats[-1] is None)
        attempt.report(files=1)
    assert store.written == [{"files": 1}]


def test_attempt_raises_the_error_of_the_work_as_it_is() -> None:
    with pytest.raises(Interrupted) as raised, attempt_at(FakeStore(a_task())):
        raise Interrupted
    assert raised.value.__cause__ is None


def test_attempt_heartbeat_never_names_the_version_before_the_start() -> None:
    store = FakeStore(a_task())
    store.start_takes = 0.05
    attempt = attempt_at(store, timedelta(milliseconds=1))
    with attempt:
        attempt.start()
        begun = len(store.beats)
        store.wait_for(lambda beats: len(beats) > begun + 1)
    assert attempt.claim.version == store.task.version == 3
