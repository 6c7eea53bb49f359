"""The whole diagnosis on hand-made runs: a planted cause comes first, a healthy run has none."""

import pytest
from msgspec.structs import replace

from tests.support.analyses import MS, Scenario, without_rank
from tests.support.peaks import gpu
from tests.support.rule_runs import run_of, without_collectives
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.compare.differences import list_baseline_gaps
from zprof.diagnosis.diagnose import diagnose
from zprof.model.findings import Confidence
from zprof.model.gaps import GapKind
from zprof.model.memory import AllocatorCounters
from zprof.model.report import Report, VerdictStatus
from zprof.model.time import Time

HEALTHY = Scenario(name="healthy")
DDP = Scenario(name="ddp", stage=0, bytes_per_s=180e6)
NO_PREFETCH = Scenario(name="zero3", prefetch=False, bytes_per_s=180e6)
SPOILED = replace(NO_PREFETCH, uncertainty_ns=60 * MS)
FASTER_LINK = replace(NO_PREFETCH, name="faster link", bytes_per_s=200e6)


_reports: dict[str, Report] = {}


def report_of(plan: Scenario, baseline: Scenario | None = None) -> Report:
    """Return the report on a scenario; it is made once."""
    key = repr((plan, baseline))
    if key not in _reports:
        _reports[key] = diagnose(run_of(plan), run_of(baseline) if baseline else None)
    return _reports[key]


def untimed(plan: Scenario) -> RunAnalysis:
    analysis = without_collectives(run_of(plan))
    return replace(analysis, time=Time(), steps=analysis.steps.at(slice(0)))


@pytest.mark.parametrize(
    ("plan", "baseline", "cause"),
    [
        (NO_PREFETCH, DDP, "no_prefetch"),
        (replace(NO_PREFETCH, bytes_per_s=60e6), FASTER_LINK, "low_bus_bandwidth"),
        (replace(HEALTHY, delay_ms={1: 40}), HEALTHY, "straggler_rank"),
        (replace(HEALTHY, ranks=4, slower={2: 1.2}), None, "straggler_rank"),
    ],
)
def test_a_planted_cause_is_first(plan: Scenario, baseline: Scenario | None, cause: str) -> None:
    report = report_of(plan, baseline)
    first = report.findings[0]
    assert first.cause == cause
    assert report.verdict.status is (VerdictStatus.SLOWER if baseline else VerdictStatus.RISK)
    assert first.sentence in report.verdict.sentence
    assert "\n" not in report.verdict.sentence


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.parametrize(
    "plan", [HEALTHY, pytest.param(DDP, marks=pytest.mark.slow), replace(HEALTHY, ranks=3, noise_ms=2.0)]
)
def test_a_healthy_run_has_nothing_above_low_confidence(plan: Scenario, seed: int) -> None:
    report = report_of(replace(plan, seed=seed))
    assert all(finding.confidence is Confidence.LOW for finding in report.findings)
    assert report.verdict.status is VerdictStatus.OK


@pytest.mark.parametrize(
    ("plan", "baseline", "status"),
    [
        (HEALTHY, replace(HEALTHY, compute_ms=16), VerdictStatus.OK),
        (replace(HEALTHY, compute_ms=16), HEALTHY, VerdictStatus.SLOWER),
        (SPOILED, DDP, VerdictStatus.INCONCLUSIVE),
        (replace(NO_PREFETCH, steps=2), DDP, VerdictStatus.INCONCLUSIVE),
        (NO_PREFETCH, replace(DDP, steps=1), VerdictStatus.INCONCLUSIVE),
    ],
    ids=["faster", "slower", "clocks", "few steps", "baseline of one step"],
)
def test_the_verdict_against_a_baseline(plan: Scenario, baseline: Scenario, status: VerdictStatus) -> None:
    report = report_of(plan, baseline)
    assert report.verdict.status is status
    assert any(gap.kind is GapKind.NO_INTERVAL for gap in report.gaps) is (
        min(plan.steps, baseline.steps) < 3
    )


def test_savings_share_no_time() -> None:
    """No prefetch on a slow link: both causes see the same exposed transfer."""
    report = report_of(replace(NO_PREFETCH, bytes_per_s=60e6), FASTER_LINK)
    assert {finding.cause for finding in report.findings} >= {"no_prefetch", "low_bus_bandwidth"}
    terms = ("exposed_transfer_ns", "exposed_wait_ns", "idle_ns")
    limit = sum(max(getattr(rank, term) for rank in report.time.per_rank) for term in terms)
    assert sum(finding.saving_ns[1] for finding in report.findings) <= limit


def test_savings_are_as_wide_as_the_noise_of_the_steps() -> None:
    analysis = run_of(NO_PREFETCH)
    assert analysis.time.step_noise_ns
    exact = diagnose(replace(analysis, time=replace(analysis.time, step_noise_ns=0))).findings[0]
    lower = exact.saving_ns[0] - report_of(NO_PREFETCH).findings[0].saving_ns[0]
    assert lower == pytest.approx(min(analysis.time.step_noise_ns, exact.saving_ns[0] / 4), abs=1)


def test_a_measurement_note_comes_after_the_cause_and_a_spoiled_one_before() -> None:
    noted = report_of(replace(NO_PREFETCH, first_skew_ms=60), DDP)
    assert [f.cause for f in noted.findings] == ["no_prefetch", "measurement_artifact"]
    spoiled = report_of(SPOILED, DDP)
    assert spoiled.findings[0].cause == "measurement_artifact"


@pytest.mark.parametrize("plan", [NO_PREFETCH, HEALTHY])
def test_a_baseline_without_times_is_inconclusive_and_the_run_is_judged_alone(plan: Scenario) -> None:
    report = diagnose(run_of(plan), untimed(DDP))
    assert report.verdict.status is VerdictStatus.INCONCLUSIVE
    assert report.comparison is None or report.comparison.step_time is None
    named = any(finding.sentence in report.verdict.sentence for finding in report.findings)
    assert named is (plan is NO_PREFETCH)


@pytest.mark.parametrize("baseline", [None, DDP])
def test_a_run_without_a_timed_step_is_inconclusive(baseline: Scenario | None) -> None:
    report = diagnose(untimed(HEALTHY), run_of(baseline) if baseline else None)
    assert report.verdict.status is VerdictStatus.INCONCLUSIVE
    assert report.comparison is None


def test_a_missing_rank_is_a_gap_and_nobody_is_accused() -> None:
    late = run_of(replace(HEALTHY, ranks=3, delay_ms={1: 40}))
    report = diagnose(without_rank(late, 2))
    assert report.verdict.status is VerdictStatus.INCONCLUSIVE
    assert not any(finding.cause == "straggler_rank" for finding in report.findings)
    assert [gap.rank for gap in report.gaps if gap.kind is GapKind.RANK_MISSING] == [2]
    assert [gap.rank for gap in list_baseline_gaps(without_rank(run_of(DDP), 1), late)] == [1]


def test_the_expected_bandwidth_reaches_the_rule() -> None:
    plan = replace(NO_PREFETCH, steps=4)
    causes = {finding.cause for finding in diagnose(run_of(plan), expected_bus_bytes_per_s=500e6).findings}
    assert "low_bus_bandwidth" in causes
    assert any("low_bus_bandwidth" in gap.what for gap in report_of(NO_PREFETCH).gaps)


def test_allocator_counters_are_judged_without_a_timed_step() -> None:
    run = gpu(reserved_bytes=70 << 20, split_bytes=0)
    counter = AllocatorCounters(
        rank=0, device="cuda:0", peak_allocated_bytes=1, peak_reserved_bytes=1, retries=9, ooms=0
    )
    report = diagnose(replace(run, memory=replace(run.memory, counters=(counter,))))
    assert "allocator_retries" in {finding.cause for finding in report.findings}
    assert not any("no_prefetch" in gap.what for gap in report.gaps)
