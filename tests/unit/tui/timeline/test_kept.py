"""The last few timelines are kept, and no more than there is room for."""

from dataclasses import dataclass
from typing import cast

from zprof.tui.timeline.step_model import MAX_EVENT_ROWS, MAX_TIMELINES, StepModel, TimelineCache


@dataclass
class Model:
    weight: int = 1


def model(weight: int = 1) -> StepModel:
    return cast("StepModel", Model(weight))


def test_those_used_last_are_kept() -> None:
    kept = TimelineCache()
    for step in range(MAX_TIMELINES):
        kept.put((0, step), model())
    assert kept.get((0, 0)) is not None  # used again: now the second is the oldest
    kept.put((0, MAX_TIMELINES), model())
    assert len(kept) == MAX_TIMELINES
    assert kept.get((0, 1)) is None
    assert kept.get((0, 0)) is not None


def test_large_ones_push_others_out_but_the_last_one_stays() -> None:
    kept = TimelineCache()
    kept.put((0, 1), model(MAX_EVENT_ROWS // 2))
    kept.put((0, 2), model(MAX_EVENT_ROWS // 2))
    assert len(kept) == 2
    kept.put((0, 3), model(2 * MAX_EVENT_ROWS))
    assert len(kept) == 1
    assert kept.get((0, 3)) is not None
    kept.clear()
    assert len(kept) == 0
