"""The formulas of overlap against a schedule by events, on units drawn at random."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import step_by_events as events
from zprof.model.job import Overlap
from zprof.planner.step.schedule import (
    Phase,
    gathered_backward,
    gathered_forward,
    kept_backward,
    reduced_backward,
    refreshed_forward,
    sharded_passes,
    step_phases,
    sum_phases,
)
from zprof.planner.step.unit_times import StackTimes, UnitTimes

TIME = st.integers(0, 1000)
UNIT = st.builds(events.Unit, TIME, TIME, TIME, TIME)
#: Units alike come in runs, so that the closed form of runs is met.
RUNS = st.lists(st.tuples(UNIT, st.integers(1, 5)), min_size=1, max_size=5)
ROOT = st.none() | UNIT


def times_of(runs: list[tuple[events.Unit, int]], root: events.Unit | None) -> StackTimes:
    return StackTimes(
        units=tuple(_times(unit, count) for unit, count in runs),
        root=None if root is None else _times(root, 1),
    )


def _times(unit: events.Unit, count: int) -> UnitTimes:
    return UnitTimes(
        count=count,
        forward_ns=unit.forward,
        backward_ns=unit.backward,
        gather_ns=unit.gather,
        reduce_ns=unit.reduce,
    )


def single(runs: list[tuple[events.Unit, int]]) -> list[events.Unit]:
    return [unit for unit, count in runs for _ in range(count)]


def wall(phases: tuple[Phase, ...]) -> int:
    return sum_phases(phases).wall_ns


@settings(max_examples=60)
@given(RUNS, ROOT)
def test_stage_3(runs: list[tuple[events.Unit, int]], root: events.Unit | None) -> None:
    times = times_of(runs, root)
    found = wall((*gathered_forward(times), *gathered_backward(times)))
    assert found == events.sharded(single(runs), root, keep_last=False)


@settings(max_examples=60)
@given(UNIT, st.integers(2, 40))
def test_stage_3_with_the_last_unit_kept(unit: events.Unit, count: int) -> None:
    """The usual formula counts one gather late: never below the events, by one backward at the most."""
    alike = events.Unit(unit.forward, unit.backward, unit.gather, unit.gather)
    times = times_of([(alike, count)], None)
    found = wall((*gathered_forward(times), *kept_backward(times)))
    by_events = events.sharded([alike] * count, None, keep_last=True)
    assert by_events <= found <= by_events + unit.backward


@settings(max_examples=100)
@given(st.lists(st.tuples(UNIT, st.integers(1, 5)), min_size=2, max_size=5), ROOT)
def test_stage_3_with_the_last_of_units_that_differ_kept(
    runs: list[tuple[events.Unit, int]], root: events.Unit | None
) -> None:
    times = times_of(runs, root)
    found = wall((*gathered_forward(times), *kept_backward(times)))
    assert found == events.sharded(single(runs), root, keep_last=True)


@settings(max_examples=60)
@given(RUNS, ROOT)
def test_keeping_the_last_unit_saves_its_gather_on_the_link(
    runs: list[tuple[events.Unit, int]], root: events.Unit | None
) -> None:
    times = times_of(runs, root)
    kept, again = sum_phases(kept_backward(times)), sum_phases(gathered_backward(times))
    assert again.collective_ns - kept.collective_ns == runs[-1][0].gather


@settings(max_examples=60)
@given(UNIT, st.integers(1, 40))
def test_keeping_the_last_unit_is_no_slower(unit: events.Unit, count: int) -> None:
    alike = events.Unit(unit.forward, unit.backward, unit.gather, unit.gather)
    times = times_of([(alike, count)], None)
    assert wall(kept_backward(times)) <= wall(gathered_backward(times))


@settings(max_examples=60)
@given(RUNS, ROOT)
def test_reductions_of_stages_0_to_2(runs: list[tuple[events.Unit, int]], root: events.Unit | None) -> None:
    assert wall(reduced_backward(times_of(runs, root))) == events.reduced(single(runs), root)


@settings(max_examples=60)
@given(RUNS, ROOT)
def test_the_gather_of_new_parameters(runs: list[tuple[events.Unit, int]], root: events.Unit | None) -> None:
    assert wall(refreshed_forward(times_of(runs, root))) == events.refreshed(single(runs), root)


@settings(max_examples=60)
@given(RUNS, ROOT, st.booleans())
def test_without_prefetch_all_is_exposed(
    runs: list[tuple[events.Unit, int]], root: events.Unit | None, keep_last: bool
) -> None:
    times = times_of(runs, root)
    passes = sum_phases(sharded_passes(times, Overlap(prefetch=0, keep_last=keep_last)).all)
    hidden = sum_phases(sharded_passes(times, Overlap(prefetch=1, keep_last=keep_last)).all)
    assert passes.exposed_transfer_ns == passes.collective_ns == hidden.collective_ns
    assert passes.wall_ns >= hidden.wall_ns


@settings(max_examples=60)
@given(RUNS, ROOT, st.integers(0, 3), st.integers(1, 4), st.integers(0, 2), st.booleans())
def test_terms_sum_to_wall_and_nothing_is_below_its_parts(
    runs: list[tuple[events.Unit, int]],
    root: events.Unit | None,
    stage: int,
    micro_batches: int,
    prefetch: int,
    keep_last: bool,
) -> None:
    overlap = Overlap(prefetch=prefetch, keep_last=keep_last)
    found = sum_phases(
        step_phases(times_of(runs, root), stage=stage, micro_batches=micro_batches, overlap=overlap)
    )
    units = [*single(runs), *([root] if root else [])]
    assert found.wall_ns == found.compute_ns + found.exposed_transfer_ns + found.exposed_memcpy_ns
    assert found.compute_ns == micro_batches * sum(unit.forward + unit.backward for unit in units)
    assert 0 <= found.exposed_transfer_ns <= found.collective_ns
    assert found.wall_ns >= max(found.compute_ns, found.collective_ns)


@settings(max_examples=60)
@given(RUNS, ROOT, st.integers(0, 3), st.integers(1, 4))
def test_runs_are_as_units_one_by_one(
    runs: list[tuple[events.Unit, int]], root: events.Unit | None, stage: int, micro_batches: int
) -> None:
    apart = [(unit, 1) for unit in single(runs)]
    one, other = (
        sum_phases(
            step_phases(times_of(given, root), stage=stage, micro_batches=micro_batches, overlap=Overlap())
        )
        for given in (runs, apart)
    )
    assert one == other


@pytest.mark.parametrize(("stage", "gathers", "reductions"), [(0, 0, 1), (1, 1, 1), (2, 1, 4), (3, 8, 4)])
def test_how_often_a_step_communicates(stage: int, gathers: int, reductions: int) -> None:
    times = times_of([(events.Unit(1, 2, 10_000, 100), 3)], None)
    found = sum_phases(step_phases(times, stage=stage, micro_batches=4, overlap=Overlap()))
    assert found.collective_ns == 3 * (gathers * 10_000 + reductions * 100)
