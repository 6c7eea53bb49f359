"""Which steps are recorded."""

import pytest

from zprof.collectors.schedule import Schedule, Window, steps


def test_each_step_has_at_most_one_window() -> None:
    schedule = steps(skip=1, memory=2, time=3)
    windows = [schedule.window(step) for step in range(schedule.total + 1)]
    assert windows == [None, Window.MEMORY, Window.MEMORY, Window.TIME, Window.TIME, Window.TIME, None]


@pytest.mark.parametrize("skip", [0, 3])
def test_a_window_may_be_empty(skip: int) -> None:
    assert Schedule(skip=skip, memory=0, time=1).window(skip) is Window.TIME


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        steps(skip=-1)
