"""lost_compute_efficiency compares the same kernels of two runs at equal work, and accuses no straggler."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.analyses import MS
from tests.support.kernels import healthy, kernel_row, with_kernels
from tests.support.rule_runs import GAP, Answer, found, judged, values, with_ranks
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.rules.compute.lost_compute_efficiency import lost_compute_efficiency

HIGH, MEDIUM = Confidence.HIGH, Confidence.MEDIUM


def run(milliseconds: float, *, ranks: int = 4, tokens: int | None = None, **more: float) -> RunAnalysis:
    """A step of this many ms of GEMMs, and an optimizer of 50 ms."""
    rows = [kernel_row("gemm", 8 * milliseconds, **more), kernel_row("multi_tensor_apply_kernel", 400)]
    made = with_kernels(healthy(ranks), rows)
    return replace(made, training=replace(made.training, tokens_per_step=tokens))


def slower_on(slow: int) -> RunAnalysis:
    made = run(100)
    late = (made.kernels["rank"] < slow) & (made.kernels["name"] == "gemm")
    return replace(
        made, kernels=made.kernels.assign(total_ns=made.kernels["total_ns"].where(~late, 8 * 130 * MS))
    )


def renamed(analysis: RunAnalysis) -> RunAnalysis:
    names = analysis.kernels["name"].replace("gemm", "triton_mm")
    return replace(analysis, kernels=analysis.kernels.assign(name=names))


def with_other_kernels(milliseconds: float) -> RunAnalysis:
    """100 ms of kernels that the baseline has, and these that it lacks."""
    return with_kernels(healthy(4), [kernel_row("gemm", 100), kernel_row("flash", milliseconds)])


SLOWED = {"beside_ns": 480 * MS, "judged_beside_ns": 480 * MS, "judged_count": 50, "excess_ns": 240 * MS}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (lambda: run(100), lambda: run(130), MEDIUM),  # slower
        (lambda: run(100), lambda: run(105), None),  # 5 %
        (lambda: run(100), lambda: run(105.1), MEDIUM),  # above 5 %
        (lambda: run(100, tokens=9), lambda: run(110, tokens=9), MEDIUM),  # 10 %
        (lambda: run(100, tokens=9), lambda: run(111, tokens=9), HIGH),  # above 10 %
        (lambda: run(100), lambda: slower_on(2), None),  # two of four ranks are stragglers
        (lambda: run(100), lambda: slower_on(3), MEDIUM),  # three of four ranks
        (lambda: run(100), lambda: run(130, **SLOWED), None),  # slowed by collectives
        (lambda: run(130, **SLOWED), lambda: run(130), MEDIUM),  # before it was slowed
        (lambda: run(100, tokens=1_000), lambda: run(200, tokens=2_000), None),  # twice the work
        (lambda: run(100), lambda: run(200, count=160), GAP),  # perhaps other work
        (lambda: run(100), lambda: run(130, count=87), MEDIUM),  # few kernels more
        (lambda: run(100), lambda: run(130, count=89), GAP),  # a tenth more kernels
        (lambda: run(100, tokens=9), lambda: run(130, count=160, tokens=9), HIGH),  # known work
        (lambda: run(100), lambda: renamed(run(130)), GAP),  # other kernels
        (lambda: run(10), lambda: with_other_kernels(100), MEDIUM),  # half of the kernels
        (lambda: run(10), lambda: with_other_kernels(101), GAP),  # less than half
        (lambda: None, lambda: run(130), GAP),  # no baseline
        (lambda: healthy(4), lambda: run(130), GAP),  # no kernels of the baseline
        (lambda: run(100), lambda: healthy(4), None),  # no kernels
    ],
)
def test_thresholds(
    before: Callable[[], RunAnalysis | None], after: Callable[[], RunAnalysis], expected: Answer
) -> None:
    assert judged(lost_compute_efficiency, after(), before()) == expected


def test_what_is_lost_is_stated_at_equal_work() -> None:
    finding = found(lost_compute_efficiency, run(260, tokens=2_000), run(100, tokens=1_000))
    assert (finding.id, values(finding, "ratio")[0]) == ("ZP508", pytest.approx(1.3))


def test_it_saves_most_of_what_is_lost() -> None:
    after = with_ranks(run(130), overlapped_ns=0)
    low, high = found(lost_compute_efficiency, after, run(100)).saving_ns
    assert (low, high) == (pytest.approx(27 * MS, abs=1), pytest.approx(33 * MS, abs=1))
