"""Analyse the memory of one rank from a live recording: its own device, the host, and the init window."""

from collections.abc import Sequence
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
)
from zprof.analysis.memory.live_bytes import RankLives, TenantPeak, list_devices, read_rank_lives
from zprof.analysis.memory.peak_reconciliation import (
    NOT_SEEN_BY_HOOKS,
    CounterPeak,
    PeakReconciliation,
    read_counter_peak,
    read_counters,
    reconcile_peak,
)
from zprof.analysis.memory.rank_result import RankMemoryResult, make_unknown_result
from zprof.analysis.memory.recorded_device import analyse_recorded_device, make_owners_lookup
from zprof.analysis.memory.state_checks import measure_states
from zprof.analysis.memory.steps_and_phases import INIT, Timeline, read_timeline
from zprof.analysis.memory.tables import TENANT_CODES, read_checked_table, read_stacks
from zprof.analysis.memory.thinning import thin_recording
from zprof.analysis.zero_formulas import compute_state_formula
from zprof.model.endings import OutOfMemory
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import Basis, MemoryPart, RankMemory
from zprof.model.tenants import BACKEND_SCRATCH, UNTAGGED_NAME, Tenant
from zprof.model.training import Phase
from zprof.run.reader import Run

RECORD_MEMORY = "record again with a memory window: zprof.steps(memory=2)"
_HOST, _META = "cpu", "meta"
#: Maximum number of accelerators analysed per process, by total bytes.
_MAX_DEVICES = 16
_REQUEST = "oom_request"
OUT_OF_MEMORY = "oom"
#: Tables of the windows other than the memory window in which an allocation may have failed.
_OTHER_WINDOWS = ((INIT, "init_alloc", "init_role"), (OUT_OF_MEMORY, "oom_alloc", "oom_role"))
_STEP_PHASES = frozenset(phase.value for phase in Phase if phase is not Phase.OTHER)


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
        unknown = make_unknown_result(rank, f"no table {missing[0]!r} was recorded", RECORD_MEMORY)
        return replace(unknown, out_of_memory=early)
    mark, alloc = (
        read_checked_table(run, rank, "mark"),
        _select_allocator_rows(read_checked_table(run, rank, "alloc")),
    )
    timeline = read_timeline(mark)
    if timeline is None or not len(alloc):
        unknown = make_unknown_result(rank, "no memory window was recorded", RECORD_MEMORY)
        return replace(unknown, out_of_memory=early)
    devices = _read_devices(alloc, read_checked_table(run, rank, "role"), timeline)
    own, host, others = _choose_own_device(devices)
    samples = read_checked_table(run, rank, "samples") if run.has_table(rank, "samples") else None
    counter = None if samples is None else read_counter_peak(samples, own.name, timeline)
    reconciliation, host_reconciliations = (
        _reconcile(run, rank, own, counter),
        [_reconcile(run, rank, device, None) for device in host],
    )
    gaps = [gap for known in (reconciliation, *host_reconciliations) for gap in known.gaps] + [
        _make_hidden_device_gap(rank, own, o) for o in others
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


def _make_hidden_device_gap(rank: int, own: _Device, other: _Device) -> Gap:
    return Gap(
        kind=GapKind.DEVICE_MEMORY,
        what=f"memory of {other.name}",
        rank=rank,
        reason="this process uses several devices; the report shows the one with the largest peak, "
        f"{own.name}; the peak of {other.name} is {format_bytes(other.peak.bytes)}",
        remedy='run one process per device, or read the raw table: run.frame(rank, "alloc")',
    )
