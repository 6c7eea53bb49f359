"""The critical path lies where the time was lost, on whichever rank that is, and sums to the step."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.diagnoses import step_ns
from tests.support.simulations import analysed_traces, simulated, with_pace
from zprof.analysis.time.critical_path import BlockedSpans, PathPiece, SyncPoints, make_sync_points, walk_back
from zprof.model.time import CriticalPath, PathKind
from zprof.simulator.ground_truth import write_job
from zprof.simulator.job import Job, Pace, Rotating
from zprof.simulator.regular import make_job, plant

MS = 1_000_000
SLOW = pytest.mark.slow
NVIDIA = make_job(ranks=4, steps=3, units=4, retry_ns=1_500_000)
GLOO = make_job(vendor="gloo", ranks=4, steps=3, units=4)


def path_of(planted: Job, folder: Path) -> CriticalPath:
    """The critical path, which sums to the true step, to 0.1 %."""
    job = simulated(planted, folder)
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
    "planted",
    [
        plant(NVIDIA, "tight"),
        GLOO,
        pytest.param(NVIDIA, marks=pytest.mark.slow),
        pytest.param(plant(GLOO, "tight"), marks=pytest.mark.slow),
    ],
    ids=["nvidia, tight", "gloo", "nvidia", "gloo, tight"],
)
def test_it_lies_on_the_late_rank(planted: Job, tmp_path: Path) -> None:
    path = path_of(with_pace(planted, Pace(gpu=1.25), 2), tmp_path)
    assert share(path, PathKind.COMPUTE, 2) > 0.8 * path.wall_ns
    assert share(path, PathKind.COMPUTE) - share(path, PathKind.COMPUTE, 2) < 0.03 * path.wall_ns


@pytest.mark.parametrize(
    "planted", [GLOO, pytest.param(NVIDIA, marks=pytest.mark.slow)], ids=["gloo", "nvidia"]
)
def test_a_slow_link_is_most_of_it(planted: Job, tmp_path: Path) -> None:
    slow_link = replace(planted, cluster=replace(planted.cluster, bandwidth_factor=0.02))
    path = path_of(slow_link, tmp_path)
    assert share(path, PathKind.TRANSFER) > 0.9 * path.wall_ns


LATE = {
    PathKind.DATA: Pace(data_ns=6 * MS),
    PathKind.HOST: Pace(stall_ns=6 * MS),
    PathKind.ALLOCATOR: Pace(retries=2),
}


@pytest.mark.parametrize("what", LATE)
def test_it_holds_what_one_host_lost_in_each_step(what: PathKind, tmp_path: Path) -> None:
    path = path_of(with_pace(NVIDIA, LATE[what], 1), tmp_path)
    assert share(path, what, 1) > 5 * MS
    assert share(path, what) - share(path, what, 1) < 1 * MS
    if what is PathKind.DATA:
        data = [segment for segment in path.longest if segment.what is PathKind.DATA]
        assert {(segment.step, segment.rank) for segment in data} == {(3, 1), (4, 1), (5, 1)}
        assert all(segment.begin_ns < MS for segment in data)
        lengths = [segment.ns for segment in path.longest]
        assert lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    "planted", [NVIDIA, pytest.param(GLOO, marks=pytest.mark.slow)], ids=["nvidia", "gloo"]
)
def test_it_changes_ranks_where_another_is_late_in_each_step(planted: Job, tmp_path: Path) -> None:
    path = path_of(replace(planted, rotating=Rotating(host_ns=8 * MS)), tmp_path)
    assert share(path, PathKind.HOST) > 7.5 * MS
    assert sum(share(path, PathKind.HOST, rank) > 2 * MS for rank in range(4)) == 3


@pytest.mark.parametrize("missing", [(1, 2, 3), (0,), pytest.param((1, 3), marks=pytest.mark.slow)])
def test_missing_ranks_leave_a_path_through_the_others(missing: tuple[int, ...], tmp_path: Path) -> None:
    """The waiting for them cannot be followed: it is transfer of the rank that waited."""
    truth = write_job(NVIDIA, tmp_path / "traces")
    for rank in missing:
        (tmp_path / f"traces/rank{rank}.json.gz").unlink()
    path = analysed_traces(NVIDIA, truth, tmp_path).analysis.time.critical_path
    assert path is not None
    assert path.wall_ns == pytest.approx(step_ns(truth), rel=0.01)
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
