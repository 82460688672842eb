"""How fast requests are sent to a store that throttles them."""

import pytest

from moraine.storage.sending import Pace


def test_places_are_limited_and_given_back() -> None:
    pace = Pace()
    assert [pace.take(0, 3) for _ in range(3)] == [0, 0, 0]
    assert pace.take(0, 3) > 0
    pace.give_back()
    assert pace.take(0, 3) == 0


def test_a_throttled_answer_halves_the_places_and_starts_a_pause() -> None:
    pace = Pace(chance=lambda: 0.5)
    pace.slow_down(now=10, taken_at=9)
    assert pace.share == 0.5
    assert pace.take(10, 8) == pytest.approx(pace.pause)
    for number in range(4):
        assert pace.take(11 + number, 8) == 0
        assert pace.take(11 + number, 8) == pytest.approx(pace.pause), "not two at once"
    assert pace.take(20, 8) > 0, "four of eight places are left"


def test_answers_to_what_was_sent_before_slow_nothing_down_again() -> None:
    pace = Pace()
    for _ in range(4):
        pace.slow_down(now=10, taken_at=9)
    assert pace.share == 0.5
    pace.slow_down(now=12, taken_at=11)
    assert pace.share == 0.25


def test_pauses_grow_up_to_a_limit_and_one_place_always_stays() -> None:
    pace = Pace(chance=lambda: 0.5)
    pauses = []
    for at in range(30):
        pace.slow_down(now=100 * at + 1, taken_at=100 * at)
        pauses.append(pace.pause)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pauses[-2] == 10
    assert pace.take(10_000, 4) == 0
    pace.give_back()


def test_success_gives_speed_back_slowly() -> None:
    pace = Pace()
    for at in range(4):
        pace.slow_down(now=100 * at + 1, taken_at=100 * at)
    pace.speed_up(500)
    assert pace.share < 0.2
    assert pace.pause > 0
    for _ in range(30):
        pace.speed_up(500)
    assert (pace.share, pace.pause) == (1, 0)


def test_time_without_progress_starts_with_the_request_or_the_last_success() -> None:
    pace = Pace()
    assert pace.idle(now=50, since=20) == 30
    pace.speed_up(45)
    assert pace.idle(now=50, since=20) == 5
    assert pace.idle(now=50, since=48) == 2
