"""measurement_artifact: start-up skew is a note, clocks and recordings that cannot tell spoil the answer."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import MS
from tests.support.rule_runs import (
    Run,
    found,
    in_groups_of_one,
    judged,
    run_of,
    values,
    with_clocks,
    with_walls,
)
from tests.support.tables import changed, selected
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups, Mask
from zprof.analysis.intervals import EMPTY
from zprof.analysis.time.clocks import RankClock
from zprof.analysis.time.ledger import RankTracks
from zprof.analysis.time.steps import StepWindows
from zprof.causes import load_causes
from zprof.causes.measurement_artifact import CAUSE as measurement_artifact
from zprof.diagnosis.claims import order_findings
from zprof.model.findings import Confidence, Severity

SPOILED = (Severity.HIGH, "high")
NOTE = (Severity.LOW, "low")
DOUBTED = (Severity.HIGH, "low")
TOLD = (Severity.LOW, "medium")
MATTERS = (Severity.MEDIUM, "medium")


def weight(analysis: RunAnalysis) -> "tuple[Severity, Confidence] | str | None":
    answer = judged(measurement_artifact, analysis)
    if answer in (None, "gap"):
        return answer
    finding = found(measurement_artifact, analysis)
    assert finding.saving_ns == (0, 0)
    return (finding.severity, answer)


def waiting(first_ns: int, rest_ns: int = 0, *, uncertainty_ns: int = 0, floor_ns: int = 0) -> RunAnalysis:
    """Two ranks, eight steps of 100 ms; the window's first collective waits, and the last one."""
    analysis = with_walls(run_of())
    rows = analysis.collectives
    waits = np.zeros(len(rows), dtype=np.int64)
    waits[rows.bools("first_of_window").argmax()] = first_ns
    waits[rows.ints("start_ns").argmax()] = rest_ns
    made = with_clocks(analysis, uncertainty_ns=uncertainty_ns, noise_floor_ns=floor_ns)
    return replace(made, collectives=changed(rows, wait_ns=waits, exposed_wait_ns=waits))


def hidden_skew() -> RunAnalysis:
    """A start-up skew that compute hides."""
    analysis = run_of(first_skew_ms=400)
    rows = analysis.collectives
    return replace(analysis, collectives=changed(rows, rows.bools("first_of_window"), exposed_wait_ns=0))


def lost_first_row() -> RunAnalysis:
    """Rank 1 lost its first row: the next one stands in its place, and the other ranks have that second."""
    analysis = run_of(ranks=4)
    rows = analysis.collectives
    first = rows.ints("instance").min()
    rest = selected(rows, (rows.ints("rank") != 1) | (rows.ints("instance") != first))
    is_next = (rest.ints("rank") == 1) & (rest.ints("instance") == first + 1)
    rest = changed(rest, wait_ns=rest.ints("exposed_wait_ns"))
    lost = changed(rest, is_next, first_of_window=True, exposed_wait_ns=400 * MS, wait_ns=400 * MS)
    return replace(analysis, collectives=lost)


def late_in_each_step() -> RunAnalysis:
    """Each step's first collective waits as long as the window's: its data comes late."""
    analysis = run_of(ranks=4, steps=3, first_skew_ms=40)
    rows = analysis.collectives
    return replace(analysis, collectives=changed(rows, is_first_of_step(rows), exposed_wait_ns=40 * MS))


def is_first_of_step(rows: Columns) -> Mask:
    steps = Groups(rows.ints("rank"), rows.ints("step"))
    return steps.min(rows.ints("start_ns"))[steps.codes] == rows.ints("start_ns")


def unmatched(more: int = 0) -> RunAnalysis:
    """Half of the collectives are not matched, and this many more."""
    rows = run_of().collectives
    matched = np.arange(len(rows)) >= len(rows) // 2 + more
    return replace(run_of(), collectives=changed(rows, matched=matched))


def other_steps(apart: int) -> RunAnalysis:
    """Rank 0 lacks two steps, or all ranks but the first have other numbers."""
    steps = run_of().steps
    first = steps.ints("rank") == 0
    if not apart:
        return replace(run_of(), steps=selected(steps, ~(first & (steps.ints("step") < 2))))
    return replace(run_of(), steps=changed(steps, ~first, step=steps.ints("step") + apart))


def untimed(**run: object) -> RunAnalysis:
    return replace(run_of(), steps=run_of().steps.at(slice(0)), run=replace(run_of().run, **run))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: run_of(ranks=1), None),  # one rank
        (run_of, None),  # healthy
        (lambda: run_of(first_skew_ms=10), NOTE),  # skew
        (lambda: run_of(ranks=4, steps=3, first_skew_ms=40), MATTERS),  # skew of few steps
        (hidden_skew, None),  # hidden skew
        (lost_first_row, None),  # lost first row
        (late_in_each_step, None),  # late in each step
        (lambda: unmatched(1), DOUBTED),  # less than half matched
        # nothing to match with
        (lambda: replace(unmatched(1), run=replace(run_of().run, ranks_loaded=(0,))), None),
        (lambda: in_groups_of_one(unmatched(1)), None),  # groups of one
        (lambda: run_of(uncertainty_ns=30 * MS), SPOILED),  # coarse clocks
        (lambda: run_of(noise_ms=0.0, uncertainty_ns=MS // 2), None),  # clocks coarser than tiny waits
        (lambda: run_of(delay_ms={1: 40}, uncertainty_ns=3 * MS), None),  # clocks finer than the waits
        (lambda: other_steps(0), NOTE),  # six of eight steps
        (lambda: other_steps(100), DOUBTED),  # no common step
        (untimed, "gap"),  # no steps
        (lambda: untimed(source="snapshot"), None),  # snapshot
        # a fifth of all waiting, and the noise floor
        (lambda: waiting(20 * MS + 1, floor_ns=20 * MS), TOLD),  # above the noise floor
        # 1.5 %, 5 % and 10 % of the step
        (lambda: waiting(12 * MS), NOTE),  # 1.5 %
        (lambda: waiting(40 * MS), TOLD),  # 5 %
        # clocks as certain as the waits, as a straggler needs, and as one must not hide
        (lambda: waiting(0, 160 * MS, uncertainty_ns=10 * MS + 1), SPOILED),  # clocks coarser than waits
        (lambda: waiting(0, uncertainty_ns=5 * MS), NOTE),  # a straggler
    ],
)
def test_what_spoils_times_and_what_is_a_note(run: Run, expected: object) -> None:
    assert weight(run()) == expected


@pytest.mark.parametrize(("skew_ms", "first"), [(8, False), (12, True)])
def test_a_start_that_costs_a_tenth_of_the_step_comes_before_all_causes(skew_ms: int, *, first: bool) -> None:
    finding = found(measurement_artifact, waiting(8 * skew_ms * MS))
    cause = replace(
        finding, cause="no_prefetch", evidence=(), saving_ns=(50 * MS, 50 * MS), confidence="high"
    )
    assert (order_findings([cause, finding], load_causes())[0] is finding) is first
    assert not finding.invalidates_times


@pytest.mark.parametrize(("hidden_ms", "lost_ms"), [(400, 5), (24, 3)])
def test_a_hidden_start_costs_what_its_step_exposes_later(hidden_ms: int, lost_ms: int) -> None:
    """And no more than the first collective waited."""
    analysis = waiting(40 * MS)
    rows = analysis.collectives
    rank = rows.ints("rank")[rows.ints("exposed_wait_ns").argmax()]
    of_step = rows.at((rows.ints("rank") == rank) & (rows.ints("step") == rows.ints("step").min()))
    opening, last = (
        of_step.row[of_step.ints("start_ns").argmin()],
        of_step.row[of_step.ints("start_ns").argmax()],
    )
    exposed, waits = rows.ints("exposed_wait_ns").copy(), rows.ints("wait_ns").copy()
    exposed[opening], exposed[last] = 0, 40 * MS
    waits[opening], waits[last] = hidden_ms * MS, 40 * MS
    moved = replace(analysis, collectives=changed(rows, exposed_wait_ns=exposed, wait_ns=waits))
    assert lost_ms * MS in values(found(measurement_artifact, moved), "ns")


def test_a_step_that_is_slow_by_chance_is_no_start() -> None:
    """A busy machine makes one step in five wait; in some of the cases it is the window's first one."""
    base, accused = waiting(0), 0
    rows = base.collectives
    generator = np.random.default_rng(7)
    for _ in range(200):
        is_slow = is_first_of_step(rows) & np.isin(
            rows.ints("step"), np.flatnonzero(generator.random(8) < 0.2)
        )
        waits = np.where(is_slow, generator.uniform(20 * MS, 60 * MS, len(rows)), 0).astype(np.int64)
        analysis = replace(base, collectives=changed(rows, wait_ns=waits, exposed_wait_ns=waits))
        is_only = set(rows.ints("step")[is_slow].tolist()) == {0}  # nothing tells that from a start
        accused += weight(analysis) not in (None, NOTE) and not is_only
    assert accused == 0


@pytest.mark.parametrize(("apart_ms", "expected"), [(0, None), (5, None), (30, TOLD)])
def test_no_profiler_started_later_than_its_rank_left_the_opening_ping(
    apart_ms: int, expected: object
) -> None:
    analysis = waiting(30 * MS, floor_ns=5 * MS)
    opened = (0, apart_ms * MS)
    tracks = tuple(make_tracks(rank, 0, opened_ns=opened[rank]) for rank in (0, 1))
    assert weight(replace(analysis, tracks=tracks)) == expected


def make_tracks(rank: int, begin_ns: int, *, wait_ns: int = 0, opened_ns: int | None = None) -> RankTracks:
    begins = np.array([begin_ns])
    steps = StepWindows(number=np.array([0]), begin_ns=begins, end_ns=begins + 100 * MS)
    return RankTracks(
        rank=rank, host="", clock=RankClock(), steps=steps, host_steps=steps,
        coverage=np.array([[0, 1_000 * MS]]), waiting=EMPTY, moving=EMPTY, wait_before_ns=wait_ns,
        opened_ns=opened_ns,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("waited_ms", "recorded_ms", "expected"), [(60, 200, TOLD), (60, 110, None), (10, 200, None)]
)
def test_a_wait_before_the_first_step_is_named(waited_ms: int, recorded_ms: int, expected: object) -> None:
    """Where the step left out would have been longer than the others."""
    tracks = make_tracks(0, recorded_ms * MS, wait_ns=waited_ms * MS)
    assert weight(replace(waiting(0), tracks=(tracks,))) == expected
