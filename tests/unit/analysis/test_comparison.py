"""The comparison sums to the change, exactly; its interval holds the truth as often as it says."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.analyses import Scenario, analysis_of
from tests.support.memories import memory_of
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.comparison import (
    NO_INTERVAL,
    TIMES_NOT_COMPARABLE,
    bootstrap_interval,
    compare,
    find_comparison_gaps,
    mean_step_times,
    subtract_ledgers,
    subtract_memory,
)
from zprof.model.time import LEDGER_TERMS, Window, WindowPolicy

A = Scenario(name="a", stage=0, ranks=3)
B = Scenario(name="b", prefetch=False, ranks=3, noise_ms=1.0)


@pytest.mark.parametrize("seed", range(10))
def test_ledger_sums_to_the_change_of_the_wall_time(seed: int) -> None:
    comparison = compare(analysis_of(replace(A, seed=seed)), analysis_of(replace(B, seed=seed)))
    assert comparison is not None
    times = comparison.step_time
    assert set(comparison.ledger_delta) == set(LEDGER_TERMS)
    assert sum(comparison.ledger_delta.values()) == times.b_ns - times.a_ns
    assert all(isinstance(change, int) for change in comparison.ledger_delta.values())


def test_rounding_goes_to_unexplained_only() -> None:
    a, b = analysis_of(A), analysis_of(B)
    delta = subtract_ledgers(a.time.per_rank, b.time.per_rank)
    for term in LEDGER_TERMS:
        means = [np.mean([getattr(rank, term) for rank in run.time.per_rank]) for run in (a, b)]
        assert abs(delta[term] - (means[1] - means[0])) <= (4 if term == "unexplained_ns" else 1)


def test_memory_is_the_largest_rank_of_each_side() -> None:
    a, b = memory_of(0).per_rank, memory_of(3).per_rank
    delta = subtract_memory(a, b)
    assert delta["parameters"] == -2 * (6 << 20)
    assert delta["communication_buffers"] == 4 << 20
    assert delta["peak_bytes"] == max(r.peak_bytes for r in b) - max(r.peak_bytes for r in a)
    assert delta["untagged_bytes"] == 0
    assert subtract_memory((), b) == {}


def test_baseline_leaves_come_along() -> None:
    a = replace(analysis_of(A), memory=memory_of(0))
    comparison = compare(a, analysis_of(B))
    assert comparison is not None
    assert (comparison.baseline, comparison.baseline_run) == ("a", a.run)
    assert comparison.baseline_memory == a.memory.per_rank
    assert comparison.baseline_time == a.time.per_rank


def test_interval_is_the_same_each_time_and_holds_the_change() -> None:
    a, b = mean_step_times(analysis_of(A).steps), mean_step_times(analysis_of(B).steps)
    low, high = bootstrap_interval(a, b)
    assert (low, high) == bootstrap_interval(a, b)
    assert low < b.mean() - a.mean() < high


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Eight steps a side, true change 5: without the small-sample factor about 0.90 are covered."""
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        a, b = generator.normal(100, 4, 8), generator.normal(105, 4, 8)
        low, high = bootstrap_interval(a * 1e6, b * 1e6)
        covered += low <= 5e6 <= high
    assert covered / 300 >= 0.92


def test_no_steps_no_comparison() -> None:
    empty = replace(analysis_of(A), steps=analysis_of(A).steps.iloc[:0])
    assert compare(empty, analysis_of(B)) is None
    (gap,) = find_comparison_gaps(empty, analysis_of(B))
    assert gap.what == TIMES_NOT_COMPARABLE
    assert gap.reason == "no step of a was timed"


STEPS = Window(policy=WindowPolicy.STEP, source="ProfilerStep")
UNMARKED = Window(policy=WindowPolicy.STEP, source="whole trace")
WHOLE = Window(policy=WindowPolicy.TRACE, source="whole trace")


def seen(plan: Scenario, window: Window | None, steps: int = 8) -> RunAnalysis:
    run = analysis_of(plan)
    facts = replace(run.run, steps=tuple(range(steps)))
    return replace(run, run=facts, time=replace(run.time, window=window))


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (seen(A, STEPS), seen(B, None), None),
        (seen(A, UNMARKED), seen(B, STEPS), "all of a was measured as one stretch, and b by its steps"),
        (seen(A, STEPS), seen(B, UNMARKED), "all of b was measured as one stretch, and a by its steps"),
        (seen(A, WHOLE), seen(B, WHOLE), None),
        (seen(A, WHOLE, 8), seen(B, WHOLE, 1), "a is one stretch of 8 steps, b of 1 step"),
        (seen(A, UNMARKED, 0), seen(B, UNMARKED, 8), None),
    ],
)
def test_only_times_of_the_same_thing_stand_side_by_side(
    a: RunAnalysis, b: RunAnalysis, reason: str | None
) -> None:
    comparison = compare(a, b)
    reasons = [gap.reason for gap in find_comparison_gaps(a, b) if gap.what == TIMES_NOT_COMPARABLE]
    assert reasons == ([reason] if reason else [])
    assert (comparison is None) == bool(reason)  # neither has memory


def test_what_keeps_memory_from_being_compared_is_something_else() -> None:
    a, b = (replace(seen(A, window), memory=memory_of(0)) for window in (STEPS, UNMARKED))
    comparison = compare(a, b)
    assert comparison is not None
    assert (comparison.step_time, comparison.ledger_delta, comparison.equal_work) == (None, {}, None)
    assert comparison.memory_delta


@pytest.mark.parametrize(
    ("window", "steps", "reason"),
    [
        (STEPS, 1, "a has 1 timed step, an interval needs 3"),
        (STEPS, 2, "a has 2 timed steps, an interval needs 3"),
        (WHOLE, 1, "all of a was measured as one stretch, an interval needs 3"),
        (STEPS, 3, None),
    ],
)
def test_an_interval_needs_three_steps(window: Window, steps: int, reason: str | None) -> None:
    a = replace(seen(replace(A, steps=steps), window), memory=memory_of(0))
    b = replace(a, run=replace(a.run, name="b"), steps=analysis_of(A).steps)
    reasons = [gap.reason for gap in find_comparison_gaps(a, b) if gap.what == NO_INTERVAL]
    assert reasons == ([reason] if reason else [])
