"""The formulas of overlap against a schedule by events, on units drawn at random."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import step_by_events as events
from zprof.model.job import Overlap
from zprof.step.from_plan import (
    PhaseTotal,
    StackTimes,
    StepPhase,
    UnitTimes,
    build_reduced_passes,
    build_refreshed_forward,
    build_sharded_passes,
    build_step_phases,
    sum_phases,
)

TIME = st.integers(0, 1000)
UNIT = st.builds(events.Unit, TIME, TIME, TIME, TIME)
#: Units alike come in runs, so that the closed form of runs is met.
RUNS = st.lists(st.tuples(UNIT, st.integers(1, 5)), min_size=1, max_size=5)
ROOT = st.none() | UNIT
Runs = list[tuple[events.Unit, int]]


def times_of(runs: Runs, root: events.Unit | None) -> StackTimes:
    units = tuple(_times(unit, count) for unit, count in runs)
    return StackTimes(units=units, root=None if root is None else _times(root, 1))


def _times(unit: events.Unit, count: int) -> UnitTimes:
    return UnitTimes(
        count=count,
        forward_ns=unit.forward,
        backward_ns=unit.backward,
        gather_ns=unit.gather,
        reduce_ns=unit.reduce,
    )


def single(runs: Runs) -> list[events.Unit]:
    return [unit for unit, count in runs for _ in range(count)]


def wall(*phases: StepPhase) -> int:
    return sum_phases(phases).wall_ns


@settings(max_examples=60)
@given(RUNS, ROOT)
def test_each_pass_takes_as_long_as_by_events(runs: Runs, root: events.Unit | None) -> None:
    times, units = times_of(runs, root), single(runs)
    sharded = wall(*build_sharded_passes(times, Overlap()).all)
    assert sharded == events.sharded(units, root, keep_last=False)
    assert wall(*build_reduced_passes(times).backward) == events.reduced(units, root)
    assert wall(*build_refreshed_forward(times)) == events.refreshed(units, root)


def kept_and_again(runs: Runs, root: events.Unit | None) -> tuple[PhaseTotal, PhaseTotal]:
    """The passes of a micro-batch with the last unit kept, and without."""
    kept, again = (
        sum_phases(build_sharded_passes(times_of(runs, root), Overlap(keep_last=keep)).all)
        for keep in (True, False)
    )
    return kept, again


@settings(max_examples=60)
@given(st.lists(st.tuples(UNIT, st.integers(1, 5)), min_size=2, max_size=5), ROOT)
def test_a_last_unit_that_is_kept_saves_its_gather(runs: Runs, root: events.Unit | None) -> None:
    kept, again = kept_and_again(runs, root)
    assert kept.wall_ns == events.sharded(single(runs), root, keep_last=True)
    assert again.collective_ns - kept.collective_ns == runs[-1][0].gather


@settings(max_examples=40)
@given(UNIT, st.integers(2, 40))
def test_a_last_unit_of_equal_ones_that_is_kept_counts_one_gather_late(unit: events.Unit, count: int) -> None:
    """The usual formula: never below the events, by one backward at the most."""
    alike = events.Unit(unit.forward, unit.backward, unit.gather, unit.gather)
    kept, again = kept_and_again([(alike, count)], None)
    by_events = events.sharded([alike] * count, None, keep_last=True)
    assert by_events <= kept.wall_ns <= min(by_events + unit.backward, again.wall_ns)


@settings(max_examples=60)
@given(RUNS, ROOT, st.integers(0, 3), st.integers(1, 4), st.integers(0, 2), st.booleans())
def test_a_step_is_the_sum_of_its_terms_and_not_below_its_parts(
    runs: Runs, root: events.Unit | None, stage: int, micro_batches: int, prefetch: int, keep_last: bool
) -> None:
    overlap = Overlap(prefetch=prefetch, keep_last=keep_last)
    apart = [(unit, 1) for unit in single(runs)]
    found, one_by_one = (
        sum_phases(
            build_step_phases(times_of(each, root), stage=stage, micro_batches=micro_batches, overlap=overlap)
        )
        for each in (runs, apart)
    )
    assert found == one_by_one or keep_last  # of which a single run has a formula of its own
    units = [*single(runs), *([root] if root else [])]
    assert found.wall_ns == found.compute_ns + found.exposed_transfer_ns + found.exposed_memcpy_ns
    assert found.compute_ns == micro_batches * sum(unit.forward + unit.backward for unit in units)
    assert 0 <= found.exposed_transfer_ns <= found.collective_ns
    assert found.wall_ns >= max(found.compute_ns, found.collective_ns)
    exposed = sum_phases(
        build_sharded_passes(times_of(runs, root), Overlap(prefetch=0, keep_last=keep_last)).all
    )
    assert exposed.exposed_transfer_ns == exposed.collective_ns
