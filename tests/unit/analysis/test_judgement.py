"""The verdict on a row of two runs: bytes exactly, times by the interval, else unknown."""

import pytest
from msgspec.structs import replace

from tests.support.diagnosis_reports import LATE, against_baseline, alone, larger_batch
from zprof.analysis.compare.judgement import Uncertainty, find_uncertainty, judge_row
from zprof.model.comparison import ComparedRow, ComparedValue, Judgement
from zprof.model.gaps import Gap, GapKind
from zprof.model.metrics import find_metric
from zprof.model.quantities import parse_path
from zprof.model.report import Difference
from zprof.reports.pages.compare_table import format_judgement

MS = 1_000_000
#: The list of the report that a row of this name is of, if it is not a rank's time.
STEMS = {
    "latency_ns": "time.fits[]",
    "uncertainty_ns": "time.alignment",
    "seen_bytes": "volume",
    "expected_bytes": "volume",
    "peak_bytes": "memory.per_rank[]",
    "non_pytorch_bytes": "memory.per_rank[]",
    "count": "time.collectives[]",
    "busbw_bytes_per_s": "time.collectives[]",
}
KNOWN = Uncertainty(times_ns=5 * MS)
UNKNOWN = Uncertainty(times_ns=None, reason="too few steps")


def make_row(name: str, unit: str, a: ComparedValue, b: ComparedValue) -> ComparedRow:
    leaf = f"{STEMS.get(name, 'time.per_rank[]')}.{name}"
    assert unit == "text" or find_metric(parse_path(leaf)), leaf
    return ComparedRow(name=name, unit=unit, a=a, b=b, leaf=leaf)


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
def test_a_row_is_judged_by_its_unit_and_name(
    name: str, unit: str, a: ComparedValue, b: ComparedValue, expected: Judgement
) -> None:
    assert judge_row(make_row(name, unit, a, b), KNOWN) is expected


@pytest.mark.parametrize(
    ("name", "unit", "own", "expected"),
    [
        ("wall_ns", "ns", (1, 9), Judgement.WORSE),
        ("wall_ns", "ns", (-9, -1), Judgement.BETTER),
        ("wall_ns", "ns", (-1, 9), Judgement.NOISE),
        ("wall_ns", "ns", (0, 9), Judgement.NOISE),
        ("overlap_ratio", "ratio", (0.1, 0.2), Judgement.BETTER),
        ("overlap_ratio", "ratio", (-0.2, -0.1), Judgement.WORSE),
        ("overlap_ratio", "ratio", (-0.1, 0.1), Judgement.NOISE),
    ],
)
def test_step_time_and_hidden_share_have_intervals_of_their_own(
    name: str, unit: str, own: tuple[float, float], expected: Judgement
) -> None:
    assert judge_row(make_row(name, unit, 1, 2), KNOWN, own=own) is expected


def test_without_an_interval_and_of_bounds_no_merit_is_known() -> None:
    compute = make_row("compute_ns", "ns", 1, 10**12)
    peak = make_row("peak_bytes", "bytes", 1, 2)
    step = make_row("wall_ns", "ns", 1, 2)
    assert judge_row(compute, UNKNOWN) is Judgement.UNJUDGED
    assert judge_row(step, UNKNOWN, own=(1, 9)) is Judgement.UNJUDGED
    assert judge_row(peak, UNKNOWN) is Judgement.WORSE
    assert judge_row(peak, KNOWN, is_bound=True) is Judgement.UNJUDGED


def test_the_uncertainty_is_half_the_interval_or_the_noise_floor() -> None:
    report = against_baseline()
    floors = [rank.noise_floor_ns for rank in (*report.time.per_rank, *report.comparison.baseline_time)]
    for interval, expected in (((0, 80 * MS), 40 * MS), ((5, 5), max(floors))):
        step_time = replace(report.comparison.step_time, ci95=interval)
        changed = replace(report, comparison=replace(report.comparison, step_time=step_time))
        assert find_uncertainty(changed).times_ns == expected > 0


def test_other_work_in_a_step_is_judged_per_token_only() -> None:
    assert find_uncertainty(larger_batch()).times_ns is None
    assert find_uncertainty(larger_batch(), per_token=True).times_ns == pytest.approx(1 * MS)


def test_jobs_of_unknown_work_few_steps_and_unfit_recordings_are_not_judged() -> None:
    report = against_baseline()
    other = replace(
        report.comparison,
        equal_work=None,
        differences=(Difference(key="world_size", what="ranks", a="2", b="4"),),
    )
    assert find_uncertainty(replace(report, comparison=other)).times_ns is None
    same = replace(other, differences=(Difference(key="modelled", what="modelled", a="nothing", b="a link"),))
    assert find_uncertainty(replace(report, comparison=same)).times_ns is not None
    few = Gap(
        kind=GapKind.NO_INTERVAL,
        what="step time interval",
        reason="run has 1 timed step, an interval needs 3",
        remedy="record more",
    )
    assert find_uncertainty(replace(report, gaps=(few,))) == Uncertainty(times_ns=None, reason=few.reason)
    unfit = replace(report, findings=(replace(LATE, id="ZP101"),))
    assert find_uncertainty(unfit).times_ns is None
    assert find_uncertainty(alone()).times_ns is None


def test_verdicts_are_told_apart_without_colour() -> None:
    assert len({format_judgement(judgement).text for judgement in Judgement}) == len(Judgement)
