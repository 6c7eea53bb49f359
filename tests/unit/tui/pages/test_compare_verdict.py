"""The verdict on a row of two runs: bytes exactly, times by the interval, else unknown."""

from dataclasses import replace

import pytest

from tests.support.diagnosis_reports import LATE, against_baseline, alone, larger_batch
from zprof.analysis.comparison import NO_INTERVAL
from zprof.model.findings import Cause, Severity
from zprof.model.gaps import Gap
from zprof.model.report import Difference
from zprof.model.side_by_side import Figure, Row
from zprof.tui.presenters.compare_verdict import (
    Judgement,
    Uncertainty,
    explain_judgement,
    find_uncertainty,
    format_judgement,
    judge_row,
)

MS = 1_000_000
DOUBT = Uncertainty(times_ns=5 * MS)
NO_DOUBT_KNOWN = Uncertainty(times_ns=None, why_not="too few steps")


def row(name: str, unit: str, a: Figure, b: Figure) -> Row:
    return Row(name=name, unit=unit, a=a, b=b)


@pytest.mark.parametrize(
    ("name", "unit", "a", "b", "expected"),
    [
        ("compute_ns", "ns", 100 * MS, 105 * MS, Judgement.NOISE),
        ("compute_ns", "ns", 100 * MS, 105 * MS + 1, Judgement.WORSE),
        ("compute_ns", "ns", 100 * MS, 95 * MS, Judgement.NOISE),
        ("compute_ns", "ns", 100 * MS, 95 * MS - 1, Judgement.BETTER),
        ("compute_ns", "ns", 7, 7, Judgement.SAME),
        ("overlapped_ns", "ns", 0, 100 * MS, Judgement.DIFFERS),
        ("collective_ns", "ns", 0, 100 * MS, Judgement.DIFFERS),
        ("latency_ns", "ns", 1 * MS, 100 * MS, Judgement.UNJUDGED),
        ("uncertainty_ns", "ns", 7, 7, Judgement.UNJUDGED),
        ("peak_bytes", "bytes", 1000, 1001, Judgement.WORSE),
        ("peak_bytes", "bytes", 1001, 1000, Judgement.BETTER),
        ("peak_bytes", "bytes", 1000, 1000, Judgement.SAME),
        ("seen_bytes", "bytes", 0, 1, Judgement.WORSE),
        ("bytes", "bytes", 2, 1, Judgement.BETTER),
        ("expected_bytes", "bytes", 2, 3, Judgement.EXACT),
        ("non_pytorch_bytes", "bytes", 2, 3, Judgement.UNJUDGED),
        ("count", "count", 5, 9.0, Judgement.EXACT),
        ("count", "count", 5, 5.0, Judgement.SAME),
        ("overlap_ratio", "ratio", 0.7, 0.1, Judgement.UNJUDGED),
        ("busbw_bytes_per_s", "bytes_per_s", 1.0, 2.0, Judgement.UNJUDGED),
        ("data type", "text", "float32", "bfloat16", Judgement.DIFFERS),
        ("data type", "text", "float32", "float32", Judgement.SAME),
        ("data type", "text", None, "float32", Judgement.UNKNOWN),
        ("compute_ns", "ns", None, 1, Judgement.UNKNOWN),
        ("peak_bytes", "bytes", 1, None, Judgement.UNKNOWN),
    ],
)
def test_a_row(name: str, unit: str, a: Figure, b: Figure, expected: Judgement) -> None:
    assert judge_row(row(name, unit, a, b), DOUBT) is expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((1, 9), Judgement.WORSE),
        ((-9, -1), Judgement.BETTER),
        ((-1, 9), Judgement.NOISE),
        ((0, 9), Judgement.NOISE),
    ],
)
def test_the_step_time_has_its_own_interval(own: tuple[int, int], expected: Judgement) -> None:
    step = row("wall_ns", "ns", 100 * MS, 100 * MS + 5)
    assert judge_row(step, DOUBT, own=own) is expected
    assert judge_row(step, NO_DOUBT_KNOWN, own=own) is Judgement.UNJUDGED, (
        "of one step or two it means nothing"
    )


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((0.1, 0.2), Judgement.BETTER),
        ((-0.2, -0.1), Judgement.WORSE),
        ((-0.1, 0.1), Judgement.NOISE),
        (None, Judgement.UNJUDGED),
    ],
)
def test_of_a_hidden_share_more_is_better(own: tuple[float, float] | None, expected: Judgement) -> None:
    assert judge_row(row("overlap_ratio", "ratio", 0.5, 0.6), DOUBT, own=own) is expected


def test_recordings_that_do_not_fit_together_are_not_judged() -> None:
    report = replace(against_baseline(), findings=(replace(LATE, cause=Cause.MEASUREMENT_ARTIFACT),))
    assert report.findings[0].severity is Severity.HIGH
    doubt = find_uncertainty(report)
    assert doubt.times_ns is None
    assert "do not fit together" in doubt.why_not
    assert judge_row(row("idle_ns", "ns", 1, 10**12), doubt) is Judgement.UNJUDGED


def test_without_an_interval_no_time_is_judged_and_bytes_are() -> None:
    assert judge_row(row("compute_ns", "ns", 1, 10**12), NO_DOUBT_KNOWN) is Judgement.UNJUDGED
    assert judge_row(row("peak_bytes", "bytes", 1, 2), NO_DOUBT_KNOWN) is Judgement.WORSE


def test_a_bound_is_not_judged() -> None:
    assert judge_row(row("peak_bytes", "bytes", 1, 2), DOUBT, is_bound=True) is Judgement.UNJUDGED


def test_the_doubt_is_half_the_interval_or_the_noise_floor() -> None:
    report = against_baseline()
    assert report.comparison is not None
    assert report.comparison.step_time is not None
    low, high = report.comparison.step_time.ci95
    floors = [rank.noise_floor_ns for rank in (*report.time.per_rank, *report.comparison.baseline_time)]
    assert find_uncertainty(report).times_ns == max((high - low) / 2, *floors)
    wide = replace(report.comparison.step_time, ci95=(0, 80 * MS))
    widened = replace(report, comparison=replace(report.comparison, step_time=wide))
    assert find_uncertainty(widened).times_ns == 40 * MS
    narrow = replace(report.comparison.step_time, ci95=(5, 5))
    narrowed = replace(report, comparison=replace(report.comparison, step_time=narrow))
    assert find_uncertainty(narrowed).times_ns == max(floors) > 0


def test_other_work_in_a_step_is_judged_per_token_only() -> None:
    report = larger_batch()
    assert find_uncertainty(report) == Uncertainty(
        times_ns=None, why_not="the steps are other work: n shows rank times a token"
    )
    assert find_uncertainty(report, per_token=True).times_ns == pytest.approx(1 * MS)


def test_other_jobs_of_unknown_work_are_not_judged() -> None:
    report = against_baseline()
    assert report.comparison is not None
    other = replace(report.comparison, equal_work=None, differences=(Difference(what="ranks", a="2", b="4"),))
    assert find_uncertainty(replace(report, comparison=other)).times_ns is None
    same = replace(other, differences=(Difference(what="modelled", a="nothing", b="a link"),))
    assert find_uncertainty(replace(report, comparison=same)).times_ns is not None


def test_few_steps_are_not_judged() -> None:
    few = Gap(what=NO_INTERVAL, reason="run has 1 timed step, an interval needs 3", remedy="record more")
    doubt = find_uncertainty(replace(against_baseline(), gaps=(few,)))
    assert doubt == Uncertainty(times_ns=None, why_not=few.reason)
    assert find_uncertainty(alone()).times_ns is None


def test_it_reads_without_colour_and_says_why() -> None:
    words = {format_judgement(judgement).text for judgement in Judgement}
    assert words == {
        "✓ better", "✗ worse", "= same", "* exact", "* differs", "~ noise", "? unknown", "not judged",
    }  # fmt: skip
    step = row("compute_ns", "ns", 1, 2)
    assert "no more than the doubt of the step time, 5.0 ms" in explain_judgement(
        Judgement.NOISE, step, DOUBT
    )
    assert "too few steps" in explain_judgement(Judgement.UNJUDGED, step, NO_DOUBT_KNOWN)
    assert "a side does not know it" in explain_judgement(Judgement.UNKNOWN, row("x", "ns", None, 1), DOUBT)
    assert "no interval" in explain_judgement(Judgement.UNJUDGED, row("x", "ratio", 0.1, 0.2), DOUBT)
    share = row("overlap_ratio", "ratio", 0.8, 0.1)
    assert "too few steps" in explain_judgement(Judgement.UNJUDGED, share, NO_DOUBT_KNOWN)
    assert "more is better" in explain_judgement(Judgement.WORSE, share, DOUBT)
    assert "less is better" in explain_judgement(Judgement.BETTER, row("peak_bytes", "bytes", 2, 1), DOUBT)
