"""rotating_straggler finds hosts that stall in turn, and takes neither noise nor one late rank for it."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.analyses import MS, Scenario, analysis_of, without_rank
from tests.support.exact import with_clocks, with_walls
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.waiting.rotating_straggler import rotating_straggler


def in_turn(delay_ms: float, order: list[int], *, ranks: int = 4, noise_ms: float = 0.05) -> RunAnalysis:
    """The rank of each step sleeps in it; the other ranks wait."""
    plan = Scenario(ranks=ranks, steps=len(order), noise_ms=noise_ms, noise_floor_ns=0, uncertainty_ns=0)
    healthy = analysis_of(plan)
    step = healthy.steps["step"].to_numpy()
    late = healthy.steps["rank"].to_numpy() == np.array(order)[step]
    stalled = int(delay_ms * MS)
    steps = healthy.steps.assign(
        wall_ns=healthy.steps["wall_ns"] + stalled,
        idle_ns=healthy.steps["idle_ns"] + np.where(late, stalled, 0),
        exposed_wait_ns=healthy.steps["exposed_wait_ns"] + np.where(late, 0, stalled),
    )
    return replace(healthy, steps=steps)


def found(analysis: RunAnalysis) -> Finding:
    answer = rotating_straggler(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


TURNS = [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(("ranks", "order"), [(4, TURNS), (2, [0, 1, 0, 1, 0, 1])])
def test_finds_hosts_that_stall_in_turn(ranks: int, order: list[int]) -> None:
    finding = found(in_turn(40, order, ranks=ranks))
    low, high = finding.saving_ns
    assert low <= 40 * MS <= high <= 2.8 * low
    assert finding.confidence is Confidence.HIGH
    assert f"{ranks} of {ranks} in turn" in finding.sentence


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, 10))]
)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("noise_ms", [0.3, 3.0])
def test_noise_is_no_stall(seed: int, ranks: int, noise_ms: float) -> None:
    assert rotating_straggler(analysis_of(Scenario(seed=seed, ranks=ranks, noise_ms=noise_ms)), None) is None


def test_one_late_rank_does_not_rotate() -> None:
    assert rotating_straggler(analysis_of(Scenario(ranks=4, delay_ms={1: 40})), None) is None


def test_half_of_it_on_one_rank_is_the_limit() -> None:
    assert rotating_straggler(in_turn(40, [0, 0, 0, 0, 1, 2, 3, 1], noise_ms=0), None) is not None
    assert rotating_straggler(in_turn(40, [0, 0, 0, 0, 0, 2, 3, 1], noise_ms=0), None) is None


def test_of_two_ranks_two_thirds() -> None:
    assert rotating_straggler(in_turn(40, [0, 0, 0, 0, 0, 1, 1, 1], ranks=2), None) is not None
    assert rotating_straggler(in_turn(40, [0, 0, 0, 0, 0, 0, 1, 1], ranks=2), None) is None


def test_slow_kernels_in_turn_are_no_stall_of_a_host() -> None:
    analysis = in_turn(40, TURNS)
    steps = analysis.steps
    as_compute = replace(
        analysis, steps=steps.assign(compute_ns=steps["compute_ns"] + steps["idle_ns"], idle_ns=0)
    )
    assert rotating_straggler(as_compute, None) is None


@pytest.mark.parametrize(("calm", "there"), [(3, True), (4, False)])
def test_most_steps_must_have_a_late_rank(calm: int, *, there: bool) -> None:
    """Six of ten: a collector that runs now and then is not what each step pays for."""
    analysis, quiet = in_turn(40, TURNS), in_turn(0, TURNS)
    few = analysis.steps["step"] < calm
    steps = analysis.steps.where(~few, quiet.steps)
    assert (rotating_straggler(replace(analysis, steps=steps), None) is not None) is there


def test_the_cost_decides_whether_it_is_a_note() -> None:
    wall = in_turn(0, TURNS).steps["wall_ns"].mean() / MS
    assert found(in_turn(0.06 * wall, TURNS)).confidence is Confidence.HIGH
    assert found(in_turn(0.04 * wall, TURNS)).confidence is Confidence.LOW
    assert rotating_straggler(in_turn(0.015 * wall, TURNS), None) is None


def test_clocks_and_noise_set_the_floor() -> None:
    analysis = in_turn(40, TURNS)
    assert analysis.time.alignment is not None

    def doubted(uncertainty_ns: int) -> RunAnalysis:
        alignment = replace(analysis.time.alignment, uncertainty_ns=uncertainty_ns)
        return replace(analysis, time=replace(analysis.time, alignment=alignment))

    assert rotating_straggler(doubted(3 * MS), None) is not None
    assert rotating_straggler(doubted(5 * MS), None) is None


def test_ranks_that_differ_anyway_hide_a_stall() -> None:
    """Of ranks whose own times lie 15 ms apart, the one that is 40 ms late is one of many."""
    analysis = in_turn(40, TURNS)
    apart = analysis.steps["rank"].map({0: 0, 1: 30 * MS, 2: 15 * MS, 3: 0}).to_numpy()
    mixed = np.where(analysis.steps["step"] % 2, apart, apart[::-1])
    steps = analysis.steps.assign(exposed_wait_ns=analysis.steps["exposed_wait_ns"] - mixed)
    assert rotating_straggler(replace(analysis, steps=steps), None) is None


def test_what_is_missing_is_said() -> None:
    analysis = analysis_of(Scenario(ranks=3))
    assert isinstance(rotating_straggler(without_rank(analysis, 2), None), Gap)
    assert isinstance(rotating_straggler(analysis_of(Scenario(steps=2)), None), Gap)
    none = replace(analysis, collectives=analysis.collectives.iloc[:0])
    assert isinstance(rotating_straggler(none, None), Gap)
    assert rotating_straggler(analysis_of(Scenario(ranks=1)), None) is None


def exactly(
    cost_ns: int, order: list[int], *, calm: int = 0, idle_ns: int | None = None, apart_ns: int = 0
) -> RunAnalysis:
    """Steps of 100 ms on four ranks, in which the rank of each is busy so much longer than the middle one.

    ``calm`` steps more have no late rank; the others lie ``apart_ns`` from each other.
    """
    ranks, steps = 4, len(order) + calm
    healthy = with_walls(with_clocks(analysis_of(Scenario(ranks=ranks, steps=steps))))
    step, rank = (healthy.steps[name].to_numpy() for name in ("step", "rank"))
    late = (np.array([*order, *[-1] * calm])[step]) == rank
    place = (rank - np.array([*order, *[0] * calm])[step]) % ranks  # the others: 1, 2, 3
    longer = np.where(late, cost_ns, np.where(step < len(order), (place - 2) * apart_ns, 0))
    idle = np.where(late, cost_ns if idle_ns is None else idle_ns, 0)
    table = healthy.steps.assign(
        exposed_wait_ns=40 * MS - longer, exposed_transfer_ns=0, exposed_memcpy_ns=0, idle_ns=idle,
        unexplained_ns=0, compute_ns=60 * MS,
    )  # fmt: skip
    return replace(healthy, steps=table)


def confidence_of(analysis: RunAnalysis) -> Confidence | None:
    answer = rotating_straggler(analysis, None)
    assert answer is None or isinstance(answer, Finding)
    return answer.confidence if answer else None


def test_on_the_thresholds_of_the_cost() -> None:
    assert confidence_of(exactly(2 * MS, TURNS)) is Confidence.LOW
    assert confidence_of(exactly(2 * MS - 1, TURNS)) is None
    assert confidence_of(exactly(5 * MS, TURNS)) is Confidence.HIGH
    assert confidence_of(exactly(5 * MS - 1, TURNS)) is Confidence.LOW


def test_on_the_thresholds_of_the_steps() -> None:
    """Three of five; six of eight for a sure one, and four steps."""
    assert confidence_of(exactly(20 * MS, [0, 1, 2], calm=2)) is Confidence.MEDIUM
    assert confidence_of(exactly(20 * MS, [0, 1, 2, 3, 0, 1], calm=2)) is Confidence.HIGH
    assert confidence_of(exactly(20 * MS, [0, 1, 2, 3, 0], calm=3)) is Confidence.MEDIUM
    assert confidence_of(exactly(20 * MS, [0, 1, 2, 3])) is Confidence.HIGH
    assert confidence_of(exactly(20 * MS, [0, 1, 2])) is Confidence.MEDIUM


@pytest.mark.parametrize(
    ("idle_ms", "confidence"),
    [(5.9, None), (6, Confidence.MEDIUM), (7.4, Confidence.MEDIUM), (7.5, Confidence.HIGH)],
)
def test_so_much_of_it_must_be_the_host_s(idle_ms: float, confidence: Confidence | None) -> None:
    assert confidence_of(exactly(10 * MS, TURNS, idle_ns=round(idle_ms * MS))) is confidence


@pytest.mark.parametrize(("more", "there"), [(-MS, False), (0, False), (1, True), (MS, True)])
def test_four_deviations_of_the_others(more: int, *, there: bool) -> None:
    late = exactly(4 * 3 * MS + more, TURNS, apart_ns=3 * MS)
    assert (confidence_of(late) is not None) is there


@pytest.mark.parametrize(("transfer_ms", "most_ms"), [(50, 14.0), (1, 11.5)])
def test_saves_half_of_the_cost_to_all_and_what_then_hides(transfer_ms: int, most_ms: float) -> None:
    late = exactly(10 * MS, TURNS)
    ranks = tuple(replace(rank, exposed_transfer_ns=transfer_ms * MS) for rank in late.time.per_rank)
    saving = found(replace(late, time=replace(late.time, per_rank=ranks))).saving_ns
    assert saving == (5 * MS, pytest.approx(most_ms * MS, abs=1))


def test_groups_of_one_rank_wait_for_nobody() -> None:
    analysis = analysis_of(Scenario(ranks=2, steps=2))
    alone = replace(analysis, collectives=analysis.collectives.assign(group_size=1))
    assert rotating_straggler(alone, None) is None
