"""The whole diagnosis: each planted cause comes first, a healthy run is left alone."""

from dataclasses import replace

import pytest

from tests.support.analyses import MS, Scenario, analysis_of, without_rank
from tests.support.peaks import gpu
from zprof.analysis.comparison import NO_INTERVAL
from zprof.model.findings import Cause, Confidence
from zprof.model.memory import AllocatorCounters
from zprof.model.report import Report, VerdictStatus
from zprof.model.time import Time
from zprof.rules.diagnose import diagnose

HEALTHY = Scenario(name="healthy")
DDP = Scenario(name="ddp", stage=0, bytes_per_s=180e6)
NO_PREFETCH = Scenario(name="zero3", prefetch=False, bytes_per_s=180e6)
FASTER_LINK = replace(NO_PREFETCH, name="faster link", bytes_per_s=200e6)


def report_of(plan: Scenario, baseline: Scenario | None = None) -> Report:
    return diagnose(analysis_of(plan), analysis_of(baseline) if baseline else None)


@pytest.mark.parametrize(
    ("plan", "baseline", "cause"),
    [
        (NO_PREFETCH, DDP, Cause.NO_PREFETCH),
        (NO_PREFETCH, None, Cause.NO_PREFETCH),
        (replace(NO_PREFETCH, bytes_per_s=60e6), FASTER_LINK, Cause.LOW_BUS_BANDWIDTH),
        (replace(HEALTHY, delay_ms={1: 40}), HEALTHY, Cause.STRAGGLER_RANK),
        (replace(HEALTHY, ranks=4, slower={2: 1.2}), None, Cause.STRAGGLER_RANK),
        (replace(HEALTHY, bytes_per_s=60e6), HEALTHY, Cause.LOW_BUS_BANDWIDTH),
    ],
)  # fmt: skip
def test_planted_cause_is_first(plan: Scenario, baseline: Scenario | None, cause: Cause) -> None:
    report = report_of(plan, baseline)
    assert report.findings[0].cause is cause
    status = VerdictStatus.SLOWER if baseline else VerdictStatus.RISK
    assert report.verdict.status is status
    assert report.verdict.sentence.startswith(status.value.upper())
    assert report.findings[0].sentence in report.verdict.sentence
    assert "\n" not in report.verdict.sentence


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 6))])
@pytest.mark.parametrize("plan", [HEALTHY, DDP, replace(HEALTHY, ranks=4), replace(HEALTHY, noise_ms=2.0)])
def test_healthy_run_has_no_finding_above_low(plan: Scenario, seed: int) -> None:
    report = report_of(replace(plan, seed=seed))
    assert all(finding.confidence is Confidence.LOW for finding in report.findings)
    assert report.verdict.status is VerdictStatus.OK


def test_the_same_run_twice_is_ok() -> None:
    report = report_of(replace(HEALTHY, seed=1), replace(HEALTHY, seed=2))
    assert report.verdict.status is VerdictStatus.OK
    assert report.findings == ()


def test_slower_without_a_known_cause_says_where_the_time_went() -> None:
    report = report_of(replace(HEALTHY, compute_ms=16), HEALTHY)
    assert report.verdict.status is VerdictStatus.SLOWER
    assert "no cause found; most of it is compute" in report.verdict.sentence


def test_faster_is_ok() -> None:
    report = report_of(HEALTHY, replace(HEALTHY, compute_ms=16))
    assert report.verdict.status is VerdictStatus.OK
    assert ", -2" in report.verdict.sentence


def test_savings_share_no_time() -> None:
    """No prefetch on a slow link: both causes see the same exposed transfer."""
    slow = analysis_of(replace(NO_PREFETCH, bytes_per_s=60e6))
    report = diagnose(slow, analysis_of(FASTER_LINK))
    assert {f.cause for f in report.findings} >= {Cause.NO_PREFETCH, Cause.LOW_BUS_BANDWIDTH}
    terms = ("exposed_transfer_ns", "exposed_wait_ns", "idle_ns")
    limit = sum(max(getattr(rank, term) for rank in report.time.per_rank) for term in terms)
    assert sum(finding.saving_ns[1] for finding in report.findings) <= limit


def test_spoiled_measurement_is_inconclusive() -> None:
    report = report_of(replace(NO_PREFETCH, uncertainty_ns=60 * MS), DDP)
    assert report.verdict.status is VerdictStatus.INCONCLUSIVE
    assert report.findings[0].cause is Cause.MEASUREMENT_ARTIFACT


def test_a_note_comes_after_the_cause() -> None:
    report = report_of(replace(NO_PREFETCH, first_skew_ms=60), DDP)
    assert [f.cause for f in report.findings] == [Cause.NO_PREFETCH, Cause.MEASUREMENT_ARTIFACT]


def test_few_steps_against_a_baseline_are_inconclusive() -> None:
    report = report_of(replace(NO_PREFETCH, steps=2), DDP)
    assert report.verdict.status is VerdictStatus.INCONCLUSIVE
    assert any(gap.what == "step time interval" for gap in report.gaps)


def test_a_baseline_of_one_step_is_inconclusive() -> None:
    report = report_of(NO_PREFETCH, replace(DDP, steps=1))
    assert report.verdict.status is VerdictStatus.INCONCLUSIVE
    assert report.verdict.sentence.endswith(": too few steps to tell it from noise")
    assert "ddp has 1 timed step" in next(g.reason for g in report.gaps if g.what == NO_INTERVAL)


@pytest.mark.parametrize("plan", [NO_PREFETCH, HEALTHY])
def test_a_baseline_without_times_is_said_and_not_passed_over(plan: Scenario) -> None:
    """Neither risk nor ok: what was asked for is the comparison.  What the run shows by itself is told."""
    before = analysis_of(DDP)
    silent = replace(
        before, time=Time(), steps=before.steps.iloc[:0], collectives=before.collectives.iloc[:0]
    )
    report = diagnose(analysis_of(plan), silent)
    assert report.verdict.status is VerdictStatus.INCONCLUSIVE
    assert "ms a step, not compared: no step of ddp was timed" in report.verdict.sentence
    assert report.comparison is None or report.comparison.step_time is None
    alone = "; by itself: all_gathers begin only when" in report.verdict.sentence
    assert alone == (plan is NO_PREFETCH)


def test_missing_rank_is_said_and_nobody_accused() -> None:
    report = diagnose(without_rank(analysis_of(replace(HEALTHY, ranks=3, delay_ms={1: 40})), 2))
    assert report.verdict.status is VerdictStatus.INCONCLUSIVE
    assert "2 of 3 ranks" in report.verdict.sentence
    assert not any(finding.cause is Cause.STRAGGLER_RANK for finding in report.findings)
    assert [gap.rank for gap in report.gaps if gap.what == "rank missing"] == [2]


def test_no_timed_step_is_inconclusive() -> None:
    analysis = analysis_of(HEALTHY)
    empty = replace(
        analysis, time=Time(), steps=analysis.steps.iloc[:0], collectives=analysis.collectives.iloc[:0]
    )
    for baseline in (None, analysis_of(DDP)):
        report = diagnose(empty, baseline)
        assert report.verdict.status is VerdictStatus.INCONCLUSIVE
        assert report.comparison is None


def test_gaps_of_the_baseline_are_told_as_such() -> None:
    report = diagnose(analysis_of(HEALTHY), without_rank(analysis_of(DDP), 1))
    assert any(gap.what == "baseline: rank missing" and gap.rank == 1 for gap in report.gaps)


def test_expected_bandwidth_reaches_the_rule() -> None:
    analysis = analysis_of(replace(HEALTHY, bytes_per_s=60e6))
    assert diagnose(analysis, expected_bus_bytes_per_s=500e6).findings[0].cause is Cause.LOW_BUS_BANDWIDTH
    assert any("low_bus_bandwidth" in gap.what for gap in diagnose(analysis).gaps)


def test_without_a_timed_step_the_allocator_is_asked_all_the_same() -> None:
    """It claims idle time, where there is any; its counters need none."""
    run = gpu(reserved_bytes=70 << 20, split_bytes=0)
    counter = AllocatorCounters(
        rank=0, device="cuda:0", peak_allocated_bytes=1, peak_reserved_bytes=1, retries=9, ooms=0
    )
    report = diagnose(replace(run, memory=replace(run.memory, counters=(counter,))))
    assert Cause.ALLOCATOR_RETRIES in {finding.cause for finding in report.findings}
    assert not any("no_prefetch" in gap.what for gap in report.gaps)
