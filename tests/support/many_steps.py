"""A measured run as if it had many ranks and steps, and one of them late: made by hand, none recorded."""

from msgspec.structs import replace

from zprof.model.time import Blame, LateReason, RankTime, StepLateness, StepTime, WaitShares
from zprof.tui.session import LoadedRun

MS = 1_000_000


def with_ranks(loaded: LoadedRun, ranks: int, steps: int, late: int = -1, first_step: int = 3) -> LoadedRun:
    """``loaded`` with so many ranks and steps instead of its own; waiting is charged to the late rank."""
    report = loaded.report
    numbers = range(first_step, first_step + steps)
    entry = report.time.per_rank[0]
    time = replace(
        report.time,
        per_rank=tuple(_rank(entry, rank, rank == late) for rank in range(ranks)),
        steps=tuple(_step(rank, step) for rank in range(ranks) for step in numbers),
        lateness=tuple(_late(rank, step, rank == late) for rank in range(ranks) for step in numbers),
        blame=WaitShares(
            per_rank=tuple(_blame(rank, rank == late) for rank in range(ranks)), judged=14 * steps
        ),
    )
    run = replace(report.run, ranks_loaded=tuple(range(ranks)), world_size=ranks, steps=tuple(numbers))
    return replace(loaded, report=replace(report, run=run, time=time))


def _rank(entry: RankTime, rank: int, late: bool) -> RankTime:
    return replace(entry, rank=rank, wall_ns=(400 + rank % 3) * MS, compute_ns=(200 + 30 * late) * MS)


def _step(rank: int, step: int) -> StepTime:
    wall = (400 + rank % 7 + step) * MS
    return StepTime(
        rank=rank,
        step=step,
        wall_ns=wall,
        compute_ns=200 * MS + rank,
        exposed_wait_ns=30 * MS,
        exposed_transfer_ns=20 * MS + step,
        exposed_memcpy_ns=0,
        idle_ns=wall - 250 * MS - rank - step,
        unexplained_ns=0,
        overlapped_ns=10 * MS,
        collective_ns=60 * MS,
    )


def _late(rank: int, step: int, late: bool) -> StepLateness:
    mean = 27 * MS if late else (rank * 7 + step) % 11 * 10_000
    return StepLateness(rank=rank, step=step, collectives=14, mean_ns=mean, largest_ns=2 * mean)


def _blame(rank: int, late: bool) -> Blame:
    reasons = {LateReason.COMPUTE.value: 20 * MS, LateReason.HOST.value: 6 * MS} if late else {}
    return Blame(
        rank=rank,
        wait_ns=30 * MS * late,
        exposed_wait_ns=26 * MS * late,
        last_ratio=0.9 * late,
        own_wait_ns=MS,
        reasons=reasons,
        origins={rank: 26 * MS} if late else {},
        waiting_ranks=3 * late,
        wait_per_rank_ns=10 * MS * late,
        exposed_wait_per_rank_ns=26 * MS // 3 * late,
    )


def with_time(loaded: LoadedRun, **changes: object) -> LoadedRun:
    time = replace(loaded.report.time, **changes)
    return replace(loaded, report=replace(loaded.report, time=time))
