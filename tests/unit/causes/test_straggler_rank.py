"""straggler_rank names a late rank with its delay and its price, and accuses nobody of noise."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import MS, Scenario, without_rank
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
from tests.support.tables import changed, selected
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups
from zprof.analysis.time.late_ranks import (
    Suspect,
    find_reason,
    find_suspect,
    measure_waits,
)
from zprof.analysis.time.own_time import OwnTime
from zprof.causes.straggler_rank import CAUSE as straggler_rank
from zprof.diagnosis.find_causes import ask
from zprof.model.findings import Finding
from zprof.model.time import LateReason

LATE = Scenario(delay_ms={1: 40})


def answer(analysis: RunAnalysis) -> str | None:
    return judged(straggler_rank, analysis)


def late_rank(finding: Finding) -> tuple[int | None, float]:
    """Return the rank that the finding names first, and its delay in ms."""
    fact = finding.evidence[0]
    return fact.rank, fact.value / MS


@pytest.mark.parametrize(
    ("ranks", "late", "delay_ms", "prefetch"),
    [(2, 1, 20, True), (2, 0, 40, False), (4, 2, 80, True), (4, 2, 20, False)],
)
def test_names_the_planted_rank_and_its_delay(
    ranks: int, late: int, delay_ms: float, *, prefetch: bool
) -> None:
    finding = found(straggler_rank, run_of(ranks=ranks, prefetch=prefetch, delay_ms={late: delay_ms}))
    assert late_rank(finding) == (late, pytest.approx(delay_ms, abs=max(0.15 * delay_ms, 3)))
    assert finding.confidence == "high"


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
@pytest.mark.parametrize(("ranks", "noise_ms"), [(2, 0.3), (4, 3.0), (2, 3.0)])
def test_noise_accuses_nobody(seed: int, ranks: int, noise_ms: float) -> None:
    assert answer(run_of(seed=seed, ranks=ranks, noise_ms=noise_ms)) is None


def mixed(plan: Scenario, other: Scenario, steps: set[int]) -> RunAnalysis:
    """The run of ``plan``, in some steps as ``other`` ran."""
    into, source = run_of(plan), run_of(other)
    tables = {}
    for name in ("collectives", "steps"):
        table, rows = getattr(into, name), getattr(source, name)
        chosen = np.isin(table.ints("step"), sorted(steps))
        tables[name] = changed(table, chosen, **{each: rows[each].tolist() for each in rows.names})
    return replace(into, **tables)


def without_rows_of(rank: int, rows: Columns) -> Columns:
    return selected(rows, rows.ints("rank") != rank)


EARLY = Scenario(delay_ms={0: 40})
SIX, SIX_EARLY = (replace(plan, ranks=6, steps=9) for plan in (LATE, EARLY))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: mixed(Scenario(), Scenario(delay_ms={1: 80}), {4}), None),  # one bad step
        (lambda: mixed(LATE, EARLY, {1, 4, 6}), "gap"),  # in turn
        (lambda: mixed(LATE, EARLY, {4}), "low"),  # another one once
        (lambda: mixed(SIX, SIX_EARLY, set(range(5, 9))), None),  # five of nine
        # varies as much as it is large
        (
            lambda: mixed(replace(LATE, delay_ms={1: 15}), replace(LATE, delay_ms={1: 80}), {0, 2, 5, 7}),
            "low",
        ),
        (lambda: run_of(slower={1: 1.01}, noise_floor_ns=0, noise_ms=0.0), None),  # costs nothing
        (lambda: run_of(delay_ms={1: 7}, noise_ms=0.05), "low"),  # small
        (lambda: run_of(first_skew_ms=60), None),  # start-up skew
        (lambda: run_of(ranks=4, delay_ms={1: 40, 2: 40, 3: 42}, noise_ms=0.05), None),  # one early
        (lambda: run_of(LATE, noise_floor_ns=14 * MS), None),  # within noise
        (lambda: run_of(LATE, uncertainty_ns=5 * MS), None),  # within clocks
        (lambda: run_of(ranks=1), None),  # one rank
        (lambda: in_groups_of_one(run_of(steps=2)), None),  # groups of one
        (lambda: without_collectives(run_of()), "gap"),  # no collectives
        (lambda: without_rank(run_of(LATE, ranks=3), 2), "gap"),  # a rank is missing
        # a rank is missing but groups are complete
        (
            lambda: replace(
                without_rank(run_of(LATE, ranks=3), 2),
                collectives=without_rows_of(2, run_of(LATE, ranks=3).collectives),
            ),
            "gap",
        ),
        (lambda: run_of(LATE, steps=2), "gap"),  # two steps
        (lambda: run_of(steps=3), None),  # three healthy steps
        (lambda: run_of(steps=3, delay_ms={1: 80}), "gap"),  # three steps of two ranks may be chance
    ],
)
def test_whom_it_accuses(run: Run, expected: str | None) -> None:
    assert answer(run()) == expected


def swinging(compute_ms: float, *, sleep_ms: float) -> RunAnalysis:
    """Two ranks whose compute swings from step to step, against each other; rank 1 also sleeps."""
    made = run_of(units=3, delay_ms={1: sleep_ms} if sleep_ms else {})
    table = made.steps
    turns = np.array([1.0, -1.0, -0.7, 0.7])[table.ints("step") % 4] * np.where(
        table.ints("rank") == 1, 1, -1
    )
    swing = np.rint(turns * compute_ms / 2 * MS).astype(np.int64)
    half = round(compute_ms / 2 * MS)
    steps = changed(
        table,
        wall_ns=table.ints("wall_ns") + 2 * half,
        compute_ns=table.ints("compute_ns") + swing + half,
        exposed_wait_ns=table.ints("exposed_wait_ns") - swing + half,
    )
    return replace(made, steps=steps)


def test_a_sleeping_host_is_named_although_compute_swings_by_more() -> None:
    finding = found(straggler_rank, swinging(200, sleep_ms=40))
    assert late_rank(finding) == (1, pytest.approx(40, rel=0.05))
    assert finding.confidence != "low"
    assert answer(swinging(200, sleep_ms=0)) == "gap"
    assert answer(swinging(2, sleep_ms=0)) is None


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_row_neither_accuses_nor_hides_a_rank(rank: int) -> None:
    """The rank's own count is one behind from there on."""
    for plan in (Scenario(), LATE):
        analysis = run_of(plan)
        rows = analysis.collectives
        lost = replace(
            analysis, collectives=changed(rows, sequence=rows.ints("sequence") - (rows.ints("rank") == rank))
        )
        assert ask(straggler_rank, lost) == ask(straggler_rank, analysis)


def test_a_rank_that_is_left_alone_in_its_collectives_is_not_tested() -> None:
    rows = run_of().collectives
    assert (
        answer(replace(run_of(), collectives=changed(rows, first_of_window=rows.ints("rank") == 1))) == "gap"
    )


def exactly(
    longer_ms: Sequence[float] | np.ndarray,
    *,
    late: tuple[int, ...] = (1,),
    ranks: int = 2,
    wait_ns: int = 30 * MS,
) -> RunAnalysis:
    """Steps of 100 ms in which the late ranks are busy this much longer than the others, who wait.

    ``longer_ms``: of each step, or a table of steps by late ranks.
    """
    table = np.asarray(longer_ms, dtype=np.float64).reshape(len(longer_ms), -1)
    plan = Scenario(ranks=ranks, steps=len(table), delay_ms=dict.fromkeys(late, 40.0), noise_ms=0.0)
    made = with_walls(with_clocks(run_of(plan)))
    longer = np.zeros((len(table), ranks))
    longer[:, list(late)] = table
    mine = np.rint(longer[made.steps.ints("step"), made.steps.ints("rank")] * MS).astype(np.int64)
    steps = changed(
        made.steps, exposed_wait_ns=40 * MS - mine, exposed_transfer_ns=0, exposed_memcpy_ns=0, idle_ns=mine,
        unexplained_ns=0, compute_ns=60 * MS,
    )  # fmt: skip
    rows = made.collectives
    instances = Groups(rows.ints("instance"))
    lateness = instances.max(rows.ints("lateness_ns"))[instances.codes]
    blamed = rows.at(np.isin(rows.ints("last_rank"), late) & (lateness > 0))
    first = Groups(blamed.ints("step")).min(blamed.ints("instance"))
    waits = np.isin(rows.ints("instance"), first) & ~np.isin(rows.ints("rank"), late)
    return replace(made, steps=steps, collectives=changed(rows, wait_ns=np.where(waits, wait_ns, 0)))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: exactly([20] * 8, wait_ns=2 * MS), "low"),  # costs 2 %
        (lambda: exactly([20] * 9 + [-20]), "high"),  # chance 0.021
        (lambda: exactly([20] * 7 + [-20]), "low"),  # as late as the other one once: chance 0.070
        (lambda: exactly([20] * 7 + [-300]), "low"),  # one step does not count for more
        (lambda: exactly([20] * 9 + [-20] * 3), "gap"),  # chance 0.146
        (lambda: exactly([11.5] * 4 + [20] * 6 + [28.5] * 4 + [-30] * 4), "low"),  # below 2 errors
        (lambda: exactly([20] * 5 + [-20] + [0] * 4, ranks=6), "gap"),  # five of ten steps
    ],
)
def test_thresholds(run: Run, expected: str | None) -> None:
    assert answer(run()) == expected


def queued(analysis: RunAnalysis, rank: int, queued_ms: float) -> RunAnalysis:
    """The thread of a rank waits this long in each step for a processor."""
    return with_queue(analysis, np.where(analysis.steps.ints("rank") == rank, round(queued_ms * MS), 0))


def test_a_rank_without_a_processor_is_told_as_such() -> None:
    """40 ms late: of 10 ms in the queue little is explained, of 30 ms most, and nothing if all ranks wait."""
    assert answer(queued(run_of(LATE), 1, 10)) == answer(queued(run_of(LATE), 0, 30)) == "high"
    finding = found(straggler_rank, queued(run_of(LATE), 1, 30))
    assert finding.confidence == "low"
    fact = next(fact for fact in finding.evidence if fact.key == "processor_wait_per_step")
    assert (fact.rank, fact.value) == (1, 30 * MS)


@pytest.mark.parametrize(("wait_ms", "lost_ms"), [(10, 10), (30, 20)])
def test_no_more_than_the_delay_and_the_wait_for_it_is_lost(wait_ms: int, lost_ms: int) -> None:
    saving = found(straggler_rank, exactly([20] * 8, wait_ns=wait_ms * MS)).saving_ns
    assert saving == (0, pytest.approx(lost_ms * MS, abs=1))


@pytest.mark.parametrize(("passed_on", "expected"), [(4, "high"), (5, "gap"), (8, "gap")])
def test_a_rank_that_mostly_passes_a_delay_on_is_not_named(passed_on: int, expected: str | None) -> None:
    analysis = exactly([20] * 8)
    rows = changed(analysis.collectives, blamed_rank=1)
    origin = np.where(rows.ints("step") < passed_on, 0, 1)
    assert answer(replace(analysis, collectives=changed(rows, origin_rank=origin))) == expected


def own_time(own_ms: np.ndarray, median: bool = True) -> OwnTime:
    """The own time of ranks by step; each is compared with the median, or with the other one of two."""
    own = own_ms * MS
    longer = own - (np.median(own, axis=1, keepdims=True) if median else own[:, ::-1])
    none = np.zeros_like(own)
    return OwnTime(
        ranks=tuple(range(own.shape[1])), own=own, longer=longer, compute=longer, copies=none, idle=none,
        queued=none,
    )  # fmt: skip


def suspect_of(own: OwnTime, **fields: object) -> Suspect:
    return find_suspect(with_clocks(run_of(ranks=len(own.ranks), steps=3, noise_ms=0.0)), own)


@pytest.mark.parametrize(
    ("late_steps", "steps", "tie", "chance"),
    [
        (8, 10, 0, 2 * (45 + 10 + 1) / 2**10),  # the binomial tail
        (7, 8, 1, 4 / 2**8),  # all signs of seven differences, and either of none
        (2600, 4000, 0, pytest.approx(0.0, abs=1e-50)),
    ],
)
def test_the_chance_that_equal_ranks_look_like_it(
    late_steps: int, steps: int, tie: int, chance: float
) -> None:
    own = np.full((steps, 2), 100.0)
    own[:late_steps, 1] += 100
    own[late_steps : steps - tie, 0] += 100
    assert suspect_of(own_time(own, median=False)).chance == pytest.approx(chance)


@pytest.mark.parametrize(
    ("longer_ms", "named"),
    [
        ((20, 9.9, 0, 0, 0, 0), (0,)),
        ((20, 10, 0, 0, 0, 0), (0, 1)),  # half of the delay
        ((21, 20, 20, 20, 0, 0), (0,)),  # more than half of the ranks are not late
    ],
)
def test_which_ranks_are_late_together(longer_ms: tuple[float, ...], named: tuple[int, ...]) -> None:
    assert suspect_of(own_time(np.tile(60.0 + np.array(longer_ms), (8, 1)))).named == named


STILL_LATE = run_of(LATE, noise_ms=0.0)


def reason_for(share: float, called: LateReason, *, waits: bool = True, **more_ns: float) -> LateReason:
    """The reason where rank 1 is late for ``called`` in this share of its collectives, else for the host."""
    rows = changed(STILL_LATE.collectives.at(slice(100)), wait_ns=MS * waits, blamed_rank=1, origin_rank=1)
    reasons = np.where(np.arange(len(rows)) < 100 * share, called.value, LateReason.HOST.value)
    analysis = replace(STILL_LATE, collectives=changed(rows, late_reason=reasons))
    return find_reason(analysis, (1,), **({"compute_ns": 0, "copies_ns": 0, "idle_ns": 1} | more_ns))


@pytest.mark.parametrize("called", [LateReason.DATA, LateReason.ALLOCATOR, LateReason.SYNC])
def test_half_of_the_waiting_names_the_call(called: LateReason) -> None:
    assert reason_for(0.5, called) is called
    assert reason_for(0.49, called) is LateReason.HOST
    assert reason_for(1.0, called, waits=False) is LateReason.HOST


@pytest.mark.parametrize(
    ("compute", "copies", "idle", "reason"),
    [
        (5, 5, 5, LateReason.HOST),
        (5, 6, 5, LateReason.MEMCPY),
        (6, 6, 5, LateReason.COMPUTE),
    ],
)
def test_the_reason_is_what_the_rank_has_most_of(
    compute: float, copies: float, idle: float, reason: LateReason
) -> None:
    assert reason_for(0, LateReason.SYNC, compute_ns=compute, copies_ns=copies, idle_ns=idle) is reason
    if idle < max(compute, copies):  # a loader on the main thread computes too
        data = reason_for(0.5, LateReason.DATA, compute_ns=compute, copies_ns=copies, idle_ns=idle)
        assert data is LateReason.DATA


def test_waits_are_those_of_the_other_ranks_of_a_group() -> None:
    assert measure_waits(STILL_LATE, (1,)).bound_ns > 30 * MS
    assert measure_waits(in_groups_of_one(STILL_LATE), (1,)).bound_ns == 0
    assert values(found(straggler_rank, STILL_LATE), "count") == [1]
