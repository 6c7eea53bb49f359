"""When a rank is saved and when it went on, with times that the tests make up."""

import pytest

from zprof.collectors.record.watch.watcher import StallAction, StallDetector

LIMIT = 10
NOBODY: frozenset[str] = frozenset()
SAVE, RESUME = StallAction.SAVE, StallAction.RESUME


def test_a_rank_that_moves_is_left_alone() -> None:
    detector = StallDetector(LIMIT, 0)
    assert [detector.observe(now, now // 9, NOBODY) for now in range(100)] == [None] * 100


def test_a_stall_is_saved_once_and_ends_with_the_next_progress() -> None:
    detector = StallDetector(LIMIT, 0)
    seen = {now: detector.observe(now, "late" if now >= 25 else "early", NOBODY) for now in range(34)}
    assert {now: action for now, action in seen.items() if action} == {10: SAVE, 25: RESUME}
    assert detector.observe(35, "late", NOBODY) is SAVE, "the next stall counts from the last progress"


def test_the_time_of_a_stall_counts_from_the_last_progress() -> None:
    detector = StallDetector(LIMIT, 0)
    detector.observe(3, "a", NOBODY)
    assert detector.get_stall_ns(20) == 17


def test_a_rank_that_moves_is_saved_once_for_others() -> None:
    detector = StallDetector(LIMIT, 0)
    asked = frozenset({"rank 3, first"})
    actions = [detector.observe(now, now, asked if 5 <= now < 9 else NOBODY) for now in range(20)]
    assert actions == [None] * 5 + [SAVE] + [None] * 3 + [RESUME] + [None] * 10


def test_a_rank_saved_for_others_is_saved_again_when_it_stops_too() -> None:
    detector = StallDetector(LIMIT, 0)
    asked = frozenset({"rank 3, first"})
    assert detector.observe(1, "a", asked) is SAVE
    assert [detector.observe(now, "a", asked) for now in range(2, 13)][-2:] == [SAVE, None]


@pytest.mark.parametrize("still_asked", [True, False])
def test_a_rank_that_went_on_is_not_saved_again_for_the_same_stall(still_asked: bool) -> None:
    """Two ranks wait for each other and go on together: one of them notices first."""
    detector = StallDetector(LIMIT, 0)
    other = frozenset({"rank 1, first"})
    assert [detector.observe(now, "a", other if now > 10 else NOBODY) for now in range(1, 13)].count(
        SAVE
    ) == 1
    assert detector.observe(13, "b", other) is RESUME
    assert detector.observe(14, "c", other if still_asked else NOBODY) is None
    assert detector.observe(15, "d", frozenset({"rank 1, second"})) is SAVE


def test_a_rank_is_saved_again_for_others_that_stay_stuck_after_its_own_stall() -> None:
    detector = StallDetector(LIMIT, 0)
    other = frozenset({"rank 1, first"})
    for now in range(1, 13):
        detector.observe(now, "a", other if now > 10 else NOBODY)
    actions = [detector.observe(now, now, other) for now in range(13, 40)]
    assert (actions[0], [each for each in actions[1:] if each]) == (RESUME, [SAVE])
    assert actions.index(SAVE) == LIMIT
