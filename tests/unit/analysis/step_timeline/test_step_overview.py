"""A step of all ranks beside the simulator's truth: the ledger, who is late, who waits for whom."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.simulations import Simulated, make_three_hosts, simulated, varied_job, with_pace
from zprof.analysis.analysis import analyse_time_only
from zprof.analysis.intervals import intervals, measure, union
from zprof.analysis.step_timeline import overview as overview_module
from zprof.analysis.step_timeline.overview import MAX_ROWS, build_step_overview
from zprof.model.step_overview import OverviewRow, SliceKind, StepOverview
from zprof.simulator.job import Pace
from zprof.simulator.regular import make_job

EXPOSED = {"exposed_wait_ns": SliceKind.WAIT, "exposed_transfer_ns": SliceKind.TRANSFER}
LATE = 17
#: An edge of a slice is at most so far from the truth: traces round times to a nanosecond, clocks differ.
STAMP_NS = 100


def build(job: Simulated) -> StepOverview:
    made = build_step_overview(analyse_time_only(job.run))
    assert made is not None
    return made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Simulated, StepOverview]:
    """Three ranks on hosts and clocks of their own; rank 2 computes slower."""
    job = simulated(make_three_hosts(), tmp_path_factory.mktemp("small"))
    return job, build(job)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Simulated, StepOverview]:
    """More ranks than rows; one computes slower."""
    job = make_job(seed=5, ranks=24, steps=2, units=2, unit_params=1 << 18, prefetch="off")
    made = simulated(with_pace(job, Pace(gpu=1.3), LATE), tmp_path_factory.mktemp("many"))
    return made, build(made)


def covered_ns(row: OverviewRow, kind: SliceKind) -> int:
    """How long slices of a kind are drawn in any lane of a rank."""
    spans = [
        intervals(starts[kinds == kind], (starts + lengths)[kinds == kind])
        for starts, lengths, kinds in (
            tuple(map(np.array, (lane.starts_ns, lane.lengths_ns, lane.kinds))) for lane in row.lanes
        )
        if len(kinds)
    ]
    return measure(union(*spans))


def assert_ledger_is_true(job: Simulated, made: StepOverview) -> None:
    """The exposed slices of each rank add up to the simulator's ledger of that step."""
    numbers = sorted({entry.step for entry in analyse_time_only(job.run).time.steps})
    true = {(row.rank, row.step): row for row in job.truth.per_step}
    first = min(step for _, step in true)
    for row in made.rows:
        truth = true[row.rank, first + numbers.index(made.step)]
        slices = sum(len(lane.kinds) for lane in row.lanes)
        for term, kind in EXPOSED.items():
            assert covered_ns(row, kind) == pytest.approx(getattr(truth, term), abs=STAMP_NS * slices), (
                row.rank,
                term,
            )


def test_exposed_slices_add_up_to_the_simulated_ledger(small: tuple[Simulated, StepOverview]) -> None:
    assert_ledger_is_true(*small)


@pytest.mark.parametrize("seed", [11, 23, 41])
def test_any_job_draws_its_ledger(seed: int, tmp_path: Path) -> None:
    job = simulated(varied_job(seed), tmp_path)
    made = build(job)
    for row in made.rows:
        for term, kind in EXPOSED.items():
            found = covered_ns(row, kind)
            assert found == pytest.approx(getattr(row.ledger, term), abs=made.resolution_ns * 100)
    ranks = [rank for row in made.rows for rank in (row.rank, *row.alike)]
    assert sorted(ranks) == sorted(job.run.ranks)


def test_the_late_rank_is_first_and_who_waits_for_it_second(small: tuple[Simulated, StepOverview]) -> None:
    _, made = small
    assert made.culprit == made.rows[0].rank == 2
    assert made.victim == made.rows[1].rank
    assert {arrow.last_rank for arrow in made.arrows} == {2}
    longest = made.arrows[0]
    assert longest.arrival_ns - longest.start_ns >= longest.exposed_wait_ns > 0
    assert longest.rank == made.victim


def test_of_many_ranks_representatives_stand_for_all(many: tuple[Simulated, StepOverview]) -> None:
    job, made = many
    assert len(made.rows) <= MAX_ROWS < len(job.run.ranks)
    ranks = [rank for row in made.rows for rank in (row.rank, *row.alike)]
    assert sorted(ranks) == sorted(job.run.ranks)
    assert made.rows[0].rank == made.culprit == LATE
    assert made.rows[0].alike == (), "nobody is like the late rank"
    assert_ledger_is_true(job, made)


def test_the_number_of_slices_is_bounded_and_said(
    small: tuple[Simulated, StepOverview], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, made = small
    assert not made.is_coarse
    monkeypatch.setattr(overview_module, "MAX_SLICES", 60)
    coarse = build(job)
    assert coarse.is_coarse
    assert sum(len(lane.kinds) for row in coarse.rows for lane in row.lanes) <= 60
    assert coarse.resolution_ns > made.resolution_ns
    assert [row.rank for row in coarse.rows] == [row.rank for row in made.rows]
