"""The critical path lies where the time was lost, on whichever rank that is, and sums to the step."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.diagnoses import step_ns
from tests.support.simulations import simulated
from zprof.analysis.time.critical_path import BlockedSpans, PathPiece, SyncPoints, make_sync_points, walk_back
from zprof.model.time import CriticalPath, PathKind
from zprof.simulator.causes import TIGHT, plant
from zprof.simulator.plan import AllocatorRetries, HostDelay, SimulationPlan, Vendor

MS = 1_000_000
NVIDIA = SimulationPlan(vendor=Vendor.NVIDIA, ranks=4, steps=3, units=4)
GLOO = replace(NVIDIA, vendor=Vendor.GLOO)


def path_of(plan: SimulationPlan, folder: Path) -> CriticalPath:
    """The critical path, which sums to the true step, to 0.1 %."""
    job = simulated(plan, folder)
    path = job.analysis.time.critical_path
    assert path is not None
    assert path.wall_ns == pytest.approx(step_ns(job.truth), rel=0.001)
    assert sum(share.ns for share in path.shares) == pytest.approx(path.wall_ns, abs=100)
    return path


def share(path: CriticalPath, what: PathKind | None = None, rank: int | None = None) -> int:
    return sum(
        share.ns
        for share in path.shares
        if (what is None or share.what is what) and (rank is None or share.rank == rank)
    )


@pytest.mark.parametrize(
    "plan",
    [
        plant(NVIDIA, TIGHT),
        GLOO,
        pytest.param(NVIDIA, marks=pytest.mark.slow),
        pytest.param(plant(GLOO, TIGHT), marks=pytest.mark.slow),
    ],
    ids=["nvidia, tight", "gloo", "nvidia", "gloo, tight"],
)
def test_it_lies_on_the_late_rank(plan: SimulationPlan, tmp_path: Path) -> None:
    path = path_of(replace(plan, speed={2: 0.8}), tmp_path)
    assert share(path, PathKind.COMPUTE, 2) > 0.8 * path.wall_ns
    assert share(path, PathKind.COMPUTE) - share(path, PathKind.COMPUTE, 2) < 0.03 * path.wall_ns


@pytest.mark.parametrize("plan", [GLOO, pytest.param(NVIDIA, marks=pytest.mark.slow)], ids=["gloo", "nvidia"])
def test_a_slow_link_is_most_of_it(plan: SimulationPlan, tmp_path: Path) -> None:
    path = path_of(plant(plan, "low_bus_bandwidth"), tmp_path)
    assert share(path, PathKind.TRANSFER) > 0.9 * path.wall_ns


LATE = {
    PathKind.DATA: {"delays": (HostDelay(rank=1, ns=6 * MS, data=True),)},
    PathKind.HOST: {"delays": (HostDelay(rank=1, ns=6 * MS),)},
    PathKind.ALLOCATOR: {"allocator": AllocatorRetries(retries_per_step=2, malloc_ns=3 * MS, ranks=(1,))},
}


@pytest.mark.parametrize("what", LATE)
def test_it_holds_what_one_host_lost_in_each_step(what: PathKind, tmp_path: Path) -> None:
    path = path_of(replace(NVIDIA, **LATE[what]), tmp_path)
    assert share(path, what, 1) > 5 * MS
    assert share(path, what) - share(path, what, 1) < 1 * MS
    if what is PathKind.DATA:
        data = [segment for segment in path.longest if segment.what is PathKind.DATA]
        assert {(segment.step, segment.rank) for segment in data} == {(3, 1), (4, 1), (5, 1)}
        assert all(segment.begin_ns < MS for segment in data)
        lengths = [segment.ns for segment in path.longest]
        assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("plan", [NVIDIA, pytest.param(GLOO, marks=pytest.mark.slow)], ids=["nvidia", "gloo"])
def test_it_changes_ranks_where_another_is_late_in_each_step(plan: SimulationPlan, tmp_path: Path) -> None:
    path = path_of(plant(plan, "rotating_straggler"), tmp_path)
    assert share(path, PathKind.HOST) > 7.5 * MS
    assert {rank for rank in range(4) if share(path, PathKind.HOST, rank) > 2 * MS} == {1, 2, 3}


@pytest.mark.parametrize("missing", [(1, 2, 3), (0,), pytest.param((1, 3), marks=pytest.mark.slow)])
def test_missing_ranks_leave_a_path_through_the_others(missing: tuple[int, ...], tmp_path: Path) -> None:
    """The waiting for them cannot be followed: it is transfer of the rank that waited."""
    path = path_of(replace(NVIDIA, missing=missing), tmp_path)
    assert not {share.rank for share in path.shares} & set(missing)


def two_ranks(*, last: list[int], queued: list[int], start: list[int], end: list[int]) -> SyncPoints:
    """Rows of ranks 0, 1, 0, 1, ..."""
    rank = np.arange(len(start)) % 2
    return make_sync_points(rank, np.array(start), np.array(end), np.array(last), np.array(queued))


def walk_two_ranks(
    rank: int, blocked: dict[int, list[tuple[int, int]]], points: SyncPoints
) -> list[PathPiece]:
    """Walk from 500,000 to 0, with the intervals in which each rank was blocked."""
    spans = {number: np.array(blocked.get(number, []), dtype=np.int64).reshape(-1, 2) for number in (0, 1)}
    lists = {number: BlockedSpans(*rows.T.tolist()) for number, rows in spans.items()}
    return walk_back(rank, {0: 0, 1: 0}, 500_000, lists, points)


def test_it_goes_through_the_collective_before_on_the_stream() -> None:
    """Rank 1 came last to the second, 300 to 400, because of the first, which waited for rank 0 until 150."""
    points = two_ranks(
        start=[150_000, 100_000, 300_000, 300_000],
        end=[300_000, 300_000, 400_000, 400_000],
        last=[0, 0, 3, 3],
        queued=[-1, -1, -1, 1],
    )
    pieces = walk_two_ranks(0, {0: [(300_000, 400_000)]}, points)
    assert [(piece.rank, piece.begin_ns, piece.end_ns, piece.moving) for piece in pieces] == [
        (0, 400_000, 500_000, False),
        (0, 300_000, 400_000, True),
        (1, 150_000, 300_000, True),
        (0, 0, 150_000, False),
    ]


def test_a_collective_that_still_ran_was_not_waited_for() -> None:
    """The rank computes nothing beside it, and goes on long before its end: its host was late."""
    points = two_ranks(start=[100_000, 50_000], end=[900_000, 900_000], last=[0, 0], queued=[-1, -1])
    pieces = walk_two_ranks(1, {1: [(100_000, 400_000)]}, points)
    assert {(piece.rank, piece.moving) for piece in pieces} == {(1, False)}


def test_collectives_that_ended_before_they_began_come_to_an_end() -> None:
    """Whatever the clocks say: each piece is at least a nanosecond, and they join."""
    points = two_ranks(start=[900_000, 900_000], end=[400_000, 400_000], last=[1, 0], queued=[1, 0])
    pieces = walk_two_ranks(0, {0: [(100, 600_000)], 1: [(100, 600_000)]}, points)
    assert (pieces[0].end_ns, pieces[-1].begin_ns) == (500_000, 0)
    assert all(later.begin_ns == earlier.end_ns for later, earlier in itertools.pairwise(pieces))


def test_a_collective_that_holds_a_rank_up_later_is_not_on_the_path() -> None:
    """Rank 1 came last to the first; the second, beside it, ends after the path has passed."""
    points = two_ranks(
        start=[200_000, 300_000, 100_000, 100_000],
        end=[400_000, 400_000, 600_000, 600_000],
        last=[1, 1, 2, 2],
        queued=[-1, -1, -1, -1],
    )
    pieces = walk_two_ranks(0, {0: [(200_000, 400_000)], 1: [(100_000, 600_000)]}, points)
    assert [(piece.rank, piece.end_ns, piece.moving) for piece in pieces] == [
        (0, 500_000, False), (0, 400_000, True), (1, 300_000, False), (1, 100_000, False),
    ]  # fmt: skip
