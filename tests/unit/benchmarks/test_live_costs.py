"""The cost of the live view: steps with it and without; those across a turn count for neither."""

import pytest

from benchmarks.live import Turn, compared, line_costs
from zprof.run.step_log import MAX_WRITTEN_LINE_BYTES, StepLine


def steps(*walls: int) -> list[StepLine]:
    made, now = [], 0
    for step, wall in enumerate(walls):
        made.append(StepLine(step=step, begin_ns=now, end_ns=now + wall))
        now += wall
    return made


def test_steps_with_the_view_are_put_beside_those_without() -> None:
    turns = [
        Turn(shown=True, begin_ns=0, end_ns=24),
        Turn(shown=False, begin_ns=24, end_ns=49),
        Turn(shown=False, begin_ns=49, end_ns=59),
        Turn(shown=True, begin_ns=59, end_ns=71),
    ]
    found = compared(steps(12, 12, 5, 10, 10, 10, 12), turns)
    assert (found["steps_shown"], found["steps_alone"]) == (3, 4)
    assert (found["median_shown_ns"], found["median_alone_ns"]) == (12, 10)
    assert found["ratio"] == pytest.approx(1.2)
    assert found["pair_ratio_median"] == pytest.approx(1.2)


def test_steps_across_a_turn_count_for_neither() -> None:
    turns = [Turn(shown=True, begin_ns=0, end_ns=15), Turn(shown=False, begin_ns=15, end_ns=40)]
    found = compared(steps(10, 10, 10, 10), turns)
    assert (found["steps_shown"], found["steps_alone"]) == (1, 2)


def test_too_short_a_job_says_so() -> None:
    assert compared(steps(10), [Turn(shown=True, begin_ns=0, end_ns=99)]) == {"turns": 1}


def test_a_line_is_short() -> None:
    assert line_costs(2)["bytes_now"] < MAX_WRITTEN_LINE_BYTES
