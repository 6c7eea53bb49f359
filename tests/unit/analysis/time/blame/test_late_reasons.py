"""Why a rank came late and where that began: planted on device ranks, one cause at a time."""

from pathlib import Path

import pytest

from tests.support.device_plays import MS, US, Collect, Copy, Drain, Host, Join, Kernel, Op, write
from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.run.reader import load

LATE = 8 * MS
RANKS = (0, 1, 2, 3)
Programs = dict[int, list[Op]]


def program(*planted: Op, plant_at: int = 3, units: int = 6, prefetch: bool = False) -> list[Op]:
    """Gather, compute, gather, compute, ...; what is planted comes before the compute of one unit.

    With ``prefetch`` each gather is launched before the compute of the unit ahead of it, and runs beside it.
    """
    ops: list[Op] = [Collect(key="g0", group=RANKS)]
    for unit in range(units):
        following = Collect(key=f"g{unit + 1}", group=RANKS)
        ops.append(Join(key=f"g{unit}"))
        ops += [following] if prefetch else []
        ops += planted if unit == plant_at else ()
        ops += [Kernel(ns=3 * MS), Kernel(ns=2 * MS)]
        ops += [] if prefetch else [following]
    return ops


def with_late(planted: list[Op], late: int = 1, **options) -> Programs:
    return {rank: program(*(planted if rank == late else ()), **options) for rank in RANKS}


def analysed(folder: Path, programs: Programs, **options) -> TimeAnalysis:
    return analyse_time(load(write(folder / "x.zprof", programs, **options)))


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
#: The host may run ahead of its device: it must lose more than its lead.
PLANTED: dict[str, list[Op]] = {
    "compute": [Kernel(ns=LATE)],
    "memcpy": [Copy(ns=LATE)],
    "host": [Drain(), Host(ns=LATE)],
    "allocator": [Drain(), Host(ns=LATE, name="cudaMalloc")],
    "data": [Drain(), Host(ns=LATE, name=LOADER, category="user_annotation")],
}


@pytest.mark.parametrize(("reason", "late"), [*zip(PLANTED, (0, 2, 1, 3, 2), strict=True)])
def test_the_late_rank_is_charged_with_its_reason(tmp_path: Path, reason: str, late: int) -> None:
    analysis = analysed(tmp_path, with_late(PLANTED[reason], late))
    first, *others = analysis.time.blame.per_rank
    assert first.rank == late
    assert first.exposed_wait_ns == pytest.approx(3 * LATE, rel=0.05)
    assert list(first.reasons) == [reason]
    assert first.origins == {late: first.exposed_wait_ns}
    assert first.own_wait_ns < MS
    assert all(entry.exposed_wait_ns == 0 for entry in others)
    blamed = analysis.collectives.at(analysis.collectives.ints("blamed_rank") == late)
    assert (set(blamed.texts("unit")), set(blamed.texts("late_reason"))) == ({"g4"}, {reason})


def test_a_wait_for_the_device_that_only_one_rank_makes(tmp_path: Path) -> None:
    """Its host cannot run ahead, so each of its short kernels starts a launch later."""
    short = [Kernel(ns=20 * US) for _ in range(400)]
    held = [op for kernel in short for op in (kernel, Drain(name="cudaStreamSynchronize"))]
    programs = {rank: program(*(held if rank == 1 else short)) for rank in RANKS}
    first = analysed(tmp_path, programs).time.blame.per_rank[0]
    assert (first.rank, list(first.reasons)) == (1, ["sync"])


def test_a_delay_that_others_had_compute_to_hide_is_traced_to_its_begin(tmp_path: Path) -> None:
    """Prefetched gathers behind the delay come late too, without holding anybody up."""
    unit_ns = 5 * MS
    analysis = analysed(tmp_path, with_late([Kernel(ns=LATE)], prefetch=True, plant_at=2))
    first, *others = analysis.time.blame.per_rank
    assert (first.rank, first.exposed_wait_ns) == (1, 3 * (LATE - unit_ns))
    assert first.reasons == {"compute": first.exposed_wait_ns}
    assert all(not entry.reasons for entry in others)
    blamed = analysis.collectives.at(analysis.collectives.ints("blamed_rank") == 1)
    assert (set(blamed.texts("unit")), set(blamed.texts("late_reason"))) == ({"g4", "g5", "g6"}, {"compute"})


def test_a_missing_rank_leaves_everything_unjudged(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, with_late(PLANTED["compute"]), skip_ranks=[3])
    blame = analysis.time.blame
    assert blame.judged == 0
    assert blame.unjudged_ns == pytest.approx(2 * LATE, rel=0.05)
    assert all(entry.exposed_wait_ns == 0 and not entry.reasons for entry in blame.per_rank)
    assert (analysis.collectives.ints("blamed_rank") == -1).all()
    assert analysis.collectives.bools("bound").all()


def reason_at(analysis: TimeAnalysis, unit: str) -> str:
    rows = analysis.collectives
    (reason,) = set(rows.texts("late_reason").at(rows.texts("unit").equals(unit)))
    return reason


def test_a_delay_that_the_others_have_waited_for_explains_nothing_later(tmp_path: Path) -> None:
    programs = with_late([])
    begin, later = (programs[1].index(Join(key=key)) for key in ("g3", "g4"))
    programs[1][later + 1 : later + 1] = [Drain(), Host(ns=LATE)]
    programs[1].insert(begin + 1, Kernel(ns=3 * LATE))
    analysis = analysed(tmp_path, programs)
    assert (reason_at(analysis, "g4"), reason_at(analysis, "g5")) == ("compute", "host")


def test_a_call_under_which_the_device_was_busy_is_not_why_it_ran_dry(tmp_path: Path) -> None:
    late = [Host(ns=2 * LATE, name="cudaMalloc"), Drain(), Host(ns=LATE)]
    programs = {rank: program(Kernel(ns=4 * LATE), *(late if rank == 1 else [])) for rank in RANKS}
    assert reason_at(analysed(tmp_path, programs), "g4") == "host"


#: Neighbours share a model; each second rank holds the same part of it.
TENSOR = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
DATA = {0: (0, 2), 2: (0, 2), 1: (1, 3), 3: (1, 3)}


@pytest.mark.parametrize("late", [0, 3])
def test_a_tensor_parallel_peer_that_only_waited_is_not_the_origin(tmp_path: Path, late: int) -> None:
    programs: Programs = {rank: [] for rank in RANKS}
    for rank, ops in programs.items():
        for unit in range(4):
            tensor = Collect(key=f"tp{unit} {TENSOR[rank]}", group=TENSOR[rank], kind="all_reduce", ns=MS)
            data = Collect(key=f"dp{unit} {DATA[rank]}", group=DATA[rank], kind="all_reduce")
            ops += [Kernel(ns=3 * MS), *([Kernel(ns=LATE)] if (rank, unit) == (late, 2) else [])]
            ops += [tensor, Join(key=tensor.key), Kernel(ns=2 * MS), data, Join(key=data.key)]
    shares = analysed(tmp_path, programs).time.blame
    (peer,) = set(TENSOR[late]) - {late}
    blame = {entry.rank: entry for entry in shares.per_rank}
    for rank, ns, reason in ((late, 2 * LATE, "compute"), (peer, LATE, "previous_collective")):
        assert blame[rank].exposed_wait_ns == pytest.approx(ns, rel=0.01)
        assert blame[rank].reasons == {reason: blame[rank].exposed_wait_ns}
        assert blame[rank].origins == {late: blame[rank].exposed_wait_ns}
    assert sum(entry.exposed_wait_ns > 0 for entry in shares.per_rank) == 2


def test_a_delay_along_a_chain_of_groups(tmp_path: Path) -> None:
    """Each rank meets the one before it, then the one after it: rank 0 alone is slow."""
    last = 7
    ops: Programs = {rank: [] for rank in range(last + 1)}
    for turn in range(2):
        for rank, mine in ops.items():
            for left in (rank - 1, rank):
                if 0 <= left < last:
                    meet = Collect(key=f"{turn} {left}", group=(left, left + 1), kind="all_reduce", ns=MS)
                    mine += [meet, Join(key=meet.key), Kernel(ns=MS)]
        ops[0] += [Kernel(ns=40 * MS)] if not turn else []
    collectives = analysed(tmp_path, ops).collectives.to_frame()
    late = collectives[(collectives["sequence"] == 1) & (collectives["exposed_wait_ns"] > 20 * MS)]
    assert set(late["origin_rank"]) == {0}
    reasons = dict(zip(late["blamed_rank"], late["late_reason"], strict=True))
    assert reasons == {0: "compute"} | dict.fromkeys(range(1, last), "previous_collective")


def test_a_stream_still_busy_with_another_group_is_followed(tmp_path: Path) -> None:
    """Rank 1 computes on, but its stream is busy with a collective to which rank 0 is late: 2 waits for 1."""
    left, right = (0, 1), (1, 2)
    ops: Programs = {rank: [] for rank in range(3)}
    for turn in range(3):
        for rank, mine in ops.items():
            mine += [Kernel(ns=LATE)] if (rank, turn) == (0, 2) else []
            for group in (left, right):
                if rank in group:
                    key = f"{group} {turn}"
                    mine += [Collect(key=key, group=group, ns=MS, lane="one", after_compute=rank == 0)]
            length = 1 if rank == 0 else 20 if (rank, turn) == (1, 1) else 3
            mine += [Kernel(ns=length * MS)]
    frame = analysed(tmp_path, ops).collectives.to_frame()
    (row,) = frame[(frame["unit"] == f"{right} 2") & (frame["rank"] == 2)].to_dict("records")
    assert row["wait_ns"] > 0.5 * LATE
    assert (row["blamed_rank"], row["late_reason"], row["origin_rank"]) == (1, "previous_collective", 0)
