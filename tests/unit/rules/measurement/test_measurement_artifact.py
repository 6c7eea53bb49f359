"""measurement_artifact: start-up skew is a note, clocks that cannot tell spoil the answer."""

from dataclasses import replace

import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.gaps import Gap
from zprof.rules.measurement.measurement_artifact import measurement_artifact


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
    finding = found(analysis_of(Scenario(first_skew_ms=40)))
    assert (finding.severity, finding.confidence) == (Severity.LOW, Confidence.LOW)
    assert "first collective" in finding.sentence


def test_start_up_skew_that_moves_the_means_is_more() -> None:
    assert found(analysis_of(Scenario(first_skew_ms=400))).severity is Severity.MEDIUM


def test_start_up_skew_below_a_fifth_of_waiting_is_nothing() -> None:
    assert measurement_artifact(analysis_of(Scenario(first_skew_ms=4)), None) is None


def test_a_rank_that_is_late_at_the_first_collective_of_each_step_is_no_start_up() -> None:
    """Its data comes late: the window's first collective waits as long as that of any other step."""
    analysis = analysis_of(Scenario(ranks=4, steps=3, first_skew_ms=40))
    rows = analysis.collectives
    first = rows.groupby(["rank", "step"])["start_ns"].transform("min") == rows["start_ns"]
    waits = rows["wait_ns"].where(~first, 40 * MS)
    each_step = replace(analysis, collectives=rows.assign(wait_ns=waits))
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
