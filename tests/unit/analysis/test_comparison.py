"""The comparison of two runs sums to the change; its interval holds the truth as often as it says."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import Scenario, analysis_of
from tests.support.memories import memory_of
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.compare.differences import (
    compare,
    compute_bootstrap_interval,
    find_comparison_gaps,
    subtract_memory,
)
from zprof.model.gaps import GapKind
from zprof.model.report import Comparison, EqualWork, WorkUnit
from zprof.model.tenants import Tenant
from zprof.model.time import LEDGER_TERMS, Window, WindowPolicy
from zprof.model.training import TrainingFacts

A = Scenario(name="a", stage=0, ranks=3)
B = Scenario(name="b", prefetch=False, ranks=3, noise_ms=1.0)


@pytest.mark.parametrize("seed", range(3))
def test_ledger_sums_to_the_change_of_the_wall_time(seed: int) -> None:
    comparison = compare(analysis_of(replace(A, seed=seed)), analysis_of(replace(B, seed=seed)))
    assert comparison is not None
    assert comparison.step_time is not None
    assert set(comparison.ledger_delta) == set(LEDGER_TERMS)
    assert sum(comparison.ledger_delta.values()) == comparison.step_time.b_ns - comparison.step_time.a_ns


def test_memory_is_the_largest_rank_of_each_side() -> None:
    a, b = memory_of(0).per_rank, memory_of(3).per_rank
    delta = subtract_memory(a, b)
    assert delta["parameters"] == -2 * (6 << 20)
    assert delta["communication_buffers"] == 4 << 20
    assert delta["peak_bytes"] == max(r.peak_bytes for r in b) - max(r.peak_bytes for r in a)
    assert subtract_memory((), b) == {}


def test_the_change_of_a_tenant_that_is_unknown_on_a_side_is_unknown() -> None:
    a, b = memory_of(0).per_rank, memory_of(3).per_rank
    by_rules = tuple(replace(rank, unknown=(Tenant.GRADIENTS,)) for rank in b)
    delta = subtract_memory(a, by_rules)
    assert delta["gradients"] is None
    assert delta["parameters"] == subtract_memory(a, b)["parameters"]


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    """Eight steps per side, true change 5: without the small-sample factor about 0.90 are covered."""
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        a, b = generator.normal(100, 4, 8) * 1e6, generator.normal(105, 4, 8) * 1e6
        low, high = compute_bootstrap_interval(a, b)
        covered += low <= 5e6 <= high
    assert covered / 300 >= 0.92
    assert compute_bootstrap_interval(a, b) == (low, high), "the seed is fixed"


STEPS = Window(policy=WindowPolicy.STEP, source="ProfilerStep")
UNMARKED = Window(policy=WindowPolicy.STEP, source="whole trace", is_whole=True)
WHOLE = Window(policy=WindowPolicy.TRACE, source="whole trace", is_whole=True)


def seen(plan: Scenario, window: Window | None, steps: int = 8) -> RunAnalysis:
    run = analysis_of(plan)
    return replace(
        run,
        run=replace(run.run, steps=tuple(range(steps))),
        time=replace(run.time, window=window),
        memory=memory_of(0),
    )


@pytest.mark.parametrize(
    ("a", "b", "comparable"),
    [
        ((STEPS, 8), (None, 8), True),
        ((UNMARKED, 8), (STEPS, 8), False),
        ((STEPS, 8), (UNMARKED, 8), False),
        ((WHOLE, 8), (WHOLE, 8), True),
        ((WHOLE, 8), (WHOLE, 1), False),
        ((UNMARKED, 0), (UNMARKED, 8), True),
    ],
)
def test_only_times_of_the_same_kind_are_compared(
    a: tuple[Window, int], b: tuple[Window, int], comparable: bool
) -> None:
    runs = seen(A, *a), seen(B, *b)
    comparison = compare(*runs)
    gaps = [gap.kind for gap in find_comparison_gaps(*runs)]
    assert (GapKind.TIMES_NOT_COMPARABLE in gaps) == (not comparable)
    assert comparison is not None
    assert comparison.memory_delta
    assert bool(comparison.step_time) == bool(comparison.ledger_delta) == comparable


@pytest.mark.parametrize(("steps", "known"), [(1, False), (2, False), (3, True)])
def test_an_interval_needs_three_steps(steps: int, known: bool) -> None:
    a = seen(replace(A, steps=steps), STEPS)
    b = replace(a, run=replace(a.run, name="b"), steps=analysis_of(A).steps)
    assert (GapKind.NO_INTERVAL not in [gap.kind for gap in find_comparison_gaps(a, b)]) == known


FAST = analysis_of(Scenario(name="a"))
SLOW = analysis_of(Scenario(name="b", compute_ms=18))


def stating(run: RunAnalysis, *, ranks: int | None = None, **facts: int | None) -> RunAnalysis:
    """The run of a program that states these facts about itself."""
    silent: dict[str, int | None] = {"tokens_per_step": None, "samples_per_step": None}
    training = replace(run.training, **silent | facts)  # type: ignore[arg-type]
    return replace(run, training=training, run=replace(run.run, world_size=ranks or run.run.world_size))


def between(a: RunAnalysis, b: RunAnalysis) -> Comparison:
    comparison = compare(a, b)
    assert comparison is not None
    assert comparison.step_time is not None
    return comparison


def equal_work(a: RunAnalysis, b: RunAnalysis) -> EqualWork:
    work = between(a, b).equal_work
    assert work is not None
    return work


@pytest.mark.parametrize(
    ("tokens", "ranks", "factor"), [(512, 2, 1.0), (1024, 2, 0.5), (1024, 4, 1.0)], ids=str
)
def test_equal_work_is_scaled_by_the_tokens_per_rank(tokens: int, ranks: int, factor: float) -> None:
    a = stating(FAST, tokens_per_step=512, ranks=2)
    comparison = between(a, stating(SLOW, tokens_per_step=tokens, ranks=ranks))
    times, work = comparison.step_time, comparison.equal_work
    assert times is not None
    assert work is not None
    assert (work.unit, work.a_per_step, work.b_per_step) == (WorkUnit.TOKENS, 512, tokens)
    assert work.b_ns == pytest.approx(factor * times.b_ns, abs=1)
    assert work.ci95[0] < work.b_ns - times.a_ns < work.ci95[1]
    if factor == 1.0:
        assert work.ci95 == times.ci95


@pytest.mark.parametrize(
    ("a", "b", "unit"),
    [
        ({"samples_per_step": 8}, {"samples_per_step": 8, "tokens_per_step": 512}, WorkUnit.SAMPLES),
        ({"samples_per_step": 8, "tokens_per_step": 9}, {"samples_per_step": 8, "tokens_per_step": 512},
         WorkUnit.TOKENS),
        ({"samples_per_step": 8}, {"tokens_per_step": 512}, None),
        ({}, {"tokens_per_step": 512}, None),
        ({"tokens_per_step": 0}, {"tokens_per_step": 512}, None),
        ({}, {}, None),
    ],
)  # fmt: skip
def test_equal_work_needs_the_same_fact_of_both_runs(
    a: dict[str, int | None], b: dict[str, int | None], unit: WorkUnit | None
) -> None:
    before, after = stating(FAST, **a), stating(SLOW, **b)
    work, gaps = between(before, after).equal_work, find_comparison_gaps(before, after)
    assert (work.unit if work else None) is unit
    assert bool(gaps) == (unit is None)
    assert all("--baseline-tokens-per-step" in gap.remedy for gap in gaps if b and not a)


def test_differences_are_what_both_state_and_state_differently() -> None:
    a = stating(FAST, tokens_per_step=512, samples_per_step=8, ranks=2)
    b = stating(SLOW, tokens_per_step=512, samples_per_step=4, ranks=4, micro_batches=3, parameters=None)
    b = replace(b, run=replace(b.run, device="cuda (H100)", backend="unknown"))
    found = {difference.key: (difference.a, difference.b) for difference in between(a, b).differences}
    assert found.pop("modelled") == tuple("; ".join(run.run.modelled) for run in (a, b))
    assert found == {
        "world_size": ("2", "4"),
        "ranks_loaded": ("all", "ranks 0 and 1"),
        "device": (a.run.device, "cuda (H100)"),
        "micro_batches": ("1", "3"),
        "samples_per_step": ("8", "4"),
        "tokens_per_sample": ("64", "128"),
    }
    silent = replace(FAST, training=TrainingFacts())
    assert between(silent, stating(FAST, micro_batches=4, model_parallel_ranks=2)).differences == ()
