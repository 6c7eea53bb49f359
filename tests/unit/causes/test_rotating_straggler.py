"""rotating_straggler finds hosts that stall in turn, and takes neither noise nor one late rank for them."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import MS, without_rank
from tests.support.rule_runs import (
    Run,
    found,
    in_groups_of_one,
    judged,
    run_of,
    values,
    with_clocks,
    with_queue,
    with_walls,
    without_collectives,
)
from tests.support.tables import changed
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.rotating_straggler import CAUSE as rotating_straggler

TURNS = [0, 1, 2, 3, 0, 1, 2, 3]


def answer(analysis: RunAnalysis) -> str | None:
    return judged(rotating_straggler, analysis)


def in_turn(delay_ms: float, order: list[int], *, ranks: int = 4, noise_ms: float = 0.05) -> RunAnalysis:
    """The rank of each step sleeps in it; the other ranks wait."""
    healthy = run_of(ranks=ranks, steps=len(order), noise_ms=noise_ms, noise_floor_ns=0, uncertainty_ns=0)
    steps = healthy.steps
    late = steps.ints("rank") == np.array(order)[steps.ints("step")]
    stalled = int(delay_ms * MS)
    return replace(
        healthy,
        steps=changed(
            steps,
            wall_ns=steps.ints("wall_ns") + stalled,
            idle_ns=steps.ints("idle_ns") + np.where(late, stalled, 0),
            exposed_wait_ns=steps.ints("exposed_wait_ns") + np.where(late, 0, stalled),
        ),
    )


@pytest.mark.parametrize(("ranks", "order"), [(4, TURNS), (2, [0, 1, 0, 1, 0, 1])])
def test_hosts_that_stall_in_turn_are_found(ranks: int, order: list[int]) -> None:
    finding = found(rotating_straggler, in_turn(40, order, ranks=ranks))
    assert finding.saving_ns == (0, pytest.approx(40 * MS, rel=0.1))
    assert (finding.confidence, values(finding, "count")) == ("high", [ranks])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))])
@pytest.mark.parametrize(("ranks", "noise_ms"), [(2, 3.0), (4, 0.3), (8, 3.0)])
def test_noise_is_no_stall(seed: int, ranks: int, noise_ms: float) -> None:
    assert answer(run_of(seed=seed, ranks=ranks, noise_ms=noise_ms)) is None


def as_compute(analysis: RunAnalysis) -> RunAnalysis:
    steps = analysis.steps
    computed_ns = steps.ints("compute_ns") + steps.ints("idle_ns")
    return replace(analysis, steps=changed(steps, compute_ns=computed_ns, idle_ns=0))


def calm_at_first(calm: int) -> RunAnalysis:
    """Steps of which the first ones have no late rank."""
    analysis, quiet = in_turn(40, TURNS), in_turn(0, TURNS)
    is_calm = analysis.steps.ints("step") < calm
    calm_steps = {name: quiet.steps.ints(name) for name in quiet.steps.names}
    return replace(analysis, steps=changed(analysis.steps, is_calm, **calm_steps))


def apart() -> RunAnalysis:
    """Ranks whose own times lie 15 ms apart anyway."""
    analysis = in_turn(40, TURNS)
    steps = analysis.steps
    places = np.array([0, 30 * MS, 15 * MS, 0])[steps.ints("rank")]
    mixed = np.where(steps.ints("step") % 2, places, places[::-1])
    return replace(analysis, steps=changed(steps, exposed_wait_ns=steps.ints("exposed_wait_ns") - mixed))


def exactly(
    cost_ns: int, order: list[int], *, calm: int = 0, idle_ns: int | None = None, apart_ns: int = 0
) -> RunAnalysis:
    """Steps of 100 ms on four ranks, in which the rank of each is busy this much longer than the middle one.

    ``calm`` steps more have no late rank; the others lie ``apart_ns`` from each other.
    """
    ranks, steps = 4, len(order) + calm
    healthy = with_walls(with_clocks(run_of(ranks=ranks, steps=steps)))
    step, rank = healthy.steps.ints("step"), healthy.steps.ints("rank")
    late = (np.array([*order, *[-1] * calm])[step]) == rank
    place = (rank - np.array([*order, *[0] * calm])[step]) % ranks  # the others: 1, 2, 3
    longer = np.where(late, cost_ns, np.where(step < len(order), (place - 2) * apart_ns, 0))
    idle = np.where(late, cost_ns if idle_ns is None else idle_ns, 0)
    table = changed(
        healthy.steps, exposed_wait_ns=40 * MS - longer, exposed_transfer_ns=0, exposed_memcpy_ns=0,
        idle_ns=idle, unexplained_ns=0, compute_ns=60 * MS,
    )  # fmt: skip
    return replace(healthy, steps=table)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: run_of(ranks=4, delay_ms={1: 40}), None),  # one late rank
        (lambda: in_turn(40, [0, 0, 0, 0, 0, 2, 3, 1], noise_ms=0), None),  # more than half on one
        (lambda: in_turn(40, [0, 0, 0, 0, 0, 0, 1, 1], ranks=2), None),  # six of eight on one of two
        (lambda: as_compute(in_turn(40, TURNS)), None),  # slow kernels
        (lambda: calm_at_first(4), None),  # half of the steps
        (lambda: with_clocks(in_turn(40, TURNS), uncertainty_ns=5 * MS), None),  # within clocks
        (lambda: apart(), None),  # ranks differ anyway
        (lambda: without_rank(run_of(ranks=3), 2), "gap"),  # a rank is missing
        (lambda: run_of(steps=2), "gap"),  # two steps
        (lambda: without_collectives(run_of(ranks=3)), "gap"),  # no collectives
        (lambda: run_of(ranks=1), None),  # one rank
        (lambda: in_groups_of_one(run_of(steps=2)), None),  # groups of one
        (lambda: exactly(2 * MS - 1, TURNS), None),  # costs less
        (lambda: exactly(5 * MS - 1, TURNS), "low"),  # costs less than 5 %
        (lambda: exactly(20 * MS, [0, 1, 2, 3, 0, 1], calm=2), "high"),  # six of eight steps
        (lambda: exactly(20 * MS, [0, 1, 2]), "medium"),  # three steps
        (lambda: exactly(10 * MS, TURNS, idle_ns=6 * MS), "medium"),  # 60 % idle
        (lambda: exactly(10 * MS, TURNS, idle_ns=7_500_000), "high"),  # 75 % idle
        (lambda: exactly(12 * MS, TURNS, apart_ns=3 * MS), None),  # four deviations
    ],
)
def test_thresholds(run: Run, expected: str | None) -> None:
    assert answer(run()) == expected


@pytest.mark.parametrize(("queued_ms", "expected"), [(19, "high"), (21, "low")])
def test_turns_without_a_processor_are_the_load_of_the_machine(queued_ms: int, expected: str) -> None:
    analysis = in_turn(40, TURNS)
    late = analysis.steps.ints("rank") == np.array(TURNS)[analysis.steps.ints("step")]
    assert answer(with_queue(analysis, np.where(late, queued_ms * MS, 0))) == expected
