"""A step of all ranks made by hand: rank 1 is late, rank 0 waits for it, rank 2 has no row of its own."""

from zprof.model.mesh import GroupRole
from zprof.model.step_overview import (
    OverviewLane,
    OverviewMessage,
    OverviewRow,
    SliceKind,
    StepOverview,
    WaitArrow,
)
from zprof.model.time import StepTime

MS = 1_000_000
GROUP = "0,1,2"


def make_overview() -> StepOverview:
    """10 ms: rank 0 computes 4 ms, waits 3 ms, gets 1 ms; rank 1 computes 7 ms, and 1 ms is hidden."""
    return StepOverview(
        step=7,
        length_ns=10 * MS,
        rows=(
            _make_row(1, compute=[(0, 7), (8, 10)], pieces=[(SliceKind.HIDDEN, 7, 8)], message=(7, 8)),
            _make_row(
                0,
                compute=[(0, 4), (8, 9)],
                pieces=[(SliceKind.WAIT, 4, 7), (SliceKind.TRANSFER, 7, 8)],
                message=(4, 8),
                alike=(2,),
            ),
        ),
        arrows=(
            WaitArrow(
                rank=0,
                last_rank=1,
                other_ranks=1,
                group=GROUP,
                kind="all_gather",
                start_ns=4 * MS,
                arrival_ns=7 * MS,
                exposed_wait_ns=3 * MS,
            ),
        ),
        culprit=1,
        victim=0,
        caused_wait_ns=3 * MS,
        resolution_ns=24,
        is_coarse=False,
    )


def _make_row(
    rank: int,
    *,
    compute: list[tuple[int, int]],
    pieces: list[tuple[SliceKind, int, int]],
    message: tuple[int, int],
    alike: tuple[int, ...] = (),
) -> OverviewRow:
    lengths = {kind: (end - start) * MS for kind, start, end in pieces}
    computed = sum(end - start for start, end in compute) * MS
    exposed = lengths.get(SliceKind.WAIT, 0) + lengths.get(SliceKind.TRANSFER, 0)
    ledger = StepTime(
        rank=rank,
        step=7,
        wall_ns=10 * MS,
        compute_ns=computed,
        exposed_wait_ns=lengths.get(SliceKind.WAIT, 0),
        exposed_transfer_ns=lengths.get(SliceKind.TRANSFER, 0),
        exposed_memcpy_ns=0,
        idle_ns=10 * MS - computed - exposed,
        unexplained_ns=0,
        overlapped_ns=lengths.get(SliceKind.HIDDEN, 0),
        collective_ns=sum(lengths.values()),
    )
    compute_lane = OverviewLane(
        group="",
        role=None,
        is_compute=True,
        kinds=(int(SliceKind.COMPUTE),) * len(compute),
        starts_ns=tuple(start * MS for start, _ in compute),
        lengths_ns=tuple((end - start) * MS for start, end in compute),
        messages=(-1,) * len(compute),
    )
    group_lane = OverviewLane(
        group=GROUP,
        role=GroupRole.SHARD,
        is_compute=False,
        kinds=tuple(int(kind) for kind, _, _ in pieces),
        starts_ns=tuple(start * MS for _, start, _ in pieces),
        lengths_ns=tuple((end - start) * MS for _, start, end in pieces),
        messages=(0,) * len(pieces),
    )
    gather = OverviewMessage(
        kind="all_gather",
        bytes=1 << 20,
        start_ns=message[0] * MS,
        length_ns=(message[1] - message[0]) * MS,
        last_rank=1,
    )
    return OverviewRow(
        rank=rank,
        stage=None,
        start_ns=0,
        ledger=ledger,
        lanes=(compute_lane, group_lane),
        messages=(gather,),
        phases=((0, "forward"), (5 * MS, "backward")),
        alike=alike,
    )
