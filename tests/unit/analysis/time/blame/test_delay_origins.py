"""A delay that one rank passes on to others is followed back to where it began."""

import pytest

from tests.support.device_plays import MS, Collect, Join, Kernel, write
from zprof.analysis.time.analyse import analyse_time
from zprof.run.reader import load

LATE = 10 * MS
RANKS = range(4)
#: Neighbours share a model; each second rank holds the same part of it.
TENSOR = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
DATA = {0: (0, 2), 2: (0, 2), 1: (1, 3), 3: (1, 3)}


def program(rank, planted, *, units=4, plant_at=2):
    ops = []
    for unit in range(units):
        tensor = Collect(key=f"tp{unit} {TENSOR[rank]}", group=TENSOR[rank], kind="all_reduce", ns=MS)
        data = Collect(key=f"dp{unit} {DATA[rank]}", group=DATA[rank], kind="all_reduce")
        ops += [Kernel(ns=3 * MS), *(planted if unit == plant_at else ()), tensor, Join(key=tensor.key)]
        ops += [Kernel(ns=2 * MS), data, Join(key=data.key)]
    return ops


def analysed(tmp_path, programs):
    return analyse_time(load(write(tmp_path / "x.zprof", programs)))


@pytest.mark.parametrize("late", RANKS)
def test_a_tensor_parallel_peer_that_only_waited_is_not_where_it_began(tmp_path, late):
    programs = {rank: program(rank, [Kernel(ns=LATE)] if rank == late else []) for rank in RANKS}
    shares = analysed(tmp_path, programs).time.blame
    peer = next(rank for rank in TENSOR[late] if rank != late)
    blame = {entry.rank: entry for entry in shares.per_rank}
    assert blame[late].exposed_wait_ns == pytest.approx(2 * LATE, rel=0.01)  # of its two groups
    assert blame[late].reasons == {"compute": blame[late].exposed_wait_ns}
    assert blame[late].origins == {late: blame[late].exposed_wait_ns}
    assert blame[peer].exposed_wait_ns == pytest.approx(LATE, rel=0.01)
    assert blame[peer].reasons == {"previous_collective": blame[peer].exposed_wait_ns}
    assert blame[peer].origins == {late: blame[peer].exposed_wait_ns}
    assert sum(entry.exposed_wait_ns > 0 for entry in shares.per_rank) == 2


def test_a_delay_along_a_chain_of_groups(tmp_path):
    """Each rank meets the one before it, then the one after it: rank 0 alone is slow."""
    last = 7
    ops = {rank: [] for rank in range(last + 1)}
    for turn in range(2):
        for rank, mine in ops.items():
            for left in (rank - 1, rank):
                if 0 <= left < last:
                    meet = Collect(key=f"{turn} {left}", group=(left, left + 1), kind="all_reduce", ns=MS)
                    mine += [meet, Join(key=meet.key), Kernel(ns=MS)]
        ops[0] += [Kernel(ns=40 * MS)] if not turn else []
    collectives = analysed(tmp_path, ops).collectives
    late = collectives[(collectives["sequence"] == 1) & (collectives["exposed_wait_ns"] > 20 * MS)]
    assert sorted(late["blamed_rank"]) == list(range(last))
    assert set(late["origin_rank"]) == {0}
    reasons = dict(zip(late["blamed_rank"], late["late_reason"], strict=True))
    assert reasons == {0: "compute"} | dict.fromkeys(range(1, last), "previous_collective")


def test_a_stream_still_busy_with_another_group_is_followed(tmp_path):
    """Rank 1 computes on, but its stream is busy with a collective to which rank 0 is late: 2 waits for 1."""
    left, right = (0, 1), (1, 2)
    ops = {rank: [] for rank in range(3)}
    for turn in range(3):
        for rank, mine in ops.items():
            mine += [Kernel(ns=LATE)] if (rank, turn) == (0, 2) else []
            for group in (left, right):
                if rank in group:
                    mine += [
                        Collect(
                            key=f"{group} {turn}", group=group, ns=MS, lane="one", after_compute=rank == 0
                        )
                    ]
            mine += [Kernel(ns=20 * MS if rank == 1 and turn == 1 else 3 * MS)] if rank else [Kernel(ns=MS)]
    frame = analysed(tmp_path, ops).collectives
    (row,) = frame[(frame["unit"] == f"{right} 2") & (frame["rank"] == 2)].to_dict("records")
    assert row["wait_ns"] > 0.5 * LATE
    assert (row["blamed_rank"], row["late_reason"], row["origin_rank"]) == (1, "previous_collective", 0)
