"""Reconcile a rank's peak with the allocator's counters: missing frees, memory unseen by hooks, bounds.

The peak counter only grows, unless the program resets it (``reset_peak_memory_stats``), which makes it
useless for the window. If it grew between the last sample before the window and the last one within it, the
process reached its peak in the window, and the counter is exact.
"""

from collections.abc import Collection

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.memory.live_bytes import TenantPeak
from zprof.analysis.memory.steps_and_phases import Timeline
from zprof.analysis.memory.tables import Int
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import AllocatorCounters

_COUNTERS = ("peak_allocated_bytes", "peak_reserved_bytes", "retries", "ooms")
#: Maximum relative difference between the analysis and the allocator's counter.
TOLERANCE = 0.01
LIGHT_MODE = "light"
NOT_SEEN_BY_HOOKS = "no hook saw it"
_FULL = "allocator events joined with storage roles"
_STORAGES = "tensor storages only; memory allocated inside operators is missing"
_HOOKS = "light mode: tensor storages seen by hooks"


class CounterPeak(Struct, frozen=True, kw_only=True):
    """The allocator's peak counter; ``in_window``: the peak was reached in the memory window."""

    bytes: int
    in_window: bool


def read_counters(rank: int, samples: Columns, steps: Collection[int]) -> tuple[AllocatorCounters, ...]:
    """Return one entry per device with allocator counters; retries and OOMs are counted over ``steps``."""
    samples = samples.sort_by("time_ns")
    counted = samples.at(np.any([samples.known(name) for name in _COUNTERS], axis=0))
    counters = []
    for device in sorted(counted.texts("device").list_distinct()):
        rows = counted.at(counted.texts("device").equals(device))
        before = np.flatnonzero(rows.ints("step") < min(steps)) if steps else np.arange(0)
        in_steps = rows.at(np.append(before[-1:], np.arange(len(before), len(rows))))
        counters.append(
            AllocatorCounters(
                rank=rank,
                device=device,
                peak_allocated_bytes=_max_sample(rows, "peak_allocated_bytes"),
                peak_reserved_bytes=_max_sample(rows, "peak_reserved_bytes"),
                retries=_count_growth(in_steps, "retries"),
                ooms=_count_growth(in_steps, "ooms"),
            )
        )
    return tuple(counters)


def read_counter_peak(samples: Columns, device: str, window: Timeline) -> CounterPeak | None:
    """Return the allocator's own peak at the window's end; None if no sample has it or it was reset."""
    samples = samples.at(samples.texts("device").equals(device) & samples.known("peak_allocated_bytes"))
    samples = samples.sort_by("time_ns")
    time_ns, peaks = samples.ints("time_ns"), samples.ints("peak_allocated_bytes")
    before = peaks[time_ns < window.begin_ns]
    within = peaks[(time_ns >= window.begin_ns) & (time_ns <= window.end_ns)]
    if not len(within) or _is_reset(np.append(before[-1:], within)):
        return None
    highest = int(within[-1])
    return CounterPeak(bytes=highest, in_window=len(before) > 0 and highest > int(before[-1]))


def _is_reset(counts: Int) -> bool:
    return bool((np.diff(counts) < 0).any())


def _max_sample(rows: Columns, name: str) -> int | None:
    """Return the maximum over all samples, because a program may reset the peak counter."""
    known = rows.ints(name)[rows.known(name)]
    return None if not len(known) or int(known.max()) < 0 else int(known.max())


def _count_growth(rows: Columns, name: str) -> int | None:
    """Return the last value minus the first.

    None if the counter was reset in between, or if a single sample is not 0, because it may have been counted
    before the recording.
    """
    known = rows.ints(name)[rows.known(name)]
    if not len(known) or _is_reset(known) or (len(known) == 1 and int(known[0]) != 0):
        return None
    return int(known[-1]) - int(known[0])


class PeakReconciliation(Struct, frozen=True, kw_only=True):
    """Bounds and gaps of a peak; ``unseen_bytes``: counted by the allocator but seen by no hook."""

    method: str
    upper_bound: bool
    lower_bound: bool
    unseen_bytes: int
    gaps: tuple[Gap, ...]


def reconcile_peak(
    rank: int, peak: TenantPeak, mode: str, has_events: bool, counter: CounterPeak | None
) -> PeakReconciliation:
    """Return the bounds and gaps of a rank's peak.

    ``mode`` is the recording mode (light or full); ``counter`` is None without an allocator counter.
    """
    if mode == LIGHT_MODE:
        return _reconcile_light(rank, peak, counter)
    gaps = _list_open_end_gaps(rank, peak)
    if not has_events:
        gaps.append(
            Gap(
                kind=GapKind.ALLOCATOR_EVENTS,
                what="allocator events",
                rank=rank,
                reason="the profiler reported none, so memory allocated inside operators is missing",
                remedy="do not run torch.profiler yourself while zprof records",
            )
        )
    return PeakReconciliation(
        method=_FULL if has_events else _STORAGES,
        upper_bound=peak.open_bytes > 0
        or (counter is not None and peak.bytes > _compute_counter_limit(counter)),
        lower_bound=not has_events or _is_short(peak.bytes, counter),
        unseen_bytes=0,
        gaps=(*gaps, *_list_counter_gaps(rank, peak.bytes, counter), *_list_unowned_gaps(rank, peak)),
    )


def _reconcile_light(rank: int, peak: TenantPeak, counter: CounterPeak | None) -> PeakReconciliation:
    """Reconcile a light recording: a counter that covers the window is exact; unseen bytes are untagged."""
    if counter is None or not counter.in_window:
        gap = Gap(
            kind=GapKind.MEMORY_PART,
            what="coverage of memory",
            rank=rank,
            reason="unknown: in light mode hooks see tensors but not memory allocated inside operators, and "
            "there is no allocator counter for the rest; the peak is a lower bound",
            remedy="record in full mode",
        )
        return PeakReconciliation(
            method=f"{_HOOKS}: a lower bound",
            upper_bound=False,
            lower_bound=True,
            unseen_bytes=0,
            gaps=(gap,),
        )
    unseen = max(0, counter.bytes - peak.bytes)
    return PeakReconciliation(
        method=f"{_HOOKS}; the peak is the allocator's own counter" if unseen else _HOOKS,
        upper_bound=peak.bytes > _compute_counter_limit(counter),
        lower_bound=False,
        unseen_bytes=unseen,
        gaps=_list_overestimate_gaps(rank, peak.bytes, counter),
    )


def _list_counter_gaps(rank: int, peak_bytes: int, counter: CounterPeak | None) -> tuple[Gap, ...]:
    if counter is None:
        return ()
    if _is_short(peak_bytes, counter):
        return (
            Gap(
                kind=GapKind.MEMORY_PART,
                what="part of the allocated peak",
                rank=rank,
                reason=f"the allocator's own counter reached {format_bytes(counter.bytes)} in the window, "
                f"{format_bytes(counter.bytes - peak_bytes)} more than recorded: the peak is a lower bound",
                remedy="record from the start of the program: zprof record -o RUN -- python ...",
            ),
        )
    return _list_overestimate_gaps(rank, peak_bytes, counter)


def _is_short(peak_bytes: int, counter: CounterPeak | None) -> bool:
    return counter is not None and counter.in_window and peak_bytes < counter.bytes * (1 - TOLERANCE)


def _list_overestimate_gaps(rank: int, peak_bytes: int, counter: CounterPeak) -> tuple[Gap, ...]:
    if peak_bytes <= _compute_counter_limit(counter):
        return ()
    return (
        Gap(
            kind=GapKind.MEMORY_PART,
            what="allocated peak",
            rank=rank,
            reason=f"the allocator's own counter never exceeded {format_bytes(counter.bytes)}, "
            f"{format_bytes(peak_bytes - counter.bytes)} less than recorded: the peak is an upper bound",
            remedy="use the counter as the total; some frees were not seen",
        ),
    )


def _compute_counter_limit(counter: CounterPeak) -> float:
    return counter.bytes * (1 + TOLERANCE)


def _list_open_end_gaps(rank: int, peak: TenantPeak) -> list[Gap]:
    if not peak.open_bytes:
        return []
    return [
        Gap(
            kind=GapKind.MEMORY_PART,
            what="end of some allocations",
            rank=rank,
            reason=f"{format_bytes(peak.open_bytes)} of the peak were allocated in "
            f"{', '.join(peak.open_operators[:3])} without a recorded free: the peak is an upper bound",
            remedy="none on a CPU; on a GPU the allocator reports every free",
        )
    ]


def _list_unowned_gaps(rank: int, peak: TenantPeak) -> list[Gap]:
    """Report untagged bytes of at least 1 % of the peak."""
    if peak.untagged_bytes < max(1, TOLERANCE * peak.bytes):
        return []
    return [
        Gap(
            kind=GapKind.MEMORY_PART,
            what=f"owner of {format_bytes(peak.untagged_bytes)} of the peak",
            rank=rank,
            reason="not owned by a recorded model, optimizer, autograd graph, collective or operator of the "
            "recorded steps, such as data sets and copies of weights allocated earlier",
            remedy="check the untagged entries among the largest allocations at the peak; pass all models "
            "and optimizers to the recorder",
        )
    ]
