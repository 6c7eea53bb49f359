"""comm_slows_compute fires on kernels that are slower beside collectives, at its thresholds and not below."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.analyses import MS
from tests.support.diagnoses import assert_first_and_priced, base, planted
from tests.support.exact import with_walls
from tests.support.kernels import healthy, kernel_row, with_kernels
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.compute.comm_slows_compute import comm_slows_compute
from zprof.rules.rule import wall_ns
from zprof.simulator.causes import Cause as Planted
from zprof.simulator.plan import Vendor


def beside(share: float, factor: float, *, judged: float = 0.5, kernels: int = 40) -> RunAnalysis:
    """Kernels of two ranks that run ``share`` of the step beside collectives, slower by ``factor``."""
    run = healthy()
    total = int(share * wall_ns(run) * 8)
    known = int(judged * total)
    row = kernel_row(
        "gemm", 1_600, beside_ns=total, judged_beside_ns=known, judged_count=kernels,
        excess_ns=round(known * (1 - 1 / factor)), alone_median_ns=100.0, overlapped_median_ns=100 * factor,
    )  # fmt: skip
    return with_kernels(run, [row])


def judged_row(name: str, ms: float, excess_ms: float, *, median_ratio: float) -> dict[str, float | str]:
    """A name of which all that runs beside collectives was judged, ``excess_ms`` longer than alone."""
    return kernel_row(
        name, 800, beside_ns=ms * MS, judged_beside_ns=ms * MS, judged_count=40, excess_ns=excess_ms * MS,
        alone_median_ns=100.0, overlapped_median_ns=100 * median_ratio,
    )  # fmt: skip


def found(analysis: RunAnalysis) -> Finding:
    answer = comm_slows_compute(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def test_names_the_slowdown_and_its_cost() -> None:
    analysis = beside(0.5, 1.6)
    finding = found(analysis)
    excess = 0.5 * wall_ns(analysis) * (1 - 1 / 1.6)
    assert (finding.id, finding.cause, finding.confidence) == (
        "ZP506",
        Cause.COMM_SLOWS_COMPUTE,
        Confidence.HIGH,
    )
    assert "1.60 times" in finding.sentence
    assert finding.saving_ns == pytest.approx((0.5 * excess, 1.1 * excess), rel=1e-3)
    assert "NCCL_MAX_CTAS" in finding.fix
    assert "set_num_threads" in found(replace(analysis, run=replace(analysis.run, device="cpu"))).fix


@pytest.mark.parametrize(("factor", "there"), [(1.14, False), (1.16, True)])
def test_threshold_of_the_slowdown(factor: float, there: bool) -> None:
    assert isinstance(comm_slows_compute(beside(0.6, factor), None), Finding) is there


@pytest.mark.parametrize(("share", "there"), [(0.059, False), (0.061, True)])
def test_threshold_of_the_cost(share: float, there: bool) -> None:
    """At twice the time, half of what runs beside collectives is lost: 3 % of the step from 6 % on."""
    assert isinstance(comm_slows_compute(beside(share, 2.0), None), Finding) is there
    assert isinstance(comm_slows_compute(beside(1.5 * share, 1.5), None), Finding) is there


@pytest.mark.parametrize(("kernels", "judged"), [(3, 0.5), (40, 0.019)])
def test_too_few_kernels_are_a_gap(kernels: int, judged: float) -> None:
    answer = comm_slows_compute(beside(0.5, 1.6, kernels=kernels, judged=judged), None)
    assert isinstance(answer, Gap)
    assert "comm_slows_compute" in answer.what


@pytest.mark.parametrize(
    ("kernels", "judged", "sure"),
    [
        (4, 0.5, Confidence.MEDIUM),
        (9, 0.5, Confidence.MEDIUM),
        (10, 0.049, Confidence.MEDIUM),
        (10, 0.051, Confidence.HIGH),
    ],
)
def test_confidence_needs_kernels(kernels: int, judged: float, sure: Confidence) -> None:
    assert found(beside(0.5, 1.6, kernels=kernels, judged=judged)).confidence is sure


def test_one_name_that_is_slower_among_others_that_are_not_accuses_nobody() -> None:
    """It is as likely to be another shape."""
    run = healthy()
    odd = judged_row("gemm", 300, 200, median_ratio=3.0)
    rest = judged_row("norm", 310, 0, median_ratio=1.0)
    assert comm_slows_compute(with_kernels(run, [odd, rest]), None) is None
    assert found(with_kernels(run, [odd])).confidence is Confidence.HIGH


@pytest.mark.parametrize(("median_ratio", "there"), [(1.10, False), (1.11, True)])
def test_kernels_of_which_the_median_one_is_not_slower_do_other_work(
    median_ratio: float, there: bool
) -> None:
    analysis = beside(0.5, 1.6)
    kernels = analysis.kernels.assign(overlapped_median_ns=100 * median_ratio)
    assert isinstance(comm_slows_compute(replace(analysis, kernels=kernels), None), Finding) is there


def test_never_more_than_the_compute_of_a_rank() -> None:
    analysis = beside(0.6, 2.0)
    ranks = tuple(replace(rank, compute_ns=MS) for rank in analysis.time.per_rank)
    small = replace(analysis, time=replace(analysis.time, per_rank=ranks))
    assert found(small).saving_ns == (MS, MS)


def test_nothing_beside_collectives_or_no_kernels_is_no_finding() -> None:
    assert comm_slows_compute(healthy(), None) is None
    assert comm_slows_compute(beside(0.05, 4.0, kernels=1), None) is None


@pytest.mark.parametrize(
    ("vendor", "strength"), [(Vendor.NVIDIA, 0.5), pytest.param(Vendor.GLOO, 2.0, marks=pytest.mark.slow)]
)
def test_planted(vendor: Vendor, strength: float, tmp_path: Path) -> None:
    cause, plan = Planted.COMM_SLOWS_COMPUTE, base(3, vendor)
    job = planted(cause, plan, tmp_path / "run", strength)
    assert_first_and_priced(job, cause, plan, tmp_path / "truth", strength)


def test_tight_is_healthy(tmp_path: Path) -> None:
    findings = planted(Planted.TIGHT, base(3), tmp_path).report.findings
    assert Cause.COMM_SLOWS_COMPUTE not in {finding.cause for finding in findings}


@pytest.mark.parametrize(
    ("device", "median_ratio", "judged", "confidence"),
    [
        ("cpu", 1.15, 0.5, Confidence.LOW),
        ("cpu", 1.16, 0.5, Confidence.HIGH),
        ("cpu", 1.16, 0.081, Confidence.HIGH),
        ("cpu", 1.16, 0.079, Confidence.LOW),
        ("cuda", 1.11, 0.079, Confidence.HIGH),
    ],
)
def test_cpu_ranks_of_which_few_kernels_lost_their_core_are_a_note(
    device: str, median_ratio: float, judged: float, confidence: Confidence
) -> None:
    analysis = beside(0.5, 1.6, judged=judged)
    kernels = analysis.kernels.assign(alone_median_ns=100.0, overlapped_median_ns=100 * median_ratio)
    run = replace(analysis.run, device=device)
    assert found(replace(analysis, run=run, kernels=kernels)).confidence is confidence


def exactly(
    beside_ms: int,
    judged_ms: int,
    excess_ns: int,
    *,
    kernels: tuple[int, int] = (20, 20),
    device: str = "cuda",
) -> RunAnalysis:
    """Of each of eight steps of 100 ms on two ranks; ``kernels`` of each rank are judged."""
    row = kernel_row(
        "gemm", 1_600, beside_ns=8 * beside_ms * MS, judged_beside_ns=8 * judged_ms * MS, judged_count=1,
        excess_ns=8 * excess_ns, alone_median_ns=100.0, overlapped_median_ns=160.0,
    )  # fmt: skip
    made = with_kernels(with_walls(healthy()), [row], device=device)
    return replace(made, kernels=made.kernels.assign(judged_count=kernels))


@pytest.mark.parametrize(("more", "there"), [(0, False), (1, True)])
def test_on_the_thresholds_there_is_nothing(more: int, *, there: bool) -> None:
    few = exactly(6, 6, 0, kernels=(1, 1))
    few = replace(few, kernels=few.kernels.assign(beside_ns=few.kernels["beside_ns"] + more))
    assert isinstance(comm_slows_compute(few, None), Gap) is there
    assert isinstance(comm_slows_compute(exactly(46, 46, 6 * MS + more), None), Finding) is there
    assert isinstance(comm_slows_compute(exactly(10, 10, 3 * MS + more), None), Finding) is there


@pytest.mark.parametrize(
    ("judged_ms", "kernels", "device", "confidence"),
    [
        (5, (10, 10), "cuda", Confidence.HIGH),
        (5, (10, 9), "cuda", Confidence.MEDIUM),
        (4, (10, 10), "cuda", Confidence.MEDIUM),
        (8, (10, 10), "cpu", Confidence.HIGH),
        (7, (10, 10), "cpu", Confidence.LOW),
    ],
)
def test_shares_and_counts_on_their_thresholds(
    judged_ms: int, kernels: tuple[int, int], device: str, confidence: Confidence
) -> None:
    analysis = exactly(100, judged_ms, judged_ms * MS // 2, kernels=kernels, device=device)
    assert found(analysis).confidence is confidence


@pytest.mark.parametrize(
    ("odd", "confidence"), [(49, Confidence.LOW), (50, Confidence.HIGH), (55, Confidence.HIGH)]
)
def test_half_of_the_time_in_names_that_are_slower_agrees(odd: int, confidence: Confidence) -> None:
    rows = [
        judged_row(name, ms, excess, median_ratio=2.0)
        for name, ms, excess in (("gemm", odd, odd * 0.9), ("norm", 100 - odd, 0))
    ]
    run = with_walls(healthy(), 10 * MS)
    assert found(with_kernels(run, rows)).confidence is confidence


@pytest.mark.parametrize(("kernels", "judged_ms", "known"), [((4, 4), 50, True), ((4, 3), 50, False)])
def test_eight_kernels_tell_of_a_slowdown(kernels: tuple[int, int], judged_ms: int, *, known: bool) -> None:
    answer = comm_slows_compute(exactly(100, judged_ms, judged_ms * MS // 2, kernels=kernels), None)
    assert isinstance(answer, Finding if known else Gap)
    assert isinstance(comm_slows_compute(exactly(100, 2, MS), None), Finding)  # 2 % of the time


def test_kernels_that_would_take_no_time_alone_tell_nothing() -> None:
    assert comm_slows_compute(exactly(10, 10, 10 * MS), None) is None


def test_a_name_on_the_threshold_is_slowed_down() -> None:
    """46 ms where 40 are usual, among others that take twice as long."""
    rows = [
        judged_row(name, ms, over, median_ratio=1.15)
        for name, ms, over in (("gemm", 92, 12), ("norm", 40, 20))
    ]
    assert found(with_kernels(with_walls(healthy(), 10 * MS), rows)).confidence is Confidence.HIGH


@pytest.mark.parametrize(
    ("medians", "confidence"),
    [((100, 130), Confidence.LOW), ((0, 130), Confidence.HIGH), ((120, 130), Confidence.HIGH)],
)
def test_the_name_in_the_middle_of_the_time(medians: tuple[float, float], confidence: Confidence) -> None:
    """Of two that take as long the lower; a median of 0 is none."""
    rows = [
        kernel_row(
            f"gemm {median}", 800, beside_ns=100 * MS, judged_beside_ns=100 * MS, judged_count=40,
            excess_ns=50 * MS, alone_median_ns=100.0, overlapped_median_ns=median,
        )
        for median in medians
    ]  # fmt: skip
    run = with_walls(healthy(), 10 * MS)
    assert found(with_kernels(run, rows, device="cpu")).confidence is confidence
