"""Step times at equal work: scaled by the work on a rank, unknown where a run does not say it."""

from dataclasses import replace

import pytest

from tests.support.analyses import Scenario, analysis_of
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.comparison import compare, find_comparison_gaps
from zprof.model.report import Comparison, Difference, EqualWork, WorkUnit
from zprof.model.training import TrainingFacts

A = analysis_of(Scenario(name="a"))
B = analysis_of(Scenario(name="b", compute_ms=18))


def saying(run: RunAnalysis, *, ranks: int | None = None, **facts: int | None) -> RunAnalysis:
    """The same run, of a program that says other facts of itself."""
    silent: dict[str, int | None] = {"tokens_per_step": None, "samples_per_step": None}
    training = replace(run.training, **silent | facts)  # type: ignore[arg-type]
    return replace(run, training=training, run=replace(run.run, world_size=ranks or run.run.world_size))


def between(a: RunAnalysis, b: RunAnalysis) -> Comparison:
    comparison = compare(a, b)
    assert comparison is not None
    assert comparison.step_time is not None
    return comparison


def work_of(a: RunAnalysis, b: RunAnalysis) -> EqualWork:
    work = between(a, b).equal_work
    assert work is not None
    return work


def test_twice_the_tokens_count_half_the_time() -> None:
    work = work_of(saying(A, tokens_per_step=512), saying(B, tokens_per_step=1024))
    times = between(A, B).step_time
    assert times is not None
    assert (work.unit, work.a_per_step, work.b_per_step) == (WorkUnit.TOKENS, 512, 1024)
    assert abs(work.b_ns - times.b_ns / 2) <= 1
    assert work.ci95[0] < work.b_ns - times.a_ns < work.ci95[1]


def test_equal_work_is_the_step_time_itself() -> None:
    comparison = between(saying(A, tokens_per_step=512), saying(B, tokens_per_step=512))
    assert comparison.equal_work is not None
    assert comparison.step_time is not None
    assert comparison.equal_work.b_ns == comparison.step_time.b_ns
    assert comparison.equal_work.ci95 == comparison.step_time.ci95


def test_work_is_that_on_a_rank() -> None:
    """Twice the tokens on twice the ranks is the same work for each."""
    work = work_of(saying(A, tokens_per_step=512, ranks=2), saying(B, tokens_per_step=1024, ranks=4))
    times = between(A, B).step_time
    assert times is not None
    assert work.b_ns == times.b_ns


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
def test_what_only_one_run_says_compares_nothing(
    a: dict[str, int | None], b: dict[str, int | None], unit: WorkUnit | None
) -> None:
    before, after = saying(A, **a), saying(B, **b)
    work = between(before, after).equal_work
    gaps = [gap.what for gap in find_comparison_gaps(before, after)]
    assert (work.unit if work else None) is unit
    assert gaps == ([] if unit else ["time at equal work"])


def test_the_gap_names_the_run_that_is_silent() -> None:
    (gap,) = find_comparison_gaps(saying(A), saying(B, tokens_per_step=512))
    assert "a step of a has" in gap.reason
    assert "--baseline-tokens-per-step" in gap.remedy


def test_differences_are_what_both_say_and_say_differently() -> None:
    a = saying(A, tokens_per_step=512, samples_per_step=8, ranks=2)
    b = saying(B, tokens_per_step=512, samples_per_step=4, ranks=4, micro_batches=3, parameters=None)
    b = replace(b, run=replace(b.run, device="cuda (H100)", backend="unknown", modelled=()))
    assert between(a, b).differences == (
        Difference(what="ranks", a="2", b="4"),
        Difference(what="ranks loaded", a="all", b="0,1"),
        Difference(what="device", a=a.run.device, b="cuda (H100)"),
        Difference(what="micro-batches", a="1", b="3"),
        Difference(what="samples a step", a="8", b="4"),
        Difference(what="tokens a sample", a="64", b="128"),
        Difference(what="modelled", a=a.run.modelled[0] + "; " + a.run.modelled[1], b="nothing"),
    )
    assert between(A, A).differences == ()


def test_other_ranks_of_the_same_job_are_a_difference() -> None:
    a, b = (replace(run, run=replace(run.run, world_size=4, ranks_loaded=(0, rank)))
            for run, rank in ((A, 1), (A, 2)))  # fmt: skip
    assert between(a, b).differences == (Difference(what="ranks loaded", a="0,1", b="0,2"),)


def test_a_trace_that_says_nothing_differs_in_nothing() -> None:
    """Its number of micro-batches is a default, and not said by anybody."""
    silent = replace(A, training=TrainingFacts())
    assert between(silent, saying(A, micro_batches=4, model_parallel_ranks=2)).differences == ()
