"""lost_compute_efficiency compares the same kernels of two runs, at equal work, and accuses no straggler."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.analyses import MS
from tests.support.diagnoses import assert_first_and_priced, base, planted_beside_healthy
from tests.support.kernels import healthy, kernel_row, with_kernels
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.compute.lost_compute_efficiency import lost_compute_efficiency
from zprof.simulator.causes import Cause as Planted
from zprof.simulator.plan import Vendor

STEPS = 8


def run(milliseconds: float, *, ranks: int = 4, tokens: int | None = None, **more: float) -> RunAnalysis:
    """A step of so many ms of GEMMs, an optimizer of 50 ms."""
    rows = [kernel_row("gemm", STEPS * milliseconds, **more), kernel_row("multi_tensor_apply_kernel", 400)]
    made = with_kernels(healthy(ranks), rows)
    return replace(made, training=replace(made.training, tokens_per_step=tokens))


def slower_on(slow: int, ranks: int = 4) -> RunAnalysis:
    made = run(100, ranks=ranks)
    late = (made.kernels["rank"] < slow) & (made.kernels["name"] == "gemm")
    return replace(
        made, kernels=made.kernels.assign(total_ns=made.kernels["total_ns"].where(~late, STEPS * 130 * MS))
    )


def found(a: RunAnalysis, b: RunAnalysis) -> Finding:
    answer = lost_compute_efficiency(b, a)
    assert isinstance(answer, Finding), answer
    return answer


def test_names_what_was_lost() -> None:
    finding = found(run(100), run(130))
    assert (finding.id, finding.cause, finding.confidence) == (
        "ZP508",
        Cause.LOST_COMPUTE_EFFICIENCY,
        Confidence.MEDIUM,
    )
    assert "30.0 % longer" in finding.sentence
    assert "all ranks" in finding.sentence
    low, high = finding.saving_ns
    assert low < 30 * MS < high < 3 * low


@pytest.mark.parametrize(("milliseconds", "there"), [(104.9, False), (105.1, True)])
def test_threshold(milliseconds: float, there: bool) -> None:
    assert isinstance(lost_compute_efficiency(run(milliseconds), run(100)), Finding) is there


@pytest.mark.parametrize(("slow", "there"), [(1, False), (2, False), (3, True)])
def test_few_slow_ranks_are_stragglers(slow: int, there: bool) -> None:
    answer = lost_compute_efficiency(slower_on(slow), run(100))
    assert isinstance(answer, Finding) is there
    if isinstance(answer, Finding):
        assert "on ranks 0, 1, 2:" in answer.sentence


def test_what_collectives_slow_down_is_not_counted() -> None:
    slowed = {
        "beside_ns": STEPS * 60 * MS, "judged_beside_ns": STEPS * 60 * MS, "judged_count": 50,
        "excess_ns": STEPS * 30 * MS,
    }  # fmt: skip
    assert lost_compute_efficiency(run(130, **slowed), run(100)) is None
    assert lost_compute_efficiency(run(130), run(130, **slowed)) is not None


def test_more_work_may_take_longer() -> None:
    assert lost_compute_efficiency(run(200, tokens=2_000), run(100, tokens=1_000)) is None
    finding = found(run(100, tokens=1_000), run(260, tokens=2_000))
    assert "30.0 % longer" in finding.sentence
    assert "per token (500 a step and rank, there 250)" in finding.sentence
    assert finding.confidence is Confidence.HIGH
    assert found(run(100, tokens=1_000), run(109, tokens=1_000)).confidence is Confidence.MEDIUM


def test_other_numbers_of_kernels_may_be_other_work() -> None:
    answer = lost_compute_efficiency(run(200, count=160), run(100))
    assert isinstance(answer, Gap)
    assert "--tokens-per-step" in answer.remedy
    assert isinstance(lost_compute_efficiency(run(130, count=87), run(100)), Finding)
    assert isinstance(lost_compute_efficiency(run(130, count=89), run(100)), Gap)
    assert isinstance(lost_compute_efficiency(run(130, count=160, tokens=9), run(100, tokens=9)), Finding)


def test_other_kernels_cannot_be_compared() -> None:
    other = run(130)
    renamed = other.kernels.assign(name=other.kernels["name"].replace("gemm", "triton_mm"))
    assert isinstance(lost_compute_efficiency(replace(other, kernels=renamed), run(100)), Gap)
    rows = [kernel_row("gemm", 100), kernel_row("flash", 120)]
    assert isinstance(lost_compute_efficiency(with_kernels(healthy(4), rows), run(10)), Gap)


def test_needs_a_baseline() -> None:
    assert isinstance(lost_compute_efficiency(run(130), None), Gap)
    assert isinstance(lost_compute_efficiency(run(130), healthy(4)), Gap)
    assert lost_compute_efficiency(healthy(4), run(100)) is None


@pytest.mark.parametrize(
    ("vendor", "strength"), [(Vendor.NVIDIA, 0.5), pytest.param(Vendor.GLOO, 2.0, marks=pytest.mark.slow)]
)
def test_planted(vendor: Vendor, strength: float, tmp_path: Path) -> None:
    cause, plan = Planted.LOST_COMPUTE_EFFICIENCY, base(2, vendor)
    job = planted_beside_healthy(cause, plan, tmp_path / "run", strength)
    assert_first_and_priced(job, cause, plan, tmp_path / "truth", strength)


def test_a_straggler_is_none(tmp_path: Path) -> None:
    report = planted_beside_healthy(Planted.STRAGGLER_RANK, base(2), tmp_path).report
    assert Cause.LOST_COMPUTE_EFFICIENCY not in {finding.cause for finding in report.findings}


def test_on_the_thresholds() -> None:
    """5 % itself is nothing, 10 % itself is not sure."""
    assert lost_compute_efficiency(run(105), run(100)) is None
    assert found(run(100, tokens=9), run(110, tokens=9)).confidence is Confidence.MEDIUM
    assert found(run(100, tokens=9), run(111, tokens=9)).confidence is Confidence.HIGH


def test_saves_most_of_what_is_lost() -> None:
    made = run(130)
    ranks = tuple(replace(rank, overlapped_ns=0) for rank in made.time.per_rank)
    saving = found(run(100), replace(made, time=replace(made.time, per_rank=ranks))).saving_ns
    assert saving == (pytest.approx(27 * MS, abs=1), pytest.approx(33 * MS, abs=1))


@pytest.mark.parametrize(("other", "there"), [(100, True), (101, False), (80, True)])
def test_kernels_of_both_runs_are_at_least_half_of_it(other: float, *, there: bool) -> None:
    rows = [kernel_row("gemm", 100), kernel_row("flash", other)]
    both = with_kernels(healthy(4), rows)
    assert isinstance(lost_compute_efficiency(both, run(10)), Finding if there else Gap)


@pytest.mark.parametrize(("slow", "more"), [(8, False), (9, True)])
def test_eight_ranks_are_named(slow: int, *, more: bool) -> None:
    answer = found(run(100, ranks=10), slower_on(slow, ranks=10))
    assert ("7, ...:" in answer.sentence) is more
    assert ("7:" in answer.sentence) is not more
