"""rate_limited_prefetch prices what a held-back host costs its device, and notes shallow prefetch."""

from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest

from tests.support.analyses import MS, Scenario
from tests.support.rule_runs import (
    GAP,
    Answer,
    found,
    in_groups_of_one,
    judged,
    run_of,
    values,
    wall_for,
    with_walls,
    without_collectives,
)
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence
from zprof.rules.transfer.rate_limited_prefetch import rate_limited_prefetch

HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW
THREE = Scenario(steps=3)


def held(idle_ms: float, *, plan: Scenario = THREE, count: int = 10) -> RunAnalysis:
    """Steps of 100 ms with holds of the host that leave its device idle for this long in all."""
    analysis = with_walls(run_of(plan))
    rows = [
        {"rank": rank, "step": step, "start_ns": 0, "end_ns": 2 * MS, "idle_ns": idle_ms * MS / count}
        for rank, step in zip(analysis.steps["rank"], analysis.steps["step"], strict=True)
        for _ in range(count)
    ]
    return replace(analysis, limiter=pd.DataFrame(rows))


def shallow(hideable_ns: float | None = None, **columns: object) -> RunAnalysis:
    """All gathers hide in part; each could hide this much more of what is exposed, or a tenth of the step."""
    analysis = run_of(THREE)
    rows = analysis.collectives
    gathers = rows["kind"] == "all_gather"
    count = (gathers & ~rows["first_of_window"]).sum() / len(analysis.steps)
    each = 0.1 * analysis.steps["wall_ns"].mean() / count if hideable_ns is None else hideable_ns
    changed = {
        "end_ns": rows["start_ns"] + 10 * MS, "hidden_ns": 5 * MS, "exposed_transfer_ns": 4 * MS,
        "launch_start_ns": rows["start_ns"] - MS, "dependency_ns": MS, "free_compute_ns": each,
    } | columns  # fmt: skip
    frame = rows.assign(**{name: rows[name].where(~gathers, value) for name, value in changed.items()})
    return replace(analysis, collectives=frame)


def without_launches() -> RunAnalysis:
    unknown = pd.array([None] * len(run_of(THREE).collectives), "Int64")
    return replace(run_of(THREE), collectives=run_of(THREE).collectives.assign(launch_start_ns=unknown))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: held(20), HIGH),  # held
        (lambda: held(20, plan=Scenario(steps=2)), MEDIUM),  # two steps
        (lambda: held(2), HIGH),  # 2 % of the step
        (lambda: held(1.99), None),  # less than 2 %
        (lambda: held(0), None),  # costs nothing
        (lambda: in_groups_of_one(held(20)), None),  # groups of one
        (lambda: run_of(THREE), None),  # healthy
        (lambda: run_of(stage=0), None),  # replicated
        (lambda: run_of(ranks=1), None),  # one rank
        (lambda: without_collectives(run_of(THREE)), GAP),  # no collectives
        (without_launches, GAP),  # no launches
        (shallow, LOW),  # shallow
        (lambda: shallow(hidden_ns=MS), None),  # hides a tenth: that is no_prefetch
        (lambda: shallow(hidden_ns=1_200_000), LOW),  # hides more than a tenth
        (lambda: shallow(exposed_transfer_ns=0), None),  # nothing exposed
        (lambda: shallow(dependency_ns=0, launch_start_ns=0), None),  # launched late
        # waited for no compute
        (lambda: shallow(dependency_ns=0, launch_start_ns=run_of(THREE).collectives["start_ns"]), None),
        (lambda: shallow(dependency_ns=MS - 49_999), LOW),  # 49 us late
        (lambda: shallow(dependency_ns=MS - 50_000), None),  # 50 us late
        (lambda: shallow(blocked_ns=49_999), LOW),  # blocked for 49 us
        (lambda: shallow(blocked_ns=50_000), None),  # blocked for 50 us
    ],
)
def test_thresholds(run: Callable[[], RunAnalysis], expected: Answer) -> None:
    assert judged(rate_limited_prefetch, run()) == expected


def test_holds_are_priced_by_the_compute_that_is_missing_after_them() -> None:
    finding = found(rate_limited_prefetch, held(20))
    assert (finding.id, finding.saving_ns) == ("ZP406", (14 * MS, 20 * MS))
    assert [fact.value for fact in finding.evidence] == [10, 20 * MS, 20 * MS]


def test_shallow_prefetch_is_worth_a_note_from_three_hundredths_of_the_step() -> None:
    noted = shallow(300_000)
    gathers = noted.collectives[noted.collectives["kind"] == "all_gather"]
    total = 300_000 * int((~gathers["first_of_window"]).sum()) / len(noted.steps)
    wall = wall_for(total, 0.03)
    assert found(rate_limited_prefetch, with_walls(noted, wall)).saving_ns == (
        0,
        pytest.approx(total, rel=1e-3),
    )
    assert judged(rate_limited_prefetch, with_walls(noted, 1.001 * wall)) is None


def test_only_gathers_that_could_hide_are_counted() -> None:
    units = run_of(THREE).collectives["unit"]
    some = (units.isin(["blocks.1", "blocks.2"]) * 10 * MS).astype("int64")
    assert values(found(rate_limited_prefetch, shallow(free_compute_ns=some)), "count") == [2]
