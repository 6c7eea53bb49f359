"""Compute a rank's live bytes over time and their peak, and reconcile the peak with the allocator's counters.

A block is live in [begin, end): at its end time it is no longer counted, at its start time it is.

The peak counter only grows, unless the program resets it (``reset_peak_memory_stats``), which makes it
useless for the window. If it grew between the last sample before the window and the last sample in the
window, the process reached its peak in the window, and the counter is exact.
"""

from collections.abc import Collection, Mapping

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns
from zprof.analysis.memory.roles import (
    Blocks,
    Segments,
    join_storages,
    label_retained_activations,
    resolve_tenants,
)
from zprof.analysis.memory.tables import (
    FOREVER,
    TENANT_CODES,
    UNTAGGED,
    Int,
    Lives,
    Timeline,
    read_claims,
    read_lives,
    sum_by_device,
)
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.memory import AllocatorCounters
from zprof.model.tenants import UNTAGGED_NAME, Tenant

BUFFER_SUB = "buffer"
_COUNTERS = ("peak_allocated_bytes", "peak_reserved_bytes", "retries", "ooms")
#: Maximum relative difference between the analysis and the allocator's counter.
TOLERANCE = 0.01
LIGHT_MODE = "light"
NOT_SEEN_BY_HOOKS = "no hook saw it"
_FULL = "allocator events joined with storage roles"
_STORAGES = "tensor storages only; memory allocated inside operators is missing"
_HOOKS = "light mode: tensor storages seen by hooks"


class TenantPeak(Struct, frozen=True, kw_only=True):
    """Bytes by tenant at the maximum of live bytes in the window."""

    time_ns: int
    bytes: int
    tenants: Mapping[Tenant, int]
    untagged_bytes: int
    open_bytes: int
    open_operators: tuple[str, ...]


class RankLives(Struct, frozen=True, kw_only=True):
    """All blocks of one rank and device, with their owners over time.

    ``live_bytes[i]``: live bytes from ``times_ns[i]`` until the next time.
    """

    blocks: Blocks
    segments: Segments
    storages: Lives
    timeline: Timeline
    times_ns: Int
    live_bytes: Int
    has_allocator_events: bool

    def peak(self) -> TenantPeak:
        """Return the maximum of live bytes within the window."""
        blocks, window = self.blocks, self.timeline
        time_ns, size = find_peak(self.times_ns, self.live_bytes, window.begin_ns, window.end_ns)
        tenants, untagged = self.sum_tenants_at(time_ns)
        still_open = blocks.open & (blocks.begin_ns <= time_ns) & (blocks.end_ns > time_ns)
        return TenantPeak(
            time_ns=time_ns,
            bytes=size,
            tenants=tenants,
            untagged_bytes=untagged,
            open_bytes=int(blocks.bytes[still_open].sum()),
            open_operators=tuple(sorted({str(name) for name in blocks.operator[still_open]})),
        )

    def sum_tenants_at(self, time_ns: int) -> tuple[Mapping[Tenant, int], int]:
        """Return the bytes by tenant at a moment, and the untagged bytes."""
        bytes_by_code = sum_by_tenant(self.segments, time_ns)
        return {tenant: int(bytes_by_code[code]) for tenant, code in TENANT_CODES.items()}, int(
            bytes_by_code[UNTAGGED]
        )

    def find_tenant_peak(self, tenant: int, without_sub: str = "") -> int:
        """Return the maximum of one tenant's live bytes within the window, excluding one kind."""
        segments, window = self.segments, self.timeline
        rows = segments.tenant == tenant
        if without_sub:
            rows &= segments.sub != without_sub
        times_ns, live_bytes = compute_live_curve(
            segments.begin_ns[rows], segments.end_ns[rows], segments.bytes[rows]
        )
        return find_peak(times_ns, live_bytes, window.begin_ns, window.end_ns)[1]

    def find_tenant_peaks(self) -> Mapping[str, int]:
        """Return each tenant's bytes, and the untagged bytes, at their own maximum within the window."""
        codes = {**{tenant.value: code for tenant, code in TENANT_CODES.items()}, UNTAGGED_NAME: UNTAGGED}
        return {name: self.find_tenant_peak(code) for name, code in codes.items()}

    def states(self) -> Mapping[Tenant, int] | None:
        """Return parameters and optimizer state at the last step's end, gradients at its optimizer's start.

        A program may free its gradients before the step ends; they are complete when the optimizer starts.
        Module buffers are not model state and are left out. None if no step ended.
        """
        return {
            tenant: int(self.segments.bytes[self.find_state_rows(tenant, moment)].sum())
            for tenant, moment in self.find_state_moments().items()
        } or None

    def find_state_moments(self) -> Mapping[Tenant, int]:
        """Return the time at which each model state is complete; empty if no step ended."""
        if not self.timeline.step_ends:
            return {}
        end_ns = self.timeline.step_ends[-1]
        optimizer_ns = self.timeline.find_last_optimizer_ns()
        return {
            Tenant.PARAMETERS: end_ns,
            Tenant.GRADIENTS: end_ns if optimizer_ns is None else optimizer_ns,
            Tenant.OPTIMIZER_STATE: end_ns,
        }

    def find_state_rows(self, tenant: Tenant, time_ns: int, *, buffers: bool = False) -> Int:
        """Return a tenant's live segments at a moment, either without module buffers or only module
        buffers.
        """
        rows = find_live_segments(self.segments, time_ns)
        buffer = self.segments.sub[rows] == BUFFER_SUB
        return rows[(self.segments.tenant[rows] == TENANT_CODES[tenant]) & (buffer == buffers)]


def list_devices(alloc: Columns) -> list[str]:
    """List the devices with allocations: accelerators first, then by total bytes, largest first."""
    totals = sum_by_device(alloc, "bytes")
    return sorted(totals, key=lambda device: (device == "cpu", -totals[device], device))


def read_rank_lives(alloc: Columns, role: Columns, timeline: Timeline, device: str) -> RankLives:
    """Read one rank's blocks on one device, with their tenants."""
    storages = read_lives(alloc, "storage", device)
    allocations = read_lives(alloc, "profiler", device)
    # Join the allocator's blocks with the storages, then assign each block a tenant over time.
    claims = read_claims(role)
    blocks = join_storages(storages, allocations, timeline.begin_ns)
    claimed = blocks.owner[np.isin(storages.generation, claims.generation)]
    blocks = label_retained_activations(blocks, claimed, timeline.phases)
    times_ns, live_bytes = compute_live_curve(blocks.begin_ns, blocks.end_ns, blocks.bytes)
    return RankLives(
        blocks=blocks,
        segments=resolve_tenants(blocks, claims, storages.generation),
        storages=storages,
        timeline=timeline,
        times_ns=times_ns,
        live_bytes=live_bytes,
        has_allocator_events=len(allocations) > 0,
    )


def compute_live_curve(begin_ns: Int, end_ns: Int, size_bytes: Int) -> tuple[Int, Int]:
    """Return the event times, and the live bytes from each time until the next."""
    freed = end_ns != FOREVER
    time_ns = np.concatenate([begin_ns, end_ns[freed]])
    change = np.concatenate([size_bytes, -size_bytes[freed]])
    # One sort of two nearly sorted halves: np.unique with its inverse takes three times as long.
    order = np.argsort(time_ns, kind="stable")
    times, live = time_ns[order], np.cumsum(change[order], dtype=np.int64)
    is_last = np.append(times[1:] != times[:-1], True)[: len(times)]
    return times[is_last].astype(np.int64), live[is_last]


def find_peak(times: Int, live: Int, begin_ns: int, end_ns: int) -> tuple[int, int]:
    """Return (time, bytes) of the first maximum in a window, including the bytes live at its start."""
    first = int(np.searchsorted(times, begin_ns, side="right"))
    last = int(np.searchsorted(times, end_ns, side="right"))
    best_ns, best = begin_ns, int(live[first - 1]) if first else 0
    if last > first:
        index = first + int(np.argmax(live[first:last]))
        if int(live[index]) > best:
            best_ns, best = int(times[index]), int(live[index])
    return best_ns, best


def sum_by_tenant(segments: Segments, time_ns: int) -> Int:
    """Return the bytes by tenant code at a moment; the last entry is untagged."""
    is_live = (segments.begin_ns <= time_ns) & (segments.end_ns > time_ns)
    bytes_by_code = np.zeros(UNTAGGED + 1, dtype=np.int64)
    np.add.at(bytes_by_code, segments.tenant[is_live], segments.bytes[is_live])
    return bytes_by_code


def find_live_segments(segments: Segments, time_ns: int) -> Int:
    """Return the rows of the segments that are live at a moment."""
    return np.flatnonzero((segments.begin_ns <= time_ns) & (segments.end_ns > time_ns)).astype(np.int64)


class CounterPeak(Struct, frozen=True, kw_only=True):
    """The allocator's peak counter; ``in_window``: the peak was reached within the memory window."""

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
    """Return the allocator's own peak at the window's end; None if it was not sampled or was reset."""
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
    """Return the last value minus the first value.

    None if the counter was reset in between, or if the only sample is not 0: it may predate the recording.
    """
    known = rows.ints(name)[rows.known(name)]
    if not len(known) or _is_reset(known) or (len(known) == 1 and int(known[0]) != 0):
        return None
    return int(known[-1]) - int(known[0])


class PeakReconciliation(Struct, frozen=True, kw_only=True):
    """Bounds and gaps of a peak; ``unseen_bytes``: bytes counted by the allocator but seen by no hook."""

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
    gaps = []
    if peak.open_bytes:
        operators = peak.open_operators[:3]
        gaps.append(make_gap("frees_not_recorded", rank=rank, size=peak.open_bytes, operators=operators))
    if not has_events:
        gaps.append(make_gap("allocator_events_missing", rank=rank))
    gaps += _list_counter_gaps(rank, peak.bytes, counter)
    if peak.untagged_bytes >= max(1, TOLERANCE * peak.bytes):
        gaps.append(make_gap("owner_unknown", rank=rank, size=peak.untagged_bytes))
    return PeakReconciliation(
        method=_FULL if has_events else _STORAGES,
        upper_bound=peak.open_bytes > 0
        or (counter is not None and peak.bytes > _compute_counter_limit(counter)),
        lower_bound=not has_events or _is_short(peak.bytes, counter),
        unseen_bytes=0,
        gaps=tuple(gaps),
    )


def _reconcile_light(rank: int, peak: TenantPeak, counter: CounterPeak | None) -> PeakReconciliation:
    """Reconcile a light recording: a counter that covers the window is exact; unseen bytes are untagged."""
    if counter is None or not counter.in_window:
        return PeakReconciliation(
            method=f"{_HOOKS}: a lower bound",
            upper_bound=False,
            lower_bound=True,
            unseen_bytes=0,
            gaps=(make_gap("light_mode_without_counter", rank=rank),),
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
        missing = counter.bytes - peak_bytes
        return (make_gap("peak_below_counter", rank=rank, counter=counter.bytes, missing=missing),)
    return _list_overestimate_gaps(rank, peak_bytes, counter)


def _is_short(peak_bytes: int, counter: CounterPeak | None) -> bool:
    return counter is not None and counter.in_window and peak_bytes < counter.bytes * (1 - TOLERANCE)


def _list_overestimate_gaps(rank: int, peak_bytes: int, counter: CounterPeak) -> tuple[Gap, ...]:
    if peak_bytes <= _compute_counter_limit(counter):
        return ()
    excess = peak_bytes - counter.bytes
    return (make_gap("peak_above_counter", rank=rank, counter=counter.bytes, excess=excess),)


def _compute_counter_limit(counter: CounterPeak) -> float:
    return counter.bytes * (1 + TOLERANCE)
