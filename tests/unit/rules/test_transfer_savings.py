"""The queue model of a step: after a shorter transfer the rank, and what is queued, start earlier."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import MS, ORIGIN, Scenario
from tests.support.rule_runs import run_of
from tests.support.tables import changed
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, OptionalInts, Texts
from zprof.step.queue_model import estimate_transfer_saving_ns

#: launch, start, end, exposed transfer; in ms.  One rank and step.
Row = tuple[float, float, float, float]


def step(*rows: Row, wait: float = 0.0, exposed_wait: float = 0.0) -> RunAnalysis:
    """One step of one rank; ``wait`` is the part of each collective before its last rank arrives."""
    analysis = run_of(ranks=2, steps=1)
    zeros = np.zeros(len(rows), dtype=np.int64)
    launches, starts, ends = (
        np.array([ORIGIN + int(row[place] * MS) for row in rows]) for place in (0, 1, 2)
    )
    table = Columns(
        {
            "rank": zeros,
            "step": zeros,
            "group": Texts.of(["0,1"] * len(rows)),
            "start_ns": starts,
            "end_ns": ends,
            "launch_start_ns": launches,
            "wait_start_ns": OptionalInts.of([None] * len(rows)),
            "transfer_ns": ends - starts - int(wait * MS),
            "exposed_transfer_ns": np.array([int(exposed * MS) for *_, exposed in rows]),
            "exposed_wait_ns": zeros + int(exposed_wait * MS),
        }
    )
    return replace(analysis, collectives=table)


def halving(analysis: RunAnalysis, *which: int) -> float:
    """Milliseconds won where these rows transfer half as long; all of them where none is named."""
    transfer = analysis.collectives.floats("transfer_ns")
    places = range(len(transfer))
    factors = np.array([0.5 if place in (which or places) else 1.0 for place in places])
    return estimate_transfer_saving_ns(analysis, transfer * factors) / MS


@pytest.mark.parametrize(
    ("rows", "halved", "won"),
    [
        ([(0, 0, 10, 10)], (), 5),  # all exposed
        ([(0, 0, 10, 2)], (), 2),  # mostly hidden
        ([(0, 0, 10, 0)], (), 0),  # hidden
        ([(0, 0, 10, 0), (1, 10, 20, 4)], (0,), 4),  # the next was queued behind it
        ([(0, 0, 10, 0), (1, 10, 20, 8)], (0,), 5),  # no more than it is shorter
        ([(0, 0, 10, 0), (10, 10, 20, 8)], (0,), 0),  # the next was not yet launched
        ([(0, 0, 10, 0), (1, 12, 22, 8)], (0,), 0),  # the next waited for something else
        ([(0, 0, 10, 10), (15, 15, 25, 10)], (0,), 5),  # all that follows moves
        ([(0, 0, 10, 10), (15, 15, 25, 10)], (), 10),  # both
    ],
)
def test_halving_transfers_wins(rows: list[Row], halved: tuple[int, ...], won: float) -> None:
    assert halving(step(*rows), *halved) == pytest.approx(won)


def apart(analysis: RunAnalysis) -> RunAnalysis:
    """The first collective within a host, the others over the network."""
    groups = ["0,1" if place == 0 else "0,2" for place in range(len(analysis.collectives))]
    hosts = {0: "a", 1: "a", 2: "b"}
    return replace(analysis, collectives=changed(analysis.collectives, group=groups), hosts=hosts)


def test_a_second_link_that_stays_busy_takes_the_gain_back() -> None:
    late = step((0, 0, 10, 5), (0, 2, 25, 5))
    assert halving(apart(late), 0) == 0


def test_a_transfer_that_shared_the_link_ends_earlier() -> None:
    """From 2 to 10 both had half of the link: the first moved for 6 ms, and three of them are gone."""
    shared = step((0, 0, 10, 5), (0, 2, 25, 5))
    assert halving(shared, 0) == pytest.approx(3)
    groups = ["0,1", "0,1#gathers"]
    both = replace(shared, collectives=changed(shared.collectives, group=groups))
    assert halving(both, 0) == pytest.approx(3)


def test_a_halved_reduction_frees_the_link_for_gathers() -> None:
    """Reductions of 8 ms beside gathers of 4, three times: each gather took 8 ms, and takes 6 then.

    Alone a reduction takes 4 ms when halved: the thread waits for the gather, which shares the link with it
    for as long as both last, and then for what is left of the reduction.
    """
    rows = [row for at in (0, 20, 40) for row in ((at, at, at + 8, 8), (at, at, at + 12, 4))]
    groups = ["0,1#gathers", "0,1#reductions"] * 3
    analysis = step(*rows)
    analysis = replace(analysis, collectives=changed(analysis.collectives, group=groups))
    assert halving(analysis, 1, 3, 5) == pytest.approx(3 * 4)


def test_a_hidden_transfer_shows_when_the_rank_needs_it_earlier() -> None:
    """Its wait began when it was done, a ms later; the rank comes five earlier, and loses four."""
    analysis = apart(step((0, 0, 10, 10), (0, 2, 24, 0)))
    asked = changed(analysis.collectives, wait_start_ns=[None, ORIGIN + 25 * MS])
    assert halving(replace(analysis, collectives=asked), 0) == pytest.approx(1)


def test_the_saving_is_the_mean_over_ranks_and_steps() -> None:
    """Simulated link: with half of the bytes a step is shorter by what the replay says."""
    scenario = Scenario(bytes_per_s=180e6, noise_ms=0.01)
    slow, fast = run_of(scenario), run_of(replace(scenario, unit_bytes=scenario.unit_bytes // 2))
    true = slow.steps.ints("wall_ns").mean() - fast.steps.ints("wall_ns").mean()
    halved = slow.collectives.floats("transfer_ns") / 2
    assert estimate_transfer_saving_ns(slow, halved) == pytest.approx(true, rel=0.05)


@pytest.mark.parametrize(
    ("start", "queued"),
    [(9.94, True), (10.059, True), (10.06, False)],
)
def test_a_start_60_us_after_the_end_of_another_was_not_queued(start: float, *, queued: bool) -> None:
    won = halving(step((0, 0, 10, 0), (1, start, start + 10, 8)), 0)
    assert (won > 4) is queued
    assert queued or won == 0
