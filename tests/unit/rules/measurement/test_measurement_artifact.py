"""measurement_artifact: start-up skew is a note, clocks that cannot tell spoil the answer."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from tests.support.exact import with_clocks, with_walls
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.intervals import EMPTY
from zprof.analysis.time.clocks.rank_clock import RankClock
from zprof.analysis.time.ledger import RankTracks
from zprof.analysis.time.steps import StepWindows
from zprof.model.findings import Cause, Confidence, Finding, Severity
from zprof.model.gaps import Gap
from zprof.rules.claims import order_findings, spoils_times
from zprof.rules.measurement_artifact import START_COST_PER_STEP, measurement_artifact


def found(analysis: RunAnalysis) -> Finding:
    answer = measurement_artifact(analysis, None)
    assert isinstance(answer, Finding), answer
    assert answer.id == "ZP101"
    assert answer.saving_ns == (0, 0)
    return answer


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_healthy_run_has_none(ranks: int) -> None:
    assert measurement_artifact(analysis_of(Scenario(ranks=ranks)), None) is None


def test_start_up_skew_is_a_note() -> None:
    finding = found(analysis_of(Scenario(first_skew_ms=10)))
    assert (finding.severity, finding.confidence) == (Severity.LOW, Confidence.LOW)
    assert "first collective" in finding.sentence


def test_start_up_skew_that_moves_the_means_is_more() -> None:
    assert found(analysis_of(Scenario(first_skew_ms=400))).severity is Severity.MEDIUM


def test_start_up_skew_below_a_fifth_of_exposed_waiting_is_nothing() -> None:
    """Of 13.6 ms beside it that compute does not hide; another 96 ms it does."""
    assert measurement_artifact(analysis_of(Scenario(first_skew_ms=3)), None) is None
    assert found(analysis_of(Scenario(first_skew_ms=4))).severity is Severity.LOW


def test_waiting_that_compute_hides_is_no_start_up_skew() -> None:
    analysis = analysis_of(Scenario(first_skew_ms=400))
    rows = analysis.collectives
    hidden = rows["exposed_wait_ns"].where(~rows["first_of_window"].astype(bool), 0)
    assert measurement_artifact(analysis, None) is not None
    covered = replace(analysis, collectives=rows.assign(exposed_wait_ns=hidden))
    assert measurement_artifact(covered, None) is None


def test_a_lost_event_makes_no_window_start() -> None:
    """Rank 1 lost its first row: what it has in its place the other ranks have as their second."""
    analysis = analysis_of(Scenario(ranks=4))
    rows = analysis.collectives
    first = rows["instance"].min()
    rest = rows[(rows["rank"] != 1) | (rows["instance"] != first)]
    is_first = rest["first_of_window"] | ((rest["rank"] == 1) & (rest["instance"] == first + 1))
    waits = rest["exposed_wait_ns"].where((rest["rank"] != 1) | ~is_first, 400 * MS)
    lost = rest.assign(first_of_window=is_first, exposed_wait_ns=waits, wait_ns=waits)
    assert measurement_artifact(replace(analysis, collectives=lost), None) is None


def test_a_rank_that_is_late_at_the_first_collective_of_each_step_is_no_start_up() -> None:
    """Its data comes late: the window's first collective waits as long as that of any other step."""
    analysis = analysis_of(Scenario(ranks=4, steps=3, first_skew_ms=40))
    rows = analysis.collectives
    first = rows.groupby(["rank", "step"])["start_ns"].transform("min") == rows["start_ns"]
    waits = rows["exposed_wait_ns"].where(~first, 40 * MS)
    each_step = replace(analysis, collectives=rows.assign(exposed_wait_ns=waits))
    assert measurement_artifact(analysis, None) is not None
    assert measurement_artifact(each_step, None) is None


@pytest.mark.parametrize(("lost", "spoils"), [(0.4, False), (0.6, True)])
def test_recordings_that_do_not_fit_together_spoil_the_answer(lost: float, *, spoils: bool) -> None:
    analysis = analysis_of(Scenario(ranks=2))
    rows = analysis.collectives
    matched = rows["sequence"] >= lost * rows["sequence"].nunique()
    unfit = replace(analysis, collectives=rows.assign(matched=matched))
    assert (measurement_artifact(unfit, None) is not None) is spoils
    if spoils:
        assert found(unfit).severity is Severity.HIGH
        missing = replace(unfit, run=replace(unfit.run, ranks_loaded=(0,)))
        assert measurement_artifact(missing, None) is None


def test_clocks_that_cannot_tell_spoil_the_answer() -> None:
    finding = found(analysis_of(Scenario(uncertainty_ns=30 * MS)))
    assert finding.severity is Severity.HIGH
    assert "clocks" in finding.sentence


def test_clocks_coarser_than_tiny_waits_do_not_matter() -> None:
    assert measurement_artifact(analysis_of(Scenario(noise_ms=0.0, uncertainty_ns=MS // 2)), None) is None


def test_clocks_finer_than_the_waits_are_good_enough() -> None:
    plan = Scenario(delay_ms={1: 40}, uncertainty_ns=3 * MS)
    assert measurement_artifact(analysis_of(plan), None) is None


def test_windows_that_differ() -> None:
    analysis = analysis_of(Scenario())
    early = (analysis.steps["rank"] == 0) & (analysis.steps["step"] < 2)
    finding = found(replace(analysis, steps=analysis.steps[~early]))
    assert "6 of 8 steps" in finding.sentence
    assert finding.severity is Severity.LOW


def test_windows_without_a_common_step_spoil_the_answer() -> None:
    analysis = analysis_of(Scenario())
    first = analysis.steps["rank"] == 0
    apart = analysis.steps.assign(step=analysis.steps["step"].where(first, analysis.steps["step"] + 100))
    assert found(replace(analysis, steps=apart)).severity is Severity.HIGH


def test_no_steps_is_not_tested() -> None:
    analysis = analysis_of(Scenario())
    assert isinstance(measurement_artifact(replace(analysis, steps=analysis.steps.iloc[:0]), None), Gap)


def test_a_snapshot_has_no_times_to_be_tested() -> None:
    analysis = analysis_of(Scenario(steps=1))
    snapshot = replace(analysis, steps=analysis.steps.iloc[:0], run=replace(analysis.run, source="snapshot"))
    assert measurement_artifact(snapshot, None) is None


def waiting(first_ns: int, rest_ns: int = 0, *, uncertainty_ns: int = 0, floor_ns: int = 0) -> RunAnalysis:
    """Two ranks, eight steps of 100 ms: what waits in the window's first collective, and in the last one."""
    analysis = with_walls(analysis_of(Scenario(ranks=2)))
    rows = analysis.collectives.assign(wait_ns=0)
    opening = rows.index[rows["first_of_window"].astype(bool)][0]
    rows.loc[opening, "wait_ns"], rows.loc[rows["start_ns"].idxmax(), "wait_ns"] = first_ns, rest_ns
    made = with_clocks(analysis, uncertainty_ns=uncertainty_ns, noise_floor_ns=floor_ns)
    return replace(made, collectives=rows.assign(exposed_wait_ns=rows["wait_ns"]))


@pytest.mark.parametrize(("more", "there"), [(0, False), (1, True)])
def test_a_fifth_of_all_waiting_and_the_noise_floor_are_the_limit(more: int, *, there: bool) -> None:
    at_a_fifth = waiting(20 * MS + 5 * more, 80 * MS)
    assert (measurement_artifact(at_a_fifth, None) is not None) is there
    at_the_floor = waiting(20 * MS + more, floor_ns=20 * MS)
    assert (measurement_artifact(at_the_floor, None) is not None) is there


@pytest.mark.parametrize(("more", "severity"), [(0, Severity.LOW), (1, Severity.MEDIUM)])
def test_skew_of_a_twentieth_of_the_step_matters(more: int, severity: Severity) -> None:
    assert found(waiting(8 * (5 * MS + more))).severity is severity


@pytest.mark.parametrize(("more", "confidence"), [(0, Confidence.LOW), (1, Confidence.MEDIUM)])
def test_skew_is_named_where_a_cause_that_costs_as_much_is(more: int, confidence: Confidence) -> None:
    assert found(waiting(8 * (3 * MS // 2 + more))).confidence is confidence


def lost_a_step_ns(finding: Finding) -> float:
    (lost,) = [entry.value for entry in finding.evidence if entry.what == START_COST_PER_STEP]
    return lost


@pytest.mark.parametrize(("hidden_ms", "lost_ms"), [(400, 5), (24, 3)])
def test_a_start_that_compute_hides_is_waited_out_later_in_its_step(hidden_ms: int, lost_ms: int) -> None:
    """What it costs is what the step exposes, and no more than the first collective waited."""
    analysis = waiting(40 * MS)
    rows = analysis.collectives
    rank = rows.loc[rows["exposed_wait_ns"].idxmax(), "rank"]
    of_step = rows[(rows["rank"] == rank) & (rows["step"] == rows["step"].min())]
    opening, last = of_step["start_ns"].idxmin(), of_step["start_ns"].idxmax()
    exposed, waits = rows["exposed_wait_ns"].copy(), rows["wait_ns"].copy()
    exposed[opening], exposed[last] = 0, 40 * MS
    waits[opening], waits[last] = hidden_ms * MS, 40 * MS
    moved = replace(analysis, collectives=rows.assign(exposed_wait_ns=exposed, wait_ns=waits))
    assert lost_a_step_ns(found(moved)) == lost_ms * MS


@pytest.mark.parametrize(
    ("waited_ms", "recorded_ms", "there"), [(60, 200, True), (60, 110, False), (10, 200, False)]
)
def test_a_start_before_the_first_step_is_named(waited_ms: int, recorded_ms: int, *, there: bool) -> None:
    """Eight steps of 100 ms, and one left out: a wait, and no longer than that one takes longer."""
    analysis = waiting(0)
    begins = np.array([recorded_ms * MS])
    steps = StepWindows(number=np.array([0]), begin_ns=begins, end_ns=begins + 100 * MS)
    tracks = RankTracks(
        rank=0, host="", clock=RankClock(), steps=steps, host_steps=steps,
        coverage=np.array([[0, 1_000 * MS]]), waiting=EMPTY, moving=EMPTY, wait_before_ns=waited_ms * MS,
    )  # fmt: skip
    late = replace(analysis, tracks=(tracks,))
    assert (measurement_artifact(late, None) is not None) is there
    if there:
        assert "before the first step" in found(late).sentence
        assert (found(late).severity, found(late).confidence) == (Severity.LOW, Confidence.MEDIUM)


@pytest.mark.parametrize(("more", "there"), [(0, False), (1, True)])
def test_clocks_as_certain_as_the_waits_and_as_a_straggler_needs_are_good_enough(
    more: int, *, there: bool
) -> None:
    as_the_waits = waiting(0, 16 * 10 * MS, uncertainty_ns=10 * MS + more)
    assert (measurement_artifact(as_the_waits, None) is not None) is there
    tenth_of_a_straggler = waiting(0, uncertainty_ns=MS // 2 + more)
    assert (measurement_artifact(tenth_of_a_straggler, None) is not None) is there


@pytest.mark.parametrize(
    ("more", "severity", "confidence"),
    [(0, Severity.LOW, Confidence.LOW), (1, Severity.HIGH, Confidence.HIGH)],
)
def test_clocks_that_hide_a_straggler_spoil_the_answer(
    more: int, severity: Severity, confidence: Confidence
) -> None:
    finding = found(waiting(0, uncertainty_ns=5 * MS + more))
    assert (finding.severity, finding.confidence) == (severity, confidence)


def test_half_of_the_collectives_matched_is_enough() -> None:
    analysis = analysis_of(Scenario(ranks=2))
    rows = analysis.collectives.reset_index(drop=True)
    for lost, there in ((len(rows) // 2, False), (len(rows) // 2 + 1, True)):
        unfit = replace(analysis, collectives=rows.assign(matched=rows.index >= lost))
        assert (measurement_artifact(unfit, None) is not None) is there


def test_a_group_of_one_rank_has_nothing_to_match() -> None:
    analysis = analysis_of(Scenario(ranks=2))
    alone = analysis.collectives.assign(group_size=1, matched=False)
    assert measurement_artifact(replace(analysis, collectives=alone), None) is None


@pytest.mark.parametrize(
    ("skew_ms", "confidence"), [(1, Confidence.LOW), (8, Confidence.MEDIUM), (12, Confidence.HIGH)]
)
def test_a_start_that_costs_a_tenth_of_the_step_is_said_before_all_causes(
    skew_ms: int, confidence: Confidence
) -> None:
    finding = found(waiting(8 * skew_ms * MS))
    assert finding.confidence is confidence
    cause = replace(finding, cause=Cause.NO_PREFETCH, saving_ns=(MS, MS), confidence=Confidence.HIGH)
    assert (order_findings([cause, finding])[0] is finding) is (confidence is Confidence.HIGH)
    assert not spoils_times(finding)
