"""Going from gap to gap, and what blocks a rank in each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zprof.analysis.intervals import intervals, union
from zprof.tui.session import LoadedRun
from zprof.tui.timeline.build import build
from zprof.tui.timeline.step_model import StepModel, find_gap, find_longest_gap, find_next_gap, get_gap

spans = st.lists(st.tuples(st.integers(0, 50), st.integers(51, 100)).map(sorted), max_size=8)
starts = st.lists(st.integers(0, 200), max_size=9, unique=True).map(sorted)


@pytest.fixture(scope="module")
def model(alone: LoadedRun) -> StepModel:
    """The first step of the slow run."""
    step = alone.report.time.steps[0]
    return build(alone.run, alone.analysis, step.rank, step.step)


@given(starts, st.integers(-5, 210))
def test_the_next_and_the_one_before(at: list[int], cursor: int) -> None:
    gaps = union(intervals(at, [start + 1 for start in at])) if at else np.empty((0, 2), dtype=np.int64)
    begins = gaps[:, 0].tolist()
    later, earlier = [b for b in begins if b > cursor], [b for b in begins if b < cursor]
    ahead, behind = find_next_gap(gaps, cursor, 1), find_next_gap(gaps, cursor, -1)
    assert (begins[ahead] if ahead is not None else None) == (min(later) if later else None)
    assert (begins[behind] if behind is not None else None) == (max(earlier) if earlier else None)


def test_all_gaps_are_found_by_going_on(model: StepModel) -> None:
    seen, cursor = [], -1
    while (place := find_next_gap(model.gaps, cursor, 1)) is not None:
        seen.append(place)
        cursor = int(model.gaps[place, 0])
    assert seen == list(range(len(model.gaps)))
    assert len(seen) > 10


def test_the_longest_one(model: StepModel) -> None:
    place = find_longest_gap(model.gaps)
    assert place is not None
    lengths = (model.gaps[:, 1] - model.gaps[:, 0]).tolist()
    assert lengths[place] == max(lengths)
    assert find_longest_gap(model.gaps[:0]) is None


def test_it_names_the_collective_that_holds_the_rank_up(model: StepModel) -> None:
    """The exposed parts of the named collectives are those of the ledger, as far as gaps hold one each."""
    for place in range(len(model.gaps)):
        gap = get_gap(model, place)
        assert gap.collective is not None
        row = model.collectives.iloc[gap.collective]
        assert row["start_ns"] < gap.end_ns
        assert row["end_ns"] > gap.begin_ns
        assert row["exposed_wait_ns"] + row["exposed_transfer_ns"] > 0


def test_the_gap_under_a_column(model: StepModel) -> None:
    begin, end = (int(edge) for edge in model.gaps[3])
    found = find_gap(model, begin + 1, begin + 2)
    assert found is not None
    assert (found.place, found.length_ns) == (3, end - begin)
    assert find_gap(model, end, int(model.gaps[4, 0])) is None
