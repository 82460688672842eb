"""The task's states, and every way from one to another."""

from __future__ import annotations

import pytest

from moraine.tasks.model import LEASED, STATUS_BY_NAME, TERMINAL, TRANSITIONS, Status

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
def test_task_state_transitions_are_these_and_no_other(before: Status, after: Status) -> None:
    assert (after in TRANSITIONS[before]) == ((before, after) in ALLOWED)


def test_task_state_succeeded_has_no_successor() -> None:
    assert not TRANSITIONS[SUCCESS]


def test_task_states_that_are_terminal_or_leased() -> None:
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
def test_task_state_is_shown_by_its_public_name_and_accepted_by_both(
    status: Status, name: str
) -> None:
    assert status.wire == name
    assert STATUS_BY_NAME[name] is status
    assert STATUS_BY_NAME[status.value] is status


def test_task_state_has_no_other_names() -> None:
    assert "DONE" not in STATUS_BY_NAME
    assert len(STATUS_BY_NAME) == len(Status) + 3
