"""copy_overhead fires on copies around collectives above 3 % of the step."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.analyses import MS
from tests.support.diagnoses import assert_first_and_priced, base, planted
from tests.support.exact import with_walls
from tests.support.kernels import healthy, kernel_row, with_kernels
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.compute.copy_overhead import copy_overhead
from zprof.rules.rule import wall_ns
from zprof.simulator.causes import Cause as Planted
from zprof.simulator.plan import Vendor


def copying(share: float, *, count: int = 80, role: str = "copy") -> RunAnalysis:
    run = healthy()
    spent = int(share * wall_ns(run) * 8)
    copy = kernel_row(
        "void at::split_with_sizes_copy<\x1b[31m>(int)",
        spent / MS,
        role=role,
        uncovered_ns=spent,
        count=count,
    )
    return with_kernels(run, [copy, kernel_row("gemm", 1_000)])


@pytest.mark.parametrize(("share", "there"), [(0.0295, False), (0.0305, True)])
@pytest.mark.parametrize("role", ["copy", "memcpy"])
def test_threshold(share: float, there: bool, role: str) -> None:
    assert isinstance(copy_overhead(copying(share, role=role), None), Finding) is there


def test_says_what_it_costs_and_escapes_names() -> None:
    analysis = copying(0.10)
    finding = copy_overhead(analysis, None)
    assert isinstance(finding, Finding)
    assert (finding.id, finding.confidence) == ("ZP507", Confidence.HIGH)
    spent = 0.10 * wall_ns(analysis)
    assert finding.saving_ns == pytest.approx((spent / 2, spent), rel=1e-3)
    assert finding.sentence.endswith("split_with_sizes_copy")
    rate = next(fact for fact in finding.evidence if fact.unit == "bytes_per_s")
    assert rate.value == pytest.approx(12 * (4 << 20) * 1e9 / spent, rel=1e-3)


def test_compute_is_no_copy() -> None:
    assert copy_overhead(copying(0.5, role="compute"), None) is None


def test_two_copies_are_no_habit() -> None:
    assert copy_overhead(copying(0.5, count=1), None) is None
    run = copying(0.5, count=3)
    one = replace(run, kernels=run.kernels[run.kernels["rank"] == 0])
    assert copy_overhead(one, None) is not None


def test_without_collectives_it_is_not_tested() -> None:
    run = copying(0.5)
    assert isinstance(copy_overhead(replace(run, collectives=run.collectives.iloc[:0]), None), Gap)


@pytest.mark.parametrize(("share", "sure"), [(0.48, Confidence.HIGH), (0.52, Confidence.LOW)])
def test_mostly_copies_of_gradients_are_more_likely_padding(share: float, sure: Confidence) -> None:
    run = healthy()
    rows = [
        kernel_row("chunk_cat_cuda_kernel", 1, role="copy", uncovered_ns=1_000 * share * MS),
        kernel_row("split_with_sizes_copy", 1, role="copy", uncovered_ns=1_000 * (1 - share) * MS),
    ]
    finding = copy_overhead(with_kernels(run, rows), None)
    assert isinstance(finding, Finding)
    assert finding.confidence is sure


@pytest.mark.parametrize(
    ("vendor", "strength"), [pytest.param(Vendor.NVIDIA, 2.0, marks=pytest.mark.slow), (Vendor.GLOO, 0.5)]
)
def test_planted(vendor: Vendor, strength: float, tmp_path: Path) -> None:
    cause, plan = Planted.COPY_OVERHEAD, base(2, vendor)
    job = planted(cause, plan, tmp_path / "run", strength)
    assert_first_and_priced(job, cause, plan, tmp_path / "truth", strength)


@pytest.mark.parametrize(("more", "there"), [(0, False), (1, True)])
def test_three_percent_itself_is_nothing(more: int, *, there: bool) -> None:
    spent = 8 * (3 * MS + more)
    copy = kernel_row("split_with_sizes_copy", 1, role="copy", uncovered_ns=spent)
    made = with_kernels(with_walls(healthy()), [copy])
    assert isinstance(copy_overhead(made, None), Finding) is there


def test_half_of_it_copies_of_gradients_are_what_a_step_has() -> None:
    parts = (("chunk_cat_cuda_kernel", 100), ("split_with_sizes_copy", 100))
    rows = [kernel_row(name, 1, role="copy", uncovered_ns=ms * MS) for name, ms in parts]
    finding = copy_overhead(with_kernels(healthy(), rows), None)
    assert isinstance(finding, Finding)
    assert finding.confidence is Confidence.HIGH
