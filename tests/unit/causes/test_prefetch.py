"""no_prefetch and rate_limited_prefetch: all_gathers launched too late, or held back."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import MS, Scenario
from tests.support.rule_runs import (
    Run,
    found,
    in_groups_of_one,
    judged,
    on_device,
    run_of,
    values,
    with_walls,
    without_collectives,
)
from tests.support.tables import changed
from zprof.analysis.analysis import RunAnalysis, mean_wall_ns
from zprof.analysis.columns import Columns
from zprof.analysis.intervals import Int64s
from zprof.causes.no_prefetch import CAUSE as no_prefetch
from zprof.causes.rate_limited_prefetch import CAUSE as rate_limited_prefetch

LATE = Scenario(prefetch=False, bytes_per_s=180e6)


def exactly(**columns: object) -> RunAnalysis:
    """Gathers of 10 ms on a device that hide nothing, and could under as much before them; short steps."""
    rows = run_of(LATE).collectives
    usual = {
        "end_ns": rows.ints("start_ns") + 10 * MS, "transfer_ns": 10 * MS, "exposed_transfer_ns": 10 * MS,
        "hidden_ns": 0, "free_compute_ns": 10 * MS, "launch_start_ns": rows.ints("start_ns"),
        "dependency_ns": 0, "blocked_ns": 0, "queued_exposed_ns": 0, "exposed_wait_ns": 0,
    }  # fmt: skip
    return with_walls(on_device(run_of(LATE), **(usual | columns)))


def starts_ns(analysis: RunAnalysis) -> Int64s:
    return analysis.collectives.ints("start_ns")


def steady() -> Int64s:
    """Rows of the 190 gathers that count: 95 of each rank."""
    rows = exactly().collectives
    return np.flatnonzero(rows.texts("kind").equals("all_gather") & ~rows.bools("first_of_window"))


def half(column: str, value: object) -> RunAnalysis:
    """Half of the gathers have this value."""
    analysis = exactly()
    chosen = np.isin(analysis.collectives.row, steady()[:95])
    return replace(analysis, collectives=changed(analysis.collectives, chosen, **{column: value}))


def short(kept_ns: int) -> RunAnalysis:
    """Gathers of 100 us that the device kept for this long."""
    starts = starts_ns(exactly())
    made = exactly(
        end_ns=starts + MS // 10, transfer_ns=MS // 10, exposed_transfer_ns=MS // 10, blocked_ns=kept_ns
    )
    return with_walls(made, 5 * MS)


def blind() -> RunAnalysis:
    """Nothing is known but kernels."""
    names = ("launch_start_ns", "dependency_ns", "blocked_ns", "wait_start_ns")
    return on_device(run_of(LATE), **dict.fromkeys(names, None))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: run_of(LATE), "high"),  # late
        (lambda: run_of(bytes_per_s=500e6), None),  # prefetched
        (lambda: run_of(bytes_per_s=60e6), None),  # prefetched on a slow link
        (lambda: run_of(LATE, stage=0), None),  # nothing gathered
        (lambda: run_of(LATE, ranks=1), None),  # one rank
        (lambda: in_groups_of_one(exactly()), None),  # groups of one
        (lambda: run_of(prefetch=False, compute_ms=0.0, noise_ms=0.01), None),  # no compute
        (lambda: run_of(prefetch=False, bytes_per_s=9e9), None),  # not worth it
        (lambda: run_of(LATE, units=1), None),  # one unit
        (lambda: without_collectives(run_of(LATE)), "gap"),  # no collectives
        (lambda: run_of(LATE, steps=2), "medium"),  # two steps
        (lambda: run_of(LATE, engine="fsdp2"), "low"),  # FSDP2 on a CPU waits anyway
        (lambda: on_device(run_of(LATE, engine="fsdp2")), "high"),  # FSDP2 on a device
        (blind, "medium"),  # kernels alone
        # a tenth of a gather: hidden it hides nothing; free it is not worth hiding under; kept it is held
        (lambda: exactly(hidden_ns=MS + 1), None),  # more hidden
        (lambda: exactly(free_compute_ns=MS), None),  # 10 % free
        (lambda: exactly(blocked_ns=MS), None),  # kept 10 %
        (
            lambda: exactly(launch_start_ns=starts_ns(exactly()) - MS),
            None,
        ),  # launched in time
        (lambda: on_device(exactly(blocked_ns=MS), "cpu"), "high"),  # the host's own time on a CPU
        (lambda: half("launch_start_ns", None), "medium"),  # half of the launches known
        (lambda: half("matched", False), "medium"),  # half matched
        (lambda: exactly(exposed_transfer_ns=3 * MS - 1), None),  # less exposed
    ],
)
def test_no_prefetch(run: Run, expected: str | None) -> None:
    assert judged(no_prefetch, run()) == expected


def test_late_gathers_are_counted() -> None:
    """Of 12 a step the first has nothing to hide under; the first of the window does not count."""
    finding = found(no_prefetch, run_of(LATE))
    assert (finding.id, finding.doc) == ("ZP401", "docs/findings/ZP401.md")
    assert values(finding, "count") == [8 * 11 * 2, (8 * 12 - 1) * 2]


@pytest.mark.parametrize(
    "plan", [LATE, replace(LATE, bytes_per_s=500e6), replace(LATE, units=2, bytes_per_s=100e6)]
)
def test_the_saving_holds_what_prefetch_wins(plan: Scenario) -> None:
    won = mean_wall_ns(run_of(plan)) - mean_wall_ns(run_of(plan, prefetch=True))
    low, high = found(no_prefetch, run_of(plan)).saving_ns
    assert low <= won <= high <= 3.1 * low


@pytest.mark.parametrize(
    ("plan", "steps", "limit_ms"),
    [
        (replace(LATE, bytes_per_s=60e6), {}, 6 * 3 * 12 * 1.1),  # free compute
        (replace(LATE, compute_ms=3), {"compute_ns": 600 * MS}, (6 * 3 * 3 + 6) * 1.15 * 1.1),  # before it
        (LATE, {"compute_ns": 30 * MS, "overlapped_ns": 0}, 30),  # idle time hides nothing
    ],
)
def test_the_saving_stays_below_the_compute_that_can_hide_it(
    plan: Scenario, steps: dict[str, int], limit_ms: float
) -> None:
    analysis = run_of(plan)
    finding = found(no_prefetch, replace(analysis, steps=changed(analysis.steps, **steps)))
    assert 0 < finding.saving_ns[1] <= limit_ms * MS
    transfer, exposed, queued, *_ = values(finding, "ns")
    assert exposed <= transfer
    assert finding.saving_ns[1] <= 1.15 * (exposed + queued)


THREE = Scenario(steps=3)


def held(idle_ms: float, *, plan: Scenario = THREE, count: int = 10) -> RunAnalysis:
    """Steps of 100 ms with holds of the host that leave its device idle for this long in all."""
    analysis = with_walls(run_of(plan))
    rows = [
        {"rank": rank, "step": step, "start_ns": 0, "end_ns": 2 * MS, "idle_ns": idle_ms * MS / count}
        for rank, step in zip(analysis.steps.ints("rank"), analysis.steps.ints("step"), strict=True)
        for _ in range(count)
    ]
    return replace(analysis, limiter=Columns.from_rows(rows, rows[0]))


def shallow(hideable_ns: float | None = None, **columns: object) -> RunAnalysis:
    """All gathers hide in part; each could hide this much more of what is exposed, or a tenth of the step."""
    analysis = run_of(THREE)
    rows = analysis.collectives
    gathers = rows.texts("kind").equals("all_gather")
    count = (gathers & ~rows.bools("first_of_window")).sum() / len(analysis.steps)
    each = 0.1 * mean_wall_ns(analysis) / count if hideable_ns is None else hideable_ns
    values = {
        "end_ns": rows.ints("start_ns") + 10 * MS, "hidden_ns": 5 * MS, "exposed_transfer_ns": 4 * MS,
        "launch_start_ns": rows.ints("start_ns") - MS, "dependency_ns": MS, "free_compute_ns": each,
    } | columns  # fmt: skip
    return replace(analysis, collectives=changed(rows, gathers, **values))


def without_launches() -> RunAnalysis:
    return replace(run_of(THREE), collectives=changed(run_of(THREE).collectives, launch_start_ns=None))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: held(20), "high"),  # held
        (lambda: held(20, plan=Scenario(steps=2)), "medium"),  # two steps
        (lambda: held(0), None),  # costs nothing
        (lambda: in_groups_of_one(held(20)), None),  # groups of one
        (lambda: run_of(THREE), None),  # healthy
        (lambda: run_of(stage=0), None),  # replicated
        (lambda: run_of(ranks=1), None),  # one rank
        (lambda: without_collectives(run_of(THREE)), "gap"),  # no collectives
        (without_launches, "gap"),  # no launches
        (shallow, "low"),  # shallow
        (lambda: shallow(hidden_ns=MS), None),  # hides a tenth: that is no_prefetch
        (lambda: shallow(exposed_transfer_ns=0), None),  # nothing exposed
        (lambda: shallow(dependency_ns=0, launch_start_ns=0), None),  # launched late
        # waited for no compute
        (lambda: shallow(dependency_ns=0, launch_start_ns=starts_ns(run_of(THREE))), None),
        (lambda: shallow(blocked_ns=50_000), None),  # blocked for 50 us
    ],
)
def test_rate_limited_prefetch(run: Run, expected: str | None) -> None:
    assert judged(rate_limited_prefetch, run()) == expected


def test_holds_are_priced_by_the_compute_that_is_missing_after_them() -> None:
    finding = found(rate_limited_prefetch, held(20))
    assert (finding.id, finding.saving_ns) == ("ZP406", (14 * MS, 20 * MS))
    assert [fact.value for fact in finding.evidence] == [10, 20 * MS, 20 * MS]
