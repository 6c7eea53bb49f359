"""The last few timelines are kept, and no more than there is room for."""

from dataclasses import dataclass
from typing import cast

from zprof.tui.timeline.kept import MOST, MOST_ROWS, Kept
from zprof.tui.timeline.model import StepModel


@dataclass
class Model:
    weight: int = 1


def model(weight: int = 1) -> StepModel:
    return cast("StepModel", Model(weight))


def test_those_used_last_are_kept() -> None:
    kept = Kept()
    for step in range(MOST):
        kept.put((0, step), model())
    assert kept.get((0, 0)) is not None  # used again: now the second is the oldest
    kept.put((0, MOST), model())
    assert len(kept) == MOST
    assert kept.get((0, 1)) is None
    assert kept.get((0, 0)) is not None


def test_large_ones_push_others_out_but_the_last_one_stays() -> None:
    kept = Kept()
    kept.put((0, 1), model(MOST_ROWS // 2))
    kept.put((0, 2), model(MOST_ROWS // 2))
    assert len(kept) == 2
    kept.put((0, 3), model(2 * MOST_ROWS))
    assert len(kept) == 1
    assert kept.get((0, 3)) is not None
    kept.clear()
    assert len(kept) == 0
