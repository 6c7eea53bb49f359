"""rate_limited_prefetch prices what a held-back host costs its device, and notes shallow prefetch."""

from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS, Scenario, analysis_of
from tests.support.exact import wall_for, with_walls
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.rule import wall_ns
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


def test_on_the_thresholds_of_the_step() -> None:
    assert isinstance(rate_limited_prefetch(held(with_walls(analysis_of(HEALTHY)), 2 * MS), None), Finding)
    noted = shallow(analysis_of(HEALTHY), 0, free_compute_ns=300_000)
    gathers = noted.collectives[noted.collectives["kind"] == "all_gather"]
    total = 300_000 * int((~gathers["first_of_window"]).sum()) / len(noted.steps)
    wall = wall_for(total, 0.03)
    assert isinstance(rate_limited_prefetch(with_walls(noted, wall), None), Finding)
    assert rate_limited_prefetch(with_walls(noted, 1.001 * wall), None) is None


def noted(**columns: object) -> Finding | Gap | None:
    analysis = analysis_of(HEALTHY)
    return rate_limited_prefetch(shallow(analysis, 0.1 * wall_ns(analysis), **columns), None)


@pytest.mark.parametrize(
    ("late_ns", "there"), [(45_000, True), (49_999, True), (50_000, False), (55_000, False)]
)
def test_what_begins_50_us_late_waits_for_something_else(late_ns: int, *, there: bool) -> None:
    assert isinstance(noted(dependency_ns=MS - late_ns), Finding) is there
    assert isinstance(noted(blocked_ns=late_ns), Finding) is there


def test_a_tenth_of_a_gather_beside_compute_is_prefetched() -> None:
    assert isinstance(noted(hidden_ns=1_200_000), Finding)
    assert noted(hidden_ns=MS) is None


def test_what_waited_for_no_compute_is_no_matter_of_depth() -> None:
    starts = analysis_of(HEALTHY).collectives["start_ns"]
    assert noted(dependency_ns=0, launch_start_ns=starts) is None


def test_only_what_could_hide_is_counted() -> None:
    units = analysis_of(HEALTHY).collectives["unit"]
    some = (units.isin(["blocks.1", "blocks.2"]) * 10 * MS).astype("int64")
    finding = noted(free_compute_ns=some)
    assert isinstance(finding, Finding)
    assert finding.evidence[0].value == 2


def test_groups_of_one_rank_gather_nothing() -> None:
    analysis = held(analysis_of(HEALTHY), 20 * MS)
    alone = replace(analysis, collectives=analysis.collectives.assign(group_size=1))
    assert rate_limited_prefetch(alone, None) is None
