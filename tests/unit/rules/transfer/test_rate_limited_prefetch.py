"""rate_limited_prefetch prices what a held-back host costs its device, and notes shallow prefetch."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.rows import wall_ns
from zprof.rules.transfer.rate_limited_prefetch import rate_limited_prefetch

HEALTHY = Scenario(steps=3)


def held(analysis: RunAnalysis, idle_ns: float, count: int = 10) -> RunAnalysis:
    """``count`` holds a step, which together cost ``idle_ns`` a step on each rank."""
    rows = [
        {"rank": rank, "step": step, "start_ns": 0, "end_ns": 2 * MS, "idle_ns": idle_ns / count}
        for rank, step in zip(analysis.steps["rank"], analysis.steps["step"], strict=True)
        for _ in range(count)
    ]
    return replace(analysis, limiter=pd.DataFrame(rows))


def shallow(analysis: RunAnalysis, hideable_ns: float, **columns: object) -> RunAnalysis:
    """All gathers hide in part; those of a step and rank could hide so much more of what is exposed."""
    rows = analysis.collectives
    gathers = rows["kind"] == "all_gather"
    each = hideable_ns * len(analysis.steps) / (gathers & ~rows["first_of_window"]).sum()
    changed = {
        "end_ns": rows["start_ns"] + 10 * MS, "hidden_ns": 5 * MS, "exposed_transfer_ns": 4 * MS,
        "launch_start_ns": rows["start_ns"] - MS, "dependency_ns": MS, "free_compute_ns": each,
    }  # fmt: skip
    changed |= columns
    frame = rows.assign(**{name: rows[name].where(~gathers, value) for name, value in changed.items()})
    return replace(analysis, collectives=frame)


def found(analysis: RunAnalysis) -> Finding:
    answer = rate_limited_prefetch(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def test_prices_the_compute_that_is_missing_after_the_holds() -> None:
    finding = found(held(analysis_of(HEALTHY), 20 * MS))
    assert (finding.id, finding.cause) == ("ZP406", Cause.RATE_LIMITED_PREFETCH)
    assert finding.saving_ns == (14 * MS, 20 * MS)
    assert finding.confidence is Confidence.HIGH
    assert [fact.value for fact in finding.evidence] == [10, 20 * MS, 20 * MS]
    assert "10 all_gathers a step" in finding.sentence


@pytest.mark.parametrize(("share", "there"), [(0.0199, False), (0.0201, True)])
def test_below_two_percent_of_the_step_it_is_not_worth_it(share: float, there: bool) -> None:
    analysis = analysis_of(HEALTHY)
    answer = rate_limited_prefetch(held(analysis, share * wall_ns(analysis)), None)
    assert isinstance(answer, Finding) == there


def test_blocking_alone_costs_nothing() -> None:
    assert rate_limited_prefetch(held(analysis_of(HEALTHY), 0), None) is None


def test_few_steps_make_it_less_sure() -> None:
    assert found(held(analysis_of(Scenario(steps=2)), 20 * MS)).confidence is Confidence.MEDIUM


@pytest.mark.parametrize(("share", "there"), [(0.0299, False), (0.0301, True)])
def test_notes_gathers_that_wait_for_earlier_compute_and_hide_in_part(share: float, there: bool) -> None:
    analysis = analysis_of(HEALTHY)
    wanted = share * wall_ns(analysis)
    answer = rate_limited_prefetch(shallow(analysis, wanted), None)
    assert isinstance(answer, Finding) == there
    if isinstance(answer, Finding):
        assert answer.confidence is Confidence.LOW
        assert answer.saving_ns[0] == 0
        assert answer.saving_ns[1] == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(
    "columns",
    [
        {"hidden_ns": MS},  # next to nothing hides: that is no_prefetch
        {"dependency_ns": 0, "launch_start_ns": 0},  # launched late, or not known
        {"dependency_ns": MS // 2},  # could run long before it began
        {"exposed_transfer_ns": 0},
    ],
)
def test_no_note_on_what_is_no_matter_of_depth(columns: dict[str, int]) -> None:
    analysis = analysis_of(HEALTHY)
    assert rate_limited_prefetch(shallow(analysis, 0.1 * wall_ns(analysis), **columns), None) is None


def test_silent_where_there_is_nothing_to_hold_back() -> None:
    assert rate_limited_prefetch(analysis_of(HEALTHY), None) is None
    assert rate_limited_prefetch(analysis_of(Scenario(stage=0)), None) is None
    assert rate_limited_prefetch(analysis_of(Scenario(ranks=1)), None) is None


def test_not_tested_without_collectives_or_launches() -> None:
    analysis = analysis_of(HEALTHY)
    for rows in (
        analysis.collectives.iloc[:0],
        analysis.collectives.assign(launch_start_ns=pd.array([None] * len(analysis.collectives), "Int64")),
    ):
        answer = rate_limited_prefetch(replace(analysis, collectives=rows), None)
        assert isinstance(answer, Gap)
        assert answer.what == "rule rate_limited_prefetch not tested"


@pytest.mark.parametrize(("engine", "words"), [("FSDP1", "limit_all_gathers"), ("FSDP2", "fully_shard")])
def test_fix_is_for_the_engine(engine: str, words: str) -> None:
    assert words in found(held(analysis_of(replace(HEALTHY, engine=engine)), 20 * MS)).fix
