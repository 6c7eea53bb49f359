"""straggler_rank names a planted late rank with its delay, and accuses nobody of noise."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.analyses import MS, Scenario, analysis_of, without_rank
from tests.support.exact import with_clocks, with_walls
from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Confidence, Evidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.waiting.straggler_rank import straggler_rank


def found(analysis: RunAnalysis) -> Finding:
    answer = straggler_rank(analysis, None)
    assert isinstance(answer, Finding), answer
    return answer


def delay(finding: Finding) -> Evidence:
    return next(fact for fact in finding.evidence if fact.what.startswith("busy with itself"))


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize(("ranks", "late"), [(2, 1), (2, 0), (4, 2)])
@pytest.mark.parametrize("planted_ms", [20, 40, 80])
def test_names_the_planted_rank_and_its_delay(
    ranks: int, late: int, planted_ms: float, *, prefetch: bool
) -> None:
    plan = Scenario(ranks=ranks, prefetch=prefetch, delay_ms={late: planted_ms})
    finding = found(analysis_of(plan))
    assert delay(finding).rank == late
    assert f"rank {late} " in finding.sentence
    assert abs(delay(finding).value - planted_ms * MS) <= max(0.15 * planted_ms, 3) * MS
    assert finding.confidence is Confidence.HIGH


@pytest.mark.parametrize("plan", [Scenario(delay_ms={1: 40}), Scenario(ranks=4, slower={3: 1.15})])
def test_saving_holds_what_the_rank_costs(plan: Scenario) -> None:
    healthy = replace(plan, delay_ms={}, slower={})
    cost = analysis_of(plan).steps["wall_ns"].mean() - analysis_of(healthy).steps["wall_ns"].mean()
    low, high = found(analysis_of(plan)).saving_ns
    assert low <= cost <= high


def test_finds_a_delay_that_hides_under_the_others_compute() -> None:
    """The others' waits fall under their own compute: exposed wait is small, the delay is not."""
    analysis = analysis_of(Scenario(delay_ms={1: 40}))
    rows, steps = analysis.collectives, analysis.steps
    moved = steps["exposed_transfer_ns"] + steps["exposed_wait_ns"]
    finding = found(
        replace(
            analysis,
            collectives=rows.assign(exposed_wait_ns=0),
            steps=steps.assign(exposed_wait_ns=0, exposed_transfer_ns=moved),
        )
    )
    assert finding.confidence is Confidence.HIGH
    assert delay(finding).rank == 1
    assert finding.saving_ns[1] > 0


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(s, marks=pytest.mark.slow) for s in range(4, 12))]
)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("noise_ms", [0.3, 3.0])
def test_noise_accuses_nobody(seed: int, ranks: int, noise_ms: float) -> None:
    assert straggler_rank(analysis_of(Scenario(seed=seed, ranks=ranks, noise_ms=noise_ms)), None) is None


def test_always_last_without_a_cost_accuses_nobody() -> None:
    assert (
        straggler_rank(analysis_of(Scenario(slower={1: 1.01}, noise_floor_ns=0, noise_ms=0.0)), None) is None
    )


def mixed(plan: Scenario, other: Scenario, steps: set[int]) -> RunAnalysis:
    """The run of ``plan``, in some steps as ``other`` ran."""
    into, source = analysis_of(plan), analysis_of(other)
    tables = {}
    for name in ("collectives", "steps"):
        table, rows = getattr(into, name).copy(), getattr(source, name)
        chosen = table["step"].isin(steps).to_numpy()
        table.loc[chosen] = rows.loc[chosen].to_numpy()
        tables[name] = table.astype(rows.dtypes)
    return replace(into, **tables)


def test_one_bad_step_is_no_straggler() -> None:
    assert straggler_rank(mixed(Scenario(), Scenario(delay_ms={1: 80}), {4}), None) is None


def test_ranks_that_are_late_in_turn_accuse_and_clear_nobody() -> None:
    """Rank 1 in five of eight steps, rank 0 in three: chance makes that in three of four recordings."""
    turns = mixed(Scenario(delay_ms={1: 40}), Scenario(delay_ms={0: 40}), {1, 4, 6})
    assert isinstance(straggler_rank(turns, None), Gap)


@pytest.mark.parametrize(("steps", "named"), [(5, False), (6, True)])
def test_of_many_ranks_it_is_the_latest_in_most_steps(steps: int, *, named: bool) -> None:
    """Five of nine are no chance among six ranks, but in the others it is somebody else's doing."""
    others = set(range(steps, 9))
    analysis = mixed(
        Scenario(ranks=6, steps=9, delay_ms={1: 40}), Scenario(ranks=6, steps=9, delay_ms={0: 40}), others
    )
    assert (straggler_rank(analysis, None) is not None) is named


def test_one_step_in_which_another_was_late_does_not_hide_it() -> None:
    nearly = mixed(Scenario(delay_ms={1: 40}), Scenario(delay_ms={0: 40}), {4})
    assert delay(found(nearly)).rank == 1


def test_skew_within_the_noise_floor_or_the_clocks_says_nothing() -> None:
    plan = Scenario(delay_ms={1: 40})
    assert straggler_rank(analysis_of(replace(plan, noise_floor_ns=12 * MS)), None) is not None
    assert straggler_rank(analysis_of(replace(plan, noise_floor_ns=14 * MS)), None) is None
    assert straggler_rank(analysis_of(replace(plan, uncertainty_ns=3 * MS)), None) is not None
    assert straggler_rank(analysis_of(replace(plan, uncertainty_ns=5 * MS)), None) is None


@pytest.mark.parametrize("turns", [False, True])
def test_turns_of_the_scheduler_accuse_nobody_on_a_cpu(*, turns: bool) -> None:
    """Where the compute of a CPU rank differs from step to step, 3.5 ms may be another's turn on its core."""
    analysis = analysis_of(Scenario(delay_ms={1: 3.5}, noise_ms=0.01, noise_floor_ns=0))
    differs = np.where(turns, (analysis.steps["step"] % 3 - 1) * 2 * MS, 0)
    steps = analysis.steps.assign(wall_ns=analysis.steps["wall_ns"] // 5)
    steps = steps.assign(
        compute_ns=steps["compute_ns"] + differs,
        exposed_transfer_ns=0,
    )
    short = replace(analysis, steps=steps)
    named = straggler_rank(short, None)
    assert (named is None) is turns
    on_device = replace(short, run=replace(short.run, device="cuda (H200)"))
    assert straggler_rank(on_device, None) is not None


def test_a_small_delay_has_low_confidence() -> None:
    finding = found(analysis_of(Scenario(delay_ms={1: 7}, noise_ms=0.05)))
    assert finding.confidence is Confidence.LOW


def test_profiler_start_up_skew_is_not_the_rank() -> None:
    assert straggler_rank(analysis_of(Scenario(first_skew_ms=60)), None) is None


def test_an_early_rank_makes_no_late_one() -> None:
    """Three of four ranks come nearly together, one comes early: the last of the three is not late."""
    plan = Scenario(ranks=4, delay_ms={1: 40, 2: 40, 3: 42}, noise_ms=0.05)
    assert straggler_rank(analysis_of(plan), None) is None


def swinging(compute_ms: float, *, sleep_ms: float, steps: int = 8) -> RunAnalysis:
    """Two ranks whose compute swings by so much from step to step, in turn; rank 1 also sleeps in each."""
    made = analysis_of(Scenario(ranks=2, steps=steps, units=3, delay_ms={1: sleep_ms} if sleep_ms else {}))
    table = made.steps
    # seen from rank 1: +1, -1, -0.7, +0.7, ... of the swing, nothing in the sum of four steps
    turns = np.array([1.0, -1.0, -0.7, 0.7])[table["step"] % 4] * np.where(table["rank"] == 1, 1, -1)
    swing = np.rint(turns * compute_ms / 2 * MS).astype(np.int64)
    wall = table["wall_ns"] + np.rint(compute_ms * MS).astype(np.int64)
    return replace(
        made,
        steps=table.assign(
            wall_ns=wall,
            compute_ns=table["compute_ns"] + swing + np.rint(compute_ms / 2 * MS).astype(np.int64),
            exposed_wait_ns=table["exposed_wait_ns"] - swing + np.rint(compute_ms / 2 * MS).astype(np.int64),
        ),
    )


def test_a_host_that_sleeps_is_named_though_compute_swings_by_more() -> None:
    """In each of eight steps it is idle 40 ms longer; by the sum it is the latest in half of them."""
    finding = found(swinging(200, sleep_ms=40))
    assert delay(finding).rank == 1
    assert delay(finding).value == pytest.approx(40 * MS, rel=0.05)
    assert finding.confidence is not Confidence.LOW


def test_swings_in_which_a_costly_delay_would_not_show_clear_nobody() -> None:
    assert isinstance(straggler_rank(swinging(200, sleep_ms=0), None), Gap)
    assert straggler_rank(swinging(2, sleep_ms=0), None) is None


def shifted(analysis: RunAnalysis, rank: int) -> RunAnalysis:
    """The same where the rank lost an early row: its own count is one behind from there on."""
    rows = analysis.collectives
    return replace(analysis, collectives=rows.assign(sequence=rows["sequence"] - (rows["rank"] == rank)))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_row_accuses_nobody(rank: int) -> None:
    analysis = analysis_of(Scenario(ranks=2))
    assert straggler_rank(shifted(analysis, rank), None) is None


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_row_hides_nobody(rank: int) -> None:
    analysis = analysis_of(Scenario(ranks=2, delay_ms={1: 40}))
    assert found(shifted(analysis, rank)) == found(analysis)


def test_rows_of_which_no_two_ranks_are_left_are_not_tested() -> None:
    """The first rows of a window are left out, on each rank its own: another may be alone then."""
    analysis = analysis_of(Scenario(ranks=2))
    rows = analysis.collectives
    alone = rows.assign(first_of_window=rows["rank"] == 1)
    assert isinstance(straggler_rank(replace(analysis, collectives=alone), None), Gap)


def test_missing_rank_is_not_tested() -> None:
    answer = straggler_rank(without_rank(analysis_of(Scenario(ranks=3, delay_ms={1: 40})), 2), None)
    assert isinstance(answer, Gap)
    assert "missing" in answer.reason


def test_groups_that_are_whole_name_nobody_where_ranks_are_missing() -> None:
    """The late rank of such a group may only pass on what a rank of another group did."""
    analysis = analysis_of(Scenario(ranks=3, delay_ms={1: 40}))
    rest = replace(without_rank(analysis, 2), collectives=analysis.collectives.query("rank != 2"))
    assert isinstance(straggler_rank(rest, None), Gap)


def test_a_rank_that_passes_a_delay_on_is_not_named() -> None:
    analysis = analysis_of(Scenario(ranks=3, delay_ms={1: 40}))
    answer = straggler_rank(replace(analysis, collectives=analysis.collectives.assign(origin_rank=2)), None)
    assert isinstance(answer, Gap)
    assert "another rank" in answer.reason


def test_too_few_steps_are_not_tested() -> None:
    answer = straggler_rank(analysis_of(Scenario(steps=2, delay_ms={1: 40})), None)
    assert isinstance(answer, Gap)
    assert "2 steps" in answer.reason


@pytest.mark.parametrize(("ranks", "steps", "told"), [(2, 3, False), (2, 4, True), (3, 3, True)])
def test_a_late_rank_in_so_few_steps_that_it_may_be_chance_is_not_tested(
    ranks: int, steps: int, *, told: bool
) -> None:
    answer = straggler_rank(analysis_of(Scenario(ranks=ranks, steps=steps, delay_ms={1: 80})), None)
    assert isinstance(answer, Finding if told else Gap)
    if isinstance(answer, Gap):
        assert "rank 1 is" in answer.reason
        assert answer.remedy == "record more steps"
    assert straggler_rank(analysis_of(Scenario(ranks=ranks, steps=steps)), None) is None


def test_one_rank_alone_has_nothing_to_test() -> None:
    assert straggler_rank(analysis_of(Scenario(ranks=1)), None) is None


def test_no_collectives_is_not_tested() -> None:
    analysis = analysis_of(Scenario())
    assert isinstance(straggler_rank(replace(analysis, collectives=analysis.collectives.iloc[:0]), None), Gap)


def test_a_delay_that_varies_as_much_as_it_is_large_has_low_confidence() -> None:
    varying = mixed(Scenario(delay_ms={1: 15}), Scenario(delay_ms={1: 80}), {0, 2, 5, 7})
    assert found(varying).confidence is Confidence.LOW


def exactly(
    longer_ms: "list[float] | np.ndarray",
    *,
    late: tuple[int, ...] = (1,),
    ranks: int = 2,
    wait_ns: int = 30 * MS,
) -> RunAnalysis:
    """Steps of 100 ms, in which the late ranks are busy so much longer than the others, who wait ``wait_ns``.

    ``longer_ms``: of each step, or a table of steps by late ranks.
    """
    table = np.asarray(longer_ms, dtype=np.float64).reshape(len(longer_ms), -1)
    plan = Scenario(ranks=ranks, steps=len(table), delay_ms=dict.fromkeys(late, 40.0), noise_ms=0.0)
    made = with_walls(with_clocks(analysis_of(plan)))
    longer = np.zeros((len(table), ranks))
    longer[:, list(late)] = table
    mine = np.rint(longer[made.steps["step"], made.steps["rank"]] * MS).astype(np.int64)
    steps = made.steps.assign(
        exposed_wait_ns=40 * MS - mine, exposed_transfer_ns=0, exposed_memcpy_ns=0, idle_ns=mine,
        unexplained_ns=0, compute_ns=60 * MS,
    )  # fmt: skip
    rows = made.collectives
    blamed = rows["last_rank"].isin(late) & (
        rows["lateness_ns"].groupby(rows["instance"]).transform("max") > 0
    )
    first = rows[blamed].groupby("step")["instance"].transform("min")
    waits = blamed & rows["instance"].isin(first) & ~rows["rank"].isin(late)
    return replace(made, steps=steps, collectives=rows.assign(wait_ns=np.where(waits, wait_ns, 0)))


def confidence_of(analysis: RunAnalysis) -> Confidence | None:
    answer = straggler_rank(analysis, None)
    return answer.confidence if isinstance(answer, Finding) else None


def test_on_the_thresholds_of_the_cost() -> None:
    assert confidence_of(exactly([20] * 8, wait_ns=2 * MS)) is Confidence.LOW
    assert confidence_of(exactly([20] * 8, wait_ns=2 * MS - 1)) is None
    assert confidence_of(exactly([20] * 8, wait_ns=5 * MS)) is Confidence.HIGH
    assert confidence_of(exactly([20] * 8, wait_ns=5 * MS - 1)) is Confidence.LOW


@pytest.mark.parametrize(
    ("late", "steps", "confidence"),
    [(9, 10, Confidence.HIGH), (14, 18, Confidence.MEDIUM), (10, 13, Confidence.MEDIUM), (9, 12, None)],
)
def test_the_chance_decides(late: int, steps: int, confidence: Confidence | None) -> None:
    """Two ranks, the other one late in the rest: chances of 0.021, 0.031, 0.092 and 0.146."""
    assert confidence_of(exactly([20] * late + [-20] * (steps - late))) is confidence


@pytest.mark.parametrize(("off_ms", "confidence"), [(7.0, Confidence.HIGH), (7.5, Confidence.LOW)])
def test_a_sure_delay_is_one_and_a_half_errors(off_ms: float, confidence: Confidence) -> None:
    """Of nine steps the error is 1.85 deviations."""
    assert confidence_of(exactly([20 - off_ms] * 4 + [20] + [20 + off_ms] * 4)) is confidence


@pytest.mark.parametrize(("off_ms", "confidence"), [(7.2, Confidence.MEDIUM), (8.5, Confidence.LOW)])
def test_a_likely_delay_is_two_errors(off_ms: float, confidence: Confidence) -> None:
    """Of eighteen steps the error is 1.31 deviations; another rank is late in four of them."""
    varying = [20 - off_ms] * 4 + [20] * 6 + [20 + off_ms] * 4
    assert confidence_of(exactly([*varying, *[-30] * 4])) is confidence


def test_six_of_ten_steps_are_enough() -> None:
    table = np.zeros((10, 1))
    table[:6] = 20
    assert confidence_of(exactly(table, ranks=6)) is not None
    table[5] = -20
    assert confidence_of(exactly(table, ranks=6)) is None


def test_a_delay_as_large_as_noise_makes_it_is_none() -> None:
    """Two ranks are 1 ms above it in turn: one of them always is, each only in half of the steps."""
    table = np.array([[31.0, 29.0], [29.0, 31.0]] * 4)
    analysis = exactly(table, late=(1, 2), ranks=6)
    assert confidence_of(analysis) is not None
    assert confidence_of(with_clocks(analysis, noise_floor_ns=10 * MS)) is None
    assert confidence_of(with_clocks(analysis, noise_floor_ns=10 * MS - 1)) is not None


def test_saves_half_of_it_to_all_and_of_a_stalled_host_what_then_hides() -> None:
    assert found(exactly([20] * 8, wait_ns=10 * MS)).saving_ns == (5 * MS, pytest.approx(10.3 * MS, abs=1))
    stalled = exactly([20] * 8)
    ranks = tuple(
        replace(rank, exposed_transfer_ns=(5 if rank.rank == 1 else 8) * MS) for rank in stalled.time.per_rank
    )
    stalled = replace(stalled, time=replace(stalled.time, per_rank=ranks))
    assert found(stalled).saving_ns == (10 * MS, pytest.approx(1.03 * 25 * MS, abs=1))
    steps = stalled.steps.assign(compute_ns=60 * MS + stalled.steps["idle_ns"], idle_ns=0)
    assert found(replace(stalled, steps=steps)).saving_ns[1] == pytest.approx(1.03 * 20 * MS, abs=1)


@pytest.mark.parametrize(
    ("late", "named"),
    [(4, "ranks 0, 1, 2, 3 are"), (5, "ranks 0, 1, 2, 3 and 1 more are"), (1, "rank 0 is")],
)
def test_four_ranks_are_named(late: int, named: str) -> None:
    analysis = exactly(np.full((6, late), 20.0), late=tuple(range(late)), ranks=10)
    assert found(analysis).sentence.startswith(named)


def test_half_of_the_waiting_passed_on_is_its_own() -> None:
    analysis = exactly([20] * 8)
    rows = analysis.collectives.assign(blamed_rank=1, origin_rank=1)
    half = rows.assign(origin_rank=np.where(rows["step"] < 4, 0, 1))
    assert isinstance(straggler_rank(replace(analysis, collectives=half), None), Finding)
    more = rows.assign(origin_rank=np.where(rows["step"] < 5, 0, 1))
    assert isinstance(straggler_rank(replace(analysis, collectives=more), None), Gap)


def test_groups_of_one_rank_wait_for_nobody() -> None:
    analysis = analysis_of(Scenario(ranks=2, steps=2))
    alone = replace(analysis, collectives=analysis.collectives.assign(group_size=1))
    assert straggler_rank(alone, None) is None


@pytest.mark.parametrize(("more", "confidence"), [(0, Confidence.LOW), (1, Confidence.HIGH)])
def test_one_and_a_half_errors_themselves_are_not_sure(more: int, confidence: Confidence) -> None:
    """Deviations of 8.998 ms in nine steps make an error of which this is 1.5, to the last bit."""
    delay_ms, off_ms = (24_969_450 + more) / MS, 8.998
    steps = [delay_ms - off_ms] * 4 + [delay_ms] + [delay_ms + off_ms] * 4
    assert confidence_of(exactly(steps)) is confidence
