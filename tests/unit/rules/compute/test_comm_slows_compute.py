"""comm_slows_compute: kernels that are slower beside collectives than alone."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.analyses import MS
from tests.support.kernels import healthy, kernel_row, with_kernels
from tests.support.rule_runs import GAP, Answer, found, judged, values, with_ranks, with_walls
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.rules.compute.comm_slows_compute import comm_slows_compute

HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW


def slowed(
    beside_ms: float,
    judged_ms: float,
    excess_ms: float,
    *,
    kernels: tuple[int, int] = (20, 20),
    device: str = "cuda",
    median_ratio: float = 1.6,
) -> RunAnalysis:
    """Two ranks, eight steps of 100 ms: compute beside collectives, of it judged, and longer than alone.

    ``kernels``: how many of each rank are judged; ``median_ratio``: how much longer the median one takes.
    """
    row = kernel_row(
        "gemm", 1_600, beside_ns=round(8 * beside_ms * MS), judged_beside_ns=round(8 * judged_ms * MS),
        judged_count=1, excess_ns=round(8 * excess_ms * MS), alone_median_ns=100.0,
        overlapped_median_ns=100 * median_ratio,
    )  # fmt: skip
    made = with_kernels(with_walls(healthy()), [row], device=device)
    return replace(made, kernels=made.kernels.assign(judged_count=kernels))


def named(*rows: tuple[str, float, float, float], device: str = "cuda", wall_ms: float = 10) -> RunAnalysis:
    """Names with the time beside collectives, of it longer than alone (ms), and the median's ratio."""
    made = [
        kernel_row(
            name, 800, beside_ns=ms * MS, judged_beside_ns=ms * MS, judged_count=40, excess_ns=over * MS,
            alone_median_ns=100.0, overlapped_median_ns=100 * ratio,
        )
        for name, ms, over, ratio in rows
    ]  # fmt: skip
    return with_kernels(with_walls(healthy(), wall_ms * MS), made, device=device)


ONE_NS = 1 / MS


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        # a slowdown of 1.15
        (lambda: slowed(46, 46, 6), None),  # 1.15
        (lambda: slowed(46, 46, 6 + ONE_NS), HIGH),  # above 1.15
        # a cost of 3 % of the step
        (lambda: slowed(10, 10, 3), None),  # 3 %
        (lambda: slowed(10, 10, 3 + ONE_NS), HIGH),  # above 3 %
        (lambda: slowed(10, 10, 10), None),  # no time alone
        # eight kernels, and 2 % of the time, must be judged
        (lambda: slowed(100, 50, 25, kernels=(4, 3)), GAP),  # seven kernels
        (lambda: slowed(100, 50, 25, kernels=(4, 4)), MEDIUM),  # eight kernels
        (lambda: slowed(100, 1.9, 0.9), GAP),  # below 2 % judged
        (lambda: slowed(100, 2, 1), MEDIUM),  # 2 % judged
        (lambda: slowed(6, 6, 0, kernels=(1, 1)), None),  # too little to ask for
        (lambda: slowed(6 + ONE_NS, 6, 0, kernels=(1, 1)), GAP),  # enough to ask for
        (healthy, None),  # nothing beside
        # twenty kernels and 5 % are sure
        (lambda: slowed(100, 5, 2.5, kernels=(10, 10)), HIGH),  # twenty kernels
        (lambda: slowed(100, 5, 2.5, kernels=(10, 9)), MEDIUM),  # nineteen kernels
        (lambda: slowed(100, 4.9, 2.4, kernels=(10, 10)), MEDIUM),  # below 5 %
        # on a CPU 8 %, and a median above 1.15
        (lambda: slowed(100, 8, 4, device="cpu"), HIGH),  # cpu 8 %
        (lambda: slowed(100, 7.9, 4, device="cpu"), LOW),  # cpu below 8 %
        (lambda: slowed(100, 50, 25, device="cpu", median_ratio=1.15), LOW),  # cpu median
        (lambda: slowed(100, 50, 25, device="cpu", median_ratio=1.16), HIGH),  # cpu median above
        # a median of 1.10 is other work
        (lambda: slowed(100, 50, 25, median_ratio=1.10), None),  # median 1.10
        (lambda: slowed(100, 50, 25, median_ratio=1.11), HIGH),  # median above 1.10
        # half of the time in names that are slower themselves
        (lambda: named(("gemm", 49, 44, 2), ("norm", 51, 0, 2)), LOW),  # 49 % agree
        (lambda: named(("gemm", 50, 45, 2), ("norm", 50, 0, 2)), HIGH),  # 50 % agree
        (lambda: named(("gemm", 92, 12, 1.15), ("norm", 40, 20, 1.15)), HIGH),  # a name at 1.15 agrees
        (lambda: named(("gemm", 300, 200, 3), ("norm", 310, 0, 1), wall_ms=250), None),  # another shape
        # of two names the lower median; 0 is none
        (lambda: named(("a", 100, 50, 1.0), ("b", 100, 50, 1.3), device="cpu"), LOW),  # lower
        (lambda: named(("a", 100, 50, 0.0), ("b", 100, 50, 1.3), device="cpu"), HIGH),  # zero
        (lambda: named(("a", 100, 50, 1.2), ("b", 100, 50, 1.3), device="cpu"), HIGH),  # both
    ],
)
def test_thresholds(run: Callable[[], RunAnalysis], expected: Answer) -> None:
    assert judged(comm_slows_compute, run()) == expected


def test_it_saves_half_to_a_little_more_than_the_excess() -> None:
    """Half of the compute was judged, and is 1.6 times as long: 18.75 of 50 ms are lost."""
    finding = found(comm_slows_compute, slowed(50, 25, 9.375))
    assert finding.id == "ZP506"
    assert finding.saving_ns == pytest.approx((0.5 * 18.75 * MS, 1.1 * 18.75 * MS), rel=1e-3)
    assert values(finding, "ratio")[0] == pytest.approx(1.6)


def test_it_saves_no_more_than_the_compute_of_a_rank() -> None:
    assert found(comm_slows_compute, with_ranks(slowed(60, 30, 15), compute_ns=MS)).saving_ns == (MS, MS)
