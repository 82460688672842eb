"""The task's states, and every way from one to another."""

from __future__ import annotations

import pytest

from moraine.tasks.model import LEASED, TERMINAL, TRANSITIONS, Status, may_become

SUBMITTED, ACQUIRING, RUNNING, RETRY, SUCCESS, FAILURE = Status

SEED = {
    (SUBMITTED, ACQUIRING),
    (SUBMITTED, RUNNING),
    (ACQUIRING, RUNNING),
    (ACQUIRING, RETRY),
    (ACQUIRING, FAILURE),
    (RUNNING, SUCCESS),
    (RUNNING, RETRY),
    (RUNNING, FAILURE),
    (RETRY, ACQUIRING),
    (RETRY, RUNNING),
}
CANCEL = {(live, FAILURE) for live in (SUBMITTED, ACQUIRING, RUNNING, RETRY)}
RE_DRIVE = {(FAILURE, SUBMITTED)}
TAKE_OVER = {(before, after) for before in (ACQUIRING, RUNNING) for after in (ACQUIRING, RUNNING)}
RETRY_NOW = {(RETRY, RETRY)}

ALLOWED = SEED | CANCEL | RE_DRIVE | TAKE_OVER | RETRY_NOW


@pytest.mark.parametrize("before", Status)
@pytest.mark.parametrize("after", Status)
def test_the_transitions_are_these_and_no_other(before: Status, after: Status) -> None:
    assert may_become(before, after) == ((before, after) in ALLOWED)


def test_success_is_the_end() -> None:
    assert not TRANSITIONS[SUCCESS]


def test_what_is_terminal_and_what_is_leased() -> None:
    assert {status for status in Status if status.terminal} == TERMINAL == {SUCCESS, FAILURE}
    assert {ACQUIRING, RUNNING} == LEASED


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (SUBMITTED, "QUEUED"),
        (ACQUIRING, "ACQUIRING_RESOURCES"),
        (RUNNING, "RUNNING"),
        (RETRY, "RETRY_SCHEDULED"),
        (SUCCESS, "COMPLETED_SUCCESS"),
        (FAILURE, "FAILED_TERMINAL"),
    ],
)
def test_callers_see_the_seeds_names_and_may_use_the_ledgers(status: Status, name: str) -> None:
    assert status.wire == name
    assert Status.from_wire(name) is status
    assert Status.from_wire(status.value) is status
    assert {name, status.value} <= set(Status.names())


def test_a_name_that_is_none() -> None:
    with pytest.raises(KeyError):
        Status.from_wire("DONE")
    assert len(Status.names()) == len(Status) + 3
