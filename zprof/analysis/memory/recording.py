"""Analyse the memory of one rank from a live recording: its own device, the host, and the init window.

The device is described at its allocated and reserved peaks, from allocator history or counters, and NVML.
Without a history, the counters at step boundaries are used: requested, allocated - requested, active -
allocated, inactive split, reserved - active - split (``torch.cuda.memory_stats``). A boundary counts as the
reserved peak only if reserved memory was at its all-time maximum.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Columns
from zprof.analysis.memory.breakdown import (
    find_largest_allocations,
    find_module_peaks,
    find_phase_peaks,
    list_parts,
    split_by_basis,
    thin_recording,
)
from zprof.analysis.memory.device_terms import (
    ALLOCATED_PEAK,
    RESERVED_PEAK,
    DeviceMoment,
    OutsideTerms,
    add_outside_terms,
    compute_outside_terms,
    make_device_memory,
)
from zprof.analysis.memory.history import (
    HeldBlocks,
    History,
    find_live_blocks,
    find_peak_near,
    find_reserved_peak,
    read_history,
)
from zprof.analysis.memory.live_bytes import (
    NOT_SEEN_BY_HOOKS,
    CounterPeak,
    PeakReconciliation,
    RankLives,
    TenantPeak,
    find_live_segments,
    list_devices,
    read_counter_peak,
    read_counters,
    read_rank_lives,
    reconcile_peak,
)
from zprof.analysis.memory.state_checks import RankMemoryResult, measure_states
from zprof.analysis.memory.tables import (
    INIT,
    TENANT_CODES,
    UNTAGGED,
    Int,
    Timeline,
    read_checked_table,
    read_stacks,
    read_timeline,
)
from zprof.analysis.zero_formulas import compute_state_formula
from zprof.model.endings import OutOfMemory
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.memory import Basis, DeviceMemory, MemoryPart, RankMemory
from zprof.model.tenants import BACKEND_SCRATCH, UNTAGGED_NAME, Tenant
from zprof.model.training import Phase
from zprof.run.reader import Run

_HOST, _META = "cpu", "meta"
#: Maximum number of accelerators analysed per process, by total bytes.
_MAX_DEVICES = 16
_REQUEST = "oom_request"
OUT_OF_MEMORY = "oom"
#: Tables of the windows other than the memory window in which an allocation may have failed.
_OTHER_WINDOWS = ((INIT, "init_alloc", "init_role"), (OUT_OF_MEMORY, "oom_alloc", "oom_role"))
_STEP_PHASES = frozenset(phase.value for phase in Phase if phase is not Phase.OTHER)
_COUNTERS = ["requested_bytes", "allocated_bytes", "active_bytes", "split_bytes", "reserved_bytes"]
#: Live bytes of the history and of the recording may differ by this share: clocks differ by microseconds.
_TOLERANCE = 0.01


class _Device(Struct, frozen=True, kw_only=True):
    """One device of a rank in one window."""

    name: str
    lives: RankLives
    peak: TenantPeak


def analyse_recorded_rank(run: Run, rank: int) -> RankMemoryResult:
    """Return all leaves of one rank.

    Raises:
        BadInput: a table is damaged.
    """
    early = _find_failures_outside(run, rank)
    missing = [name for name in ("alloc", "role", "mark") if not run.has_table(rank, name)]
    if missing:
        gap = make_gap("memory_table_missing", rank=rank, table=missing[0])
        return RankMemoryResult(gaps=(gap,), out_of_memory=early)
    mark, alloc = (
        read_checked_table(run, rank, "mark"),
        _select_allocator_rows(read_checked_table(run, rank, "alloc")),
    )
    timeline = read_timeline(mark)
    if timeline is None or not len(alloc):
        gap = make_gap("memory_window_missing", rank=rank)
        return RankMemoryResult(gaps=(gap,), out_of_memory=early)
    devices = _read_devices(alloc, read_checked_table(run, rank, "role"), timeline)
    own, host, others = _choose_own_device(devices)
    samples = read_checked_table(run, rank, "samples") if run.has_table(rank, "samples") else None
    counter = None if samples is None else read_counter_peak(samples, own.name, timeline)
    reconciliation, host_reconciliations = (
        _reconcile(run, rank, own, counter),
        [_reconcile(run, rank, device, None) for device in host],
    )
    gaps = [gap for known in (reconciliation, *host_reconciliations) for gap in known.gaps] + [
        make_gap("recorded_device_hidden", rank=rank, shown=own.name, other=other.name, peak=other.peak.bytes)
        for other in others
    ]
    device_memory = analyse_recorded_device(
        run, rank, own.name, own.peak.time_ns, make_owners_lookup(own.lives)
    )
    memory = replace(
        _make_rank_memory(run, rank, own, reconciliation),
        reserved_unused_bytes=_compute_unused_reserved_bytes(
            device_memory.reserved_unused_bytes, reconciliation
        ),
        non_pytorch_bytes=device_memory.non_pytorch_bytes,
    )
    stacks = partial(read_stacks, run, rank, alloc)
    failures = _find_failures(rank, mark, timeline, devices)
    top_ns = own.peak.time_ns
    if failures and failures[-1].device == own.name:
        top_ns = failures[-1].time_ns + timeline.begin_ns
    return RankMemoryResult(
        per_rank=(memory,),
        top=find_largest_allocations(rank, own.lives, top_ns, stacks),
        phases=find_phase_peaks(rank, own.lives),
        modules=find_module_peaks(rank, own.lives, own.peak.time_ns),
        states=measure_states(rank, own.lives),
        devices=device_memory.devices,
        counters=() if samples is None else read_counters(rank, samples, _list_recorded_steps(run, rank)),
        host=tuple(
            _make_rank_memory(run, rank, d, t) for d, t in zip(host, host_reconciliations, strict=True)
        ),
        init=_analyse_init_window(run, rank, mark),
        out_of_memory=(*early, *failures),
        timelines=(thin_recording(rank, own.name, own.lives),),
        gaps=tuple(dict.fromkeys([*gaps, *device_memory.gaps])),
    )


def _list_recorded_steps(run: Run, rank: int) -> list[int]:
    """Return the steps of the rank's windows; its counters were also sampled in all other steps."""
    manifest = run.rank_manifests[rank]
    return [*manifest.memory_steps, *manifest.time_steps]


def _select_allocator_rows(alloc: Columns) -> Columns:
    """Return the rows for memory from a torch allocator; tensors on ``meta`` have no memory."""
    is_allocated = alloc.texts("source").equals("storage", "profiler") & (alloc.ints("bytes") > 0)
    return alloc.at(is_allocated & ~alloc.texts("device").equals(_META))


def _read_devices(alloc: Columns, role: Columns, timeline: Timeline) -> list[_Device]:
    names = list_devices(alloc)
    shown = [name for name in names if name != _HOST][:_MAX_DEVICES]
    shown += [_HOST] if _HOST in names else []
    lives = {name: read_rank_lives(alloc, role, timeline, name) for name in shown}
    return [
        _Device(name=name, lives=device_lives, peak=device_lives.peak())
        for name, device_lives in lives.items()
    ]


def _choose_own_device(devices: list[_Device]) -> tuple[_Device, list[_Device], list[_Device]]:
    """Return the rank's own device (the accelerator with the largest peak, else the host), host, others."""
    accelerators = [device for device in devices if device.name != _HOST]
    own = max(accelerators or devices, key=lambda device: device.peak.bytes)
    host = [device for device in devices if device.name == _HOST and device is not own]
    return own, host, [device for device in accelerators if device is not own]


def _reconcile(run: Run, rank: int, device: _Device, counter: CounterPeak | None) -> PeakReconciliation:
    mode = run.rank_manifests[rank].memory_mode
    return reconcile_peak(rank, device.peak, mode, device.lives.has_allocator_events, counter)


def _make_rank_memory(run: Run, rank: int, device: _Device, reconciliation: PeakReconciliation) -> RankMemory:
    peak, timeline = device.peak, device.lives.timeline
    unseen = MemoryPart(
        tenant=UNTAGGED_NAME, sub=NOT_SEEN_BY_HOOKS, bytes=reconciliation.unseen_bytes, basis=Basis.UNKNOWN
    )
    size, untagged = (
        peak.bytes + reconciliation.unseen_bytes,
        peak.untagged_bytes + reconciliation.unseen_bytes,
    )
    tenant_peaks = device.lives.find_tenant_peaks()
    return RankMemory(
        rank=rank,
        device=device.name,
        peak_bytes=size,
        peak_step=timeline.step_at(peak.time_ns),
        peak_phase=timeline.phase_at(peak.time_ns),
        tenants=peak.tenants,
        untagged_bytes=untagged,
        reserved_unused_bytes=None,
        non_pytorch_bytes=None,
        formula=compute_state_formula(run.manifest.training),
        state_bytes=device.lives.states(),
        upper_bound=reconciliation.upper_bound,
        lower_bound=reconciliation.lower_bound,
        method=reconciliation.method,
        parts=(*list_parts(device.lives, peak.time_ns), *([unseen] if reconciliation.unseen_bytes else [])),
        basis_bytes=split_by_basis(size, untagged),
        tenant_peaks={
            **tenant_peaks,
            UNTAGGED_NAME: tenant_peaks[UNTAGGED_NAME] + reconciliation.unseen_bytes,
        },
        program_buffers_peak_bytes=device.lives.find_tenant_peak(
            TENANT_CODES[Tenant.COMMUNICATION_BUFFERS], without_sub=BACKEND_SCRATCH
        ),
    )


def _compute_unused_reserved_bytes(
    reserved_unused_bytes: int | None, reconciliation: PeakReconciliation
) -> int | None:
    """Return the bytes that are reserved but not live, without those unseen by hooks."""
    if reserved_unused_bytes is None or reconciliation.lower_bound:
        return None
    unused = reserved_unused_bytes - reconciliation.unseen_bytes
    return unused if unused >= 0 else None


def _analyse_init_window(run: Run, rank: int, mark: Columns) -> tuple[RankMemory, ...]:
    """Return the peak from the start of the program to its first step; empty if it was not recorded."""
    timeline = read_timeline(mark, INIT)
    if timeline is None or not all(run.has_table(rank, name) for name in ("init_alloc", "init_role")):
        return ()
    alloc = _select_allocator_rows(read_checked_table(run, rank, "init_alloc"))
    if not len(alloc):
        return ()
    own, _, _ = _choose_own_device(_read_devices(alloc, read_checked_table(run, rank, "init_role"), timeline))
    return (_make_rank_memory(run, rank, own, _reconcile(run, rank, own, None)),)


def _find_failures_outside(run: Run, rank: int) -> tuple[OutOfMemory, ...]:
    """Return the allocations that failed before the first step, or between the windows."""
    if not run.has_table(rank, "mark"):
        return ()
    mark = read_checked_table(run, rank, "mark")
    if not mark.texts("kind").equals(_REQUEST).any():
        return ()
    found: list[OutOfMemory] = []
    for window, alloc_name, role_name in _OTHER_WINDOWS:
        timeline = read_timeline(mark, window)
        if timeline is None or not all(run.has_table(rank, name) for name in (alloc_name, role_name)):
            continue
        alloc = _select_allocator_rows(read_checked_table(run, rank, alloc_name))
        devices = _read_devices(alloc, read_checked_table(run, rank, role_name), timeline)
        found += _find_failures(rank, mark, timeline, devices)
    return tuple(found)


def _find_failures(
    rank: int, mark: Columns, timeline: Timeline, devices: Sequence[_Device]
) -> tuple[OutOfMemory, ...]:
    """Return the allocations that failed in a window, with the owners of what was live at that moment."""
    lives = {device.name: device.lives for device in devices}
    requests = mark.at(mark.texts("kind").equals(_REQUEST))
    rows = zip(
        requests.ints("time_ns").tolist(),
        requests.texts("name"),
        requests.ints("number").tolist(),
        strict=True,
    )
    return tuple(
        _describe_failure(rank, name, time_ns, number, lives[name], timeline, mark)
        for time_ns, name, number in rows
        if timeline.begin_ns <= time_ns <= timeline.end_ns and name in lives
    )


def _describe_failure(
    rank: int,
    device: str,
    time_ns: int,
    requested_bytes: int,
    lives: RankLives,
    timeline: Timeline,
    mark: Columns,
) -> OutOfMemory:
    tenants, untagged_bytes = lives.sum_tenants_at(time_ns)
    live_bytes = sum(tenants.values()) + untagged_bytes
    phase = timeline.phase_at(time_ns)
    return OutOfMemory(
        rank=rank,
        device=device,
        time_ns=time_ns - timeline.begin_ns,
        requested_bytes=requested_bytes,
        driver_bytes=requested_bytes,
        device_free_bytes=None,
        live_bytes=live_bytes,
        allocated_bytes=live_bytes,
        awaiting_free_bytes=0,
        reserved_bytes=None,
        split_bytes=None,
        free_segments_bytes=None,
        private_pools_bytes=None,
        largest_free_bytes=None,
        tenants=tenants,
        untagged_bytes=untagged_bytes,
        would_fit_defragmented=None,
        short_bytes=None,
        step=_find_step(mark, time_ns),
        phase=phase if phase in _STEP_PHASES else "",
    )


def _find_step(mark: Columns, time_ns: int) -> int | None:
    """Return the step that was running; None if no step had started, or all recorded ones had ended."""
    before = mark.at(mark.texts("kind").equals("step_begin", "step_end") & (mark.ints("time_ns") <= time_ns))
    if not len(before):
        return None
    last = before.sort_by("time_ns").at(np.array([len(before) - 1]))
    return int(last.ints("number")[0]) if last.texts("kind")[0] == "step_begin" else None


def find_reserved_peak_row(samples: Columns, device: str) -> dict[str, int] | None:
    """Return time and counters of the step boundary with reserved memory at its all-time peak.

    Ties go to the most live bytes, then to the first.
    """
    is_counted = samples.texts("device").equals(device)
    for name in (*_COUNTERS, "peak_reserved_bytes"):
        is_counted = is_counted & samples.known(name)
    rows = samples.at(is_counted)
    rows = rows.at(rows.ints("reserved_bytes") == rows.ints("peak_reserved_bytes").max(initial=-1))
    if not len(rows):
        return None
    highest = int(np.argmax(rows.ints("requested_bytes")))
    return {name: int(rows.ints(name)[highest]) for name in ("time_ns", *_COUNTERS)}


def make_device_memory_from_counters(
    rank: int, device: str, row: Mapping[str, int], tenants: dict[Tenant, int], outside: OutsideTerms
) -> DeviceMemory | None:
    """Return the device's terms at that boundary; None if its counters contradict each other."""
    live, allocated, active, split, reserved = (row[column] for column in _COUNTERS)
    rounding, awaiting, free = allocated - live, active - allocated, reserved - active - split
    if min(live, rounding, awaiting, split, free) < 0:
        return None
    leaf = DeviceMemory(
        rank=rank,
        device=device,
        moment=RESERVED_PEAK,
        live_bytes=live,
        tenants=tenants,
        rounding_bytes=rounding,
        awaiting_free_bytes=awaiting,
        split_bytes=split,
        free_segments_bytes=free,
        reserved_bytes=reserved,
    )
    return add_outside_terms(leaf, outside)


def find_reserved_bytes_between(samples: Columns, device: str, time_ns: int) -> int | None:
    """Return the reserved bytes at a moment between two boundaries that agree; else None.

    Boundaries agree if both have the same value, no allocation was retried between them (a retry frees cached
    memory), and the value was never higher.
    """
    rows = samples.at(samples.texts("device").equals(device) & samples.known("reserved_bytes"))
    rows = rows.sort_by("time_ns")
    before, after = (
        np.flatnonzero(rows.ints("time_ns") <= time_ns),
        np.flatnonzero(rows.ints("time_ns") >= time_ns),
    )
    if not len(before) or not len(after):
        return None
    reserved, peak, retries = (
        rows[name].tolist() for name in ("reserved_bytes", "peak_reserved_bytes", "retries")
    )
    left, right = before[-1], after[0]
    was_retried = retries[left] is None or retries[left] != retries[right]
    is_same = reserved[left] == reserved[right] == peak[right]
    return reserved[right] if is_same and not was_retried else None


class LiveOwners(Struct, frozen=True, kw_only=True):
    """Live memory at an instant: address, bytes and tenant (a position in PRECEDENCE, or UNTAGGED)."""

    address: Int
    bytes: Int
    tenant: Int


#: Returns the live memory at an instant.
OwnersAt = Callable[[int], LiveOwners]


def make_owners_lookup(lives: RankLives) -> OwnersAt:
    """Return a function that looks up the owners found by hooks."""

    def look_up(time_ns: int) -> LiveOwners:
        rows = find_live_segments(lives.segments, time_ns)
        return LiveOwners(
            address=lives.blocks.address[lives.segments.block[rows]],
            bytes=lives.segments.bytes[rows],
            tenant=lives.segments.tenant[rows],
        )

    return look_up


def match_tenants(blocks: HeldBlocks, rows: Int, owners: LiveOwners) -> Int:
    """Return the tenant of each live block of a history by its address; UNTAGGED if unknown."""
    order = np.argsort(owners.address, kind="stable")
    known = owners.address[order]
    tenants = np.full(len(rows), UNTAGGED, dtype=np.int64)
    if len(known):
        position = np.minimum(np.searchsorted(known, blocks.address[rows]), len(known) - 1)
        is_match = known[position] == blocks.address[rows]
        tenants[is_match] = owners.tenant[order][position[is_match]]
    return tenants


class RecordedDevice(Struct, frozen=True, kw_only=True):
    """Device of a rank at its peaks.

    ``reserved_unused_bytes``: reserved at the allocated peak but not live in the recording.
    ``non_pytorch_bytes``: memory of the process outside its allocator.
    """

    devices: tuple[DeviceMemory, ...] = ()
    reserved_unused_bytes: int | None = None
    non_pytorch_bytes: int | None = None
    gaps: tuple[Gap, ...] = ()


def analyse_recorded_device(
    run: Run, rank: int, device: str, peak_time_ns: int, tenants: OwnersAt
) -> RecordedDevice:
    """Return the leaves of one device of a rank; empty for the host, which reserves no memory.

    Args:
        run: The recording.
        rank: One of its ranks.
        device: Its name in the tables, such as ``cuda:0``.
        peak_time_ns: Time of the recording's maximum of live bytes.
        tenants: Returns the live memory of the recording at an instant, see :func:`make_owners_lookup`.

    Raises:
        BadInput: a table is damaged.
    """
    if device == _HOST:
        return RecordedDevice()
    nvml, peak = _read_optional_table(run, rank, "device"), tenants(peak_time_ns)
    outside = compute_outside_terms(nvml, rank, device, peak_time_ns)
    block, segment = _read_optional_table(run, rank, "block"), _read_optional_table(run, rank, "segment")
    history = None if block is None or segment is None else read_history(block, segment, device)
    if history is not None and history.begin_ns <= peak_time_ns:
        leaves, gaps = _describe_from_history(history, rank, peak_time_ns, tenants, nvml)
        reserved = leaves[0].reserved_bytes
    else:
        leaves, reserved, gaps = _describe_from_counters(run, rank, device, peak_time_ns, tenants, outside)
    unused = None if reserved is None else reserved - int(peak.bytes.sum())
    if unused is not None and unused < 0:
        gaps.append(make_gap("live_above_reserved", rank=rank, device=device, size=-unused))
        unused = None
    return RecordedDevice(
        devices=tuple(leaves),
        reserved_unused_bytes=unused,
        non_pytorch_bytes=outside.non_allocator_bytes,
        gaps=tuple(dict.fromkeys([*outside.gaps, *gaps])),
    )


def sum_by_tenant_code(tenant: Int, sizes: Int) -> dict[Tenant, int]:
    """Return the bytes of each tenant, without untagged bytes."""
    return {owner: int(sizes[tenant == code].sum()) for owner, code in TENANT_CODES.items()}


def _describe_from_history(
    history: History, rank: int, peak_time_ns: int, tenants: OwnersAt, nvml: Columns | None
) -> tuple[list[DeviceMemory], list[Gap]]:
    moments = [(ALLOCATED_PEAK, find_peak_near(history, peak_time_ns))]
    reserved_peak_ns = find_reserved_peak(history, history.begin_ns, history.end_ns)
    if reserved_peak_ns is not None:
        moments.append((RESERVED_PEAK, reserved_peak_ns))
    leaves, gaps = [], []
    for name, time_ns in moments:
        moment = DeviceMoment(rank=rank, device=history.device, name=name, time_ns=time_ns)
        outside, owners = compute_outside_terms(nvml, rank, history.device, time_ns), tenants(time_ns)
        rows = find_live_blocks(history.blocks, time_ns)
        held_bytes = sum_by_tenant_code(
            match_tenants(history.blocks, rows, owners), history.blocks.requested_bytes[rows]
        )
        leaf, new_gaps = make_device_memory(moment, history, held_bytes, outside)
        leaves.append(leaf)
        gaps += [*new_gaps, *_check_agreement(moment, leaf, owners)]
    return leaves, gaps


def _check_agreement(moment: DeviceMoment, leaf: DeviceMemory, owners: LiveOwners) -> list[Gap]:
    """Report live bytes that differ between recording (whole blocks) and history (with rounding)."""
    blocks, recorded = leaf.live_bytes + (leaf.rounding_bytes or 0), int(owners.bytes.sum())
    if abs(blocks - recorded) <= _TOLERANCE * max(blocks, recorded):
        return []
    return [
        make_gap(
            "history_disagrees",
            rank=moment.rank,
            device=moment.device,
            moment=moment.name,
            size=abs(blocks - recorded),
        )
    ]


def _describe_from_counters(
    run: Run, rank: int, device: str, peak_time_ns: int, tenants: OwnersAt, outside: OutsideTerms
) -> tuple[list[DeviceMemory], int | None, list[Gap]]:
    samples, owners = _read_optional_table(run, rank, "samples"), tenants(peak_time_ns)
    gaps = [make_gap("history_not_recorded", rank=rank, device=device)]
    reserved = None if samples is None else find_reserved_bytes_between(samples, device, peak_time_ns)
    row = None if samples is None else find_reserved_peak_row(samples, device)
    # only live bytes are known: whole blocks, including rounding
    leaf = DeviceMemory(
        rank=rank,
        device=device,
        moment=ALLOCATED_PEAK,
        live_bytes=int(owners.bytes.sum()),
        tenants=sum_by_tenant_code(owners.tenant, owners.bytes),
        reserved_bytes=reserved,
    )
    leaf = add_outside_terms(leaf, outside)
    if row is None:
        return [leaf], reserved, gaps
    time_ns = row["time_ns"]
    peak_owners, nvml = tenants(time_ns), _read_optional_table(run, rank, "device")
    reserved_peak = make_device_memory_from_counters(
        rank,
        device,
        row,
        sum_by_tenant_code(peak_owners.tenant, peak_owners.bytes),
        compute_outside_terms(nvml, rank, device, time_ns),
    )
    if reserved_peak is None:
        gaps.append(make_gap("counters_disagree", rank=rank, device=device))
    return [leaf, *([] if reserved_peak is None else [reserved_peak])], reserved, gaps


def _read_optional_table(run: Run, rank: int, name: str) -> Columns | None:
    return read_checked_table(run, rank, name) if run.has_table(rank, name) else None
