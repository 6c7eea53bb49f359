"""No finding saves more than the time that it is taken from, and none is rated above what it saves."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.analyses import MS
from tests.support.diagnoses import Diagnosed, base, diagnosed, planted
from tests.support.rule_runs import claim, run_of, with_terms
from zprof.analysis.analysis import mean_wall_ns
from zprof.base.formatting import format_frequency
from zprof.causes import load_causes
from zprof.diagnosis.claims import split_savings
from zprof.diagnosis.find_causes import find_causes, rate_by_range
from zprof.model.findings import Confidence, Evidence, SavingNote, Severity
from zprof.model.gaps import Gap, GapKind
from zprof.simulator.job import CAUSES as PLANTS
from zprof.simulator.job import Vendor

_FAST = (
    "cpu_bound_launch",
    "straggler_rank",
    "comm_slows_compute",
    "units_too_small",
)


def assert_within_limits(job: Diagnosed) -> None:
    """Check each saving against the largest value of its terms on any rank, in the mean or in one step."""
    time = job.analysis.time
    for finding in job.report.findings:
        claims = load_causes()[finding.cause].terms
        terms = sum(max(getattr(row, term, 0) for row in (*time.per_rank, *time.steps)) for term in claims)
        low, high = finding.saving_ns
        assert 0 <= low <= high <= min(terms, max(rank.wall_ns for rank in time.per_rank)), finding.cause
        if high > 4 * low:
            assert finding.confidence is not Confidence.HIGH, finding.cause
        if 0 < high < 0.05 * mean_wall_ns(job.analysis):
            assert finding.severity is Severity.LOW, finding.cause


@pytest.mark.parametrize(
    "cause", [pytest.param(each, marks=() if each in _FAST else pytest.mark.slow) for each in PLANTS]
)
@pytest.mark.parametrize("vendor", ["nvidia", pytest.param("gloo", marks=pytest.mark.slow)])
def test_no_saving_exceeds_what_it_is_taken_from(tmp_path: Path, cause: str, vendor: Vendor) -> None:
    assert_within_limits(planted(cause, base(5, vendor), tmp_path))


def test_a_healthy_job_is_no_risk_for_a_minor_cost(tmp_path: Path) -> None:
    job = diagnosed(base(7), tmp_path)
    assert_within_limits(job)
    assert job.report.verdict.status.value != "risk"


def test_nothing_is_more_than_a_guess_if_the_ends_of_steps_are_uncertain(tmp_path: Path) -> None:
    analysis = planted("straggler_rank", base(5), tmp_path).analysis
    gap = Gap(kind=GapKind.STEP_BOUNDARIES, what="", reason="", remedy="")
    uncertain = replace(analysis, gaps=(*analysis.gaps, gap))
    sure, unsure = (
        {each.confidence for each in find_causes(load_causes(), each_run, None)[0]}
        for each_run in (analysis, uncertain)
    )
    assert Confidence.HIGH in sure
    assert unsure == {Confidence.LOW}


@pytest.mark.parametrize("replayed", [(), ("copy_overhead",)])
def test_copies_save_no_more_than_their_own_time(replayed: tuple[str, ...]) -> None:
    """A replay gains 3 ms without copies of 2 ms; the compute that they belong to takes longer."""
    stated = Evidence(key="copies", what="", value=2 * MS, unit="ns")
    finding = replace(claim("copy_overhead", MS, 3 * MS), evidence=(stated,))
    records = with_terms("copy_overhead", "compute_ns", taken_from="copies")
    (kept,) = split_savings([finding], records, run_of().time.per_rank, (), replayed)
    assert kept.saving_ns == (MS, 2 * MS)


def test_a_replayed_saving_stays_within_its_terms() -> None:
    ranks = [replace(rank, idle_ns=5 * MS) for rank in run_of().time.per_rank]
    records = with_terms("cpu_bound_launch", "idle_ns")
    finding = claim("cpu_bound_launch", 4 * MS, 9 * MS)
    (kept,) = split_savings([finding], records, ranks, (), ("cpu_bound_launch",))
    assert (kept.saving_ns, kept.saving_notes) == ((4 * MS, 5 * MS), (SavingNote.LIMITED_TO_LOSS,))


@pytest.mark.parametrize(
    ("saving_ms", "severity", "confidence"),
    [
        ((10, 40), Severity.HIGH, Confidence.HIGH),
        ((10, 41), Severity.HIGH, Confidence.MEDIUM),
        ((0, 12), Severity.HIGH, Confidence.MEDIUM),
        ((1, 2), Severity.LOW, Confidence.HIGH),
        ((5, 6), Severity.MEDIUM, Confidence.HIGH),
        ((0, 0), Severity.HIGH, Confidence.HIGH),  # it says nothing about time
    ],
)
def test_ratings_follow_the_range(
    saving_ms: tuple[int, int], severity: Severity, confidence: Confidence
) -> None:
    low, high = saving_ms
    rated = rate_by_range(claim("no_prefetch", low * MS, high * MS), 100 * MS)
    assert (rated.severity, rated.confidence) == (severity, confidence)


@pytest.mark.parametrize("per_step", [0.001, 0.04, 0.3, 0.5, 1.0, 2.5, 12.0])
def test_no_event_that_occurs_is_reported_as_never(per_step: float) -> None:
    words = format_frequency(per_step, "per step").split()
    assert "0" not in words
    assert "0.0" not in words
