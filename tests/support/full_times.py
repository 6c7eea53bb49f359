"""A time side in which every page has rows: two of four ranks of an imported trace, one of them late."""

from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.model.memory import Memory
from zprof.model.time import (
    Blame,
    LinkFit,
    MessageSizes,
    StepTime,
    Time,
    UnitTime,
    WaitShares,
    Window,
    WindowPolicy,
)

MS = 1_000_000
US = 1_000


def traced(analysis: RunAnalysis, name: str = "") -> RunAnalysis:
    """The analysis as that of an imported trace, with all pages; ``name`` in each place of a name."""
    run = replace(analysis.run, source="trace", device="cuda", backend="nccl", engine="unknown", stage=None)
    return replace(
        analysis,
        run=replace(run, modelled=()),
        memory=Memory(),
        volume=None,
        time=full_time(analysis.time, name),
    )


def full_time(time: Time, name: str = "") -> Time:
    """``time`` with all other leaves."""
    alignment = time.alignment
    assert alignment is not None
    ranks = sorted(alignment.offsets_ns)
    last = ranks[-1]
    return replace(
        time,
        collectives=tuple(replace(entry, bound=True) for entry in time.collectives),
        window=Window(
            policy=WindowPolicy.STEP, source=name or "ProfilerStep", pre_window_ns=12 * MS + 345 * US
        ),
        steps=tuple(_step(rank, step) for step in range(7) for rank in ranks),
        units=tuple(_unit(name or f"layers.{index}", index) for index in range(14)),
        messages=tuple(
            _message(name or "all_gather", name or "0,1,2,3", 4**power << 10) for power in (0, 5, 8)
        ),
        fits=(_fit(name or "all_gather", name or "0,1,2,3"),),
        blame=WaitShares(
            per_rank=(_blame(last, name or "compute"),), tied_ns=400 * US, unjudged_ns=2 * MS, judged=120
        ),
        alignment=replace(
            alignment,
            offsets_ns={rank: 1_500 * US * rank for rank in ranks},
            rank_uncertainty_ns=dict.fromkeys(ranks, 1_200),
            interval_ns={rank: (1_400 * US * rank, 1_600 * US * rank) for rank in ranks},
            drift_ppb={last: 12_340.0},
            shifts={last: -1},
            excluded=(last,),
        ),
    )


def _step(rank: int, step: int) -> StepTime:
    wall = (100 + step) * MS
    return StepTime(
        rank=rank,
        step=step,
        wall_ns=wall,
        compute_ns=60 * MS,
        exposed_wait_ns=rank * MS,
        exposed_transfer_ns=20 * MS,
        exposed_memcpy_ns=MS,
        idle_ns=wall - (81 + rank) * MS,
        unexplained_ns=0,
        overlapped_ns=10 * MS,
        collective_ns=(30 + rank) * MS,
    )


def _unit(unit: str, index: int) -> UnitTime:
    return UnitTime(
        unit=unit,
        kind="all_gather",
        group="0,1,2,3",
        count=2,
        bytes=(1 + index) << 20,
        exposed_wait_ns=index * 100 * US,
        exposed_transfer_ns=index * MS,
    )


def _message(kind: str, group: str, size: int) -> MessageSizes:
    return MessageSizes(
        kind=kind,
        group=group,
        at_least_bytes=size,
        below_bytes=4 * size,
        count=12,
        exposed_ns=3 * MS,
        busbw_bytes_per_s=None if size < 1 << 20 else 180e9,
    )


def _fit(kind: str, group: str) -> LinkFit:
    return LinkFit(
        kind=kind,
        group=group,
        messages=240,
        sizes=3,
        latency_ns=24 * US,
        algbw_bytes_per_s=240e9,
        busbw_bytes_per_s=180e9,
        latency_share_ratio=0.12,
        residual_ratio=0.034,
    )


def _blame(rank: int, reason: str) -> Blame:
    return Blame(
        rank=rank,
        wait_ns=35 * MS,
        exposed_wait_ns=31 * MS,
        last_ratio=0.861,
        own_wait_ns=400 * US,
        reasons={reason: 28 * MS, f"{reason}2": 3 * MS},
        origins={rank: 31 * MS},
        waiting_ranks=3,
        wait_per_rank_ns=35 * MS // 3,
        exposed_wait_per_rank_ns=31 * MS // 3,
    )
