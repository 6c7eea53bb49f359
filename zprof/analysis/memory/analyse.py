"""Analyse every rank's memory, combine the results, and compare ranks or runs by allocation site.

In a live recording, a rank has its own device, the host, and the window from program start to the first step.

Allocation sites are matched by file name, line, function and operator; if code moved, by order in the
function.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter

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
from zprof.analysis.memory.live_bytes import (
    NOT_SEEN_BY_HOOKS,
    CounterPeak,
    PeakReconciliation,
    RankLives,
    TenantPeak,
    list_devices,
    read_counter_peak,
    read_counters,
    read_rank_lives,
    reconcile_peak,
)
from zprof.analysis.memory.state_checks import (
    RankMemoryResult,
    check_formulas,
    find_formula_gaps,
    measure_states,
)
from zprof.analysis.memory.tables import (
    INIT,
    TENANT_CODES,
    Timeline,
    read_checked_table,
    read_stacks,
    read_timeline,
)
from zprof.analysis.zero_formulas import compute_state_formula
from zprof.model.endings import OutOfMemory
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.memory import (
    Allocation,
    Basis,
    DeviceMemory,
    GroupChange,
    Memory,
    MemoryPart,
    RankMemory,
    RankSpread,
)
from zprof.model.tenants import BACKEND_SCRATCH, DISPLAY_ORDER, UNTAGGED_NAME, Tenant
from zprof.model.training import Phase, TrainingFacts
from zprof.run.reader import Run

#: Maximum number of ranks whose timelines a report shows; the largest and the smallest peak are included.
_MAX_TIMELINES = 8
#: Owner, group kind, file name and function, line, operator.
_Key = tuple[str, str, str, str, int, str]
_MERGED, _BEFORE, _PLACE = "merged", "before", "place"
_HOST, _META = "cpu", "meta"
#: Maximum number of accelerators analysed per process, by total bytes.
_MAX_DEVICES = 16
_REQUEST = "oom_request"
OUT_OF_MEMORY = "oom"
#: Tables of other windows than the memory window in which an allocation may have failed.
_OTHER_WINDOWS = ((INIT, "init_alloc", "init_role"), (OUT_OF_MEMORY, "oom_alloc", "oom_role"))
_STEP_PHASES = frozenset(phase.value for phase in Phase if phase is not Phase.OTHER)


class MemoryAnalysis(Struct, frozen=True, kw_only=True):
    """Memory results of all ranks, with gaps."""

    memory: Memory
    gaps: tuple[Gap, ...]


def analyse_memory(run: Run) -> MemoryAnalysis:
    """Analyse every rank that can be loaded.

    Raises:
        BadInput: a table is damaged.
    """
    if run.manifest.source == "trace" and not any(run.has_table(rank, "alloc") for rank in run.ranks):
        return MemoryAnalysis(memory=Memory(), gaps=(make_gap("memory_not_in_traces"),))
    return combine_ranks(run.manifest.training, [_analyse_rank(run, rank) for rank in run.ranks])


def _analyse_rank(run: Run, rank: int) -> RankMemoryResult:
    """Analyse one rank; a snapshot has an allocator history but no rows from hooks."""
    if run.has_table(rank, "block") and not run.has_table(rank, "alloc"):
        from zprof.analysis.memory.snapshot import analyse_snapshot_rank

        return analyse_snapshot_rank(run, rank)
    return analyse_recorded_rank(run, rank)


def combine_ranks(facts: TrainingFacts, results: Sequence[RankMemoryResult]) -> MemoryAnalysis:
    """Combine the ranks' results: their leaves, the formula checks, and the spread between ranks."""
    ranks = tuple(memory for result in results for memory in result.per_rank)
    states = tuple(measured for result in results for measured in result.states)
    gaps = [*(gap for result in results for gap in result.gaps), *find_formula_gaps(facts, states)]
    if any(memory.device == "cpu" for memory in ranks):
        gaps.append(make_gap("no_device_memory_on_cpu"))
    # Keep the timelines of the largest ranks and the smallest rank, in rank order.
    timelines = [entry for result in results for entry in result.timelines]
    by_size = [memory.rank for memory in sorted(ranks, key=attrgetter("peak_bytes"), reverse=True)]
    if len(by_size) > _MAX_TIMELINES:
        by_size = [*by_size[: _MAX_TIMELINES - 1], by_size[-1]]
    formulas = check_formulas(facts, states)
    return MemoryAnalysis(
        memory=Memory(
            per_rank=ranks,
            top=tuple(entry for result in results for entry in result.top),
            phases=tuple(entry for result in results for entry in result.phases),
            modules=tuple(entry for result in results for entry in result.modules),
            spread=_add_groups(find_rank_spread(ranks), results),
            formulas=formulas,
            laws=formulas,
            devices=tuple(entry for result in results for entry in result.devices),
            counters=tuple(entry for result in results for entry in result.counters),
            host=tuple(entry for result in results for entry in result.host),
            init=tuple(entry for result in results for entry in result.init),
            windows=tuple(entry for result in results for entry in result.windows),
            stacks=tuple(entry for result in results for entry in result.stacks),
            growth=tuple(entry for result in results for entry in result.growth),
            out_of_memory=tuple(entry for result in results for entry in result.out_of_memory),
            timelines=tuple(timeline for timeline in timelines if timeline.rank in by_size),
        ),
        gaps=tuple(gaps),
    )


def find_rank_spread(ranks: Sequence[RankMemory]) -> RankSpread | None:
    """Return the difference between the largest and the smallest rank; None for fewer than two ranks.

    The deltas sum to the difference. Of ranks with equal peaks, the first is used.
    """
    if len(ranks) < 2:
        return None
    largest = max(ranks, key=lambda rank: (rank.peak_bytes, -rank.rank))
    smallest = min(
        (rank for rank in ranks if rank is not largest), key=lambda rank: (rank.peak_bytes, rank.rank)
    )
    high, low = _list_bytes_by_tenant(largest), _list_bytes_by_tenant(smallest)
    delta = {name: high[name] - low[name] for name in high}
    tenant = max(delta, key=lambda name: delta[name])
    return RankSpread(
        largest_rank=largest.rank,
        smallest_rank=smallest.rank,
        difference_bytes=largest.peak_bytes - smallest.peak_bytes,
        tenant=tenant if delta[tenant] > 0 else "",
        delta_bytes=delta,
    )


def _add_groups(spread: RankSpread | None, results: Sequence[RankMemoryResult]) -> RankSpread | None:
    """Add the allocation groups of both ranks if both are snapshots: only snapshots list all groups."""
    if spread is None or not spread.difference_bytes:
        return spread
    groups = {memory.rank: result.top for result in results if result.growth for memory in result.per_rank}
    if spread.largest_rank not in groups or spread.smallest_rank not in groups:
        return spread
    return replace(
        spread, groups=list_group_changes(groups[spread.smallest_rank], groups[spread.largest_rank])
    )


def _list_bytes_by_tenant(rank: RankMemory) -> Mapping[str, int]:
    bytes_by_name = {tenant.value: rank.tenants.get(tenant, 0) for tenant in DISPLAY_ORDER}
    return bytes_by_name | {UNTAGGED_NAME: rank.untagged_bytes}


class _Side(Struct):
    """Bytes, blocks and frame of one allocation site in one snapshot."""

    where: str
    bytes: int = 0
    blocks: int = 0


def compare_groups(a: Memory, b: Memory) -> tuple[GroupChange, ...]:
    """Return the changes of all groups, largest absolute change first; empty unless both are snapshots."""
    ranks = _find_largest_rank(a), _find_largest_rank(b)
    if not all(rank and memory.is_history(rank.rank) for rank, memory in zip(ranks, (a, b), strict=True)):
        return ()
    sides = (
        [entry for entry in memory.top if rank and entry.rank == rank.rank]
        for rank, memory in zip(ranks, (a, b), strict=True)
    )
    return list_group_changes(*sides)


def find_group_phases(a: Memory, b: Memory) -> tuple[str, str]:
    """Return the phases of the two compared peaks; empty if unknown."""
    ranks = _find_largest_rank(a), _find_largest_rank(b)
    before, after = (rank.peak_phase if rank else "" for rank in ranks)
    return before, after


def _find_largest_rank(memory: Memory) -> RankMemory | None:
    return max(memory.per_rank, key=lambda entry: (entry.peak_bytes, -entry.rank), default=None)


def list_group_changes(a: Sequence[Allocation], b: Sequence[Allocation]) -> tuple[GroupChange, ...]:
    """Return the changes of all groups between two snapshot ranks, largest absolute change first."""
    before, after = _sum_places(a), _sum_places(b)
    # Rename sites of ``a`` whose line ``b`` lacks, if both have equally many such sites in the function.
    moved: dict[tuple[str, ...], tuple[list[_Key], list[_Key]]] = {}
    for index, (own, other) in enumerate(((before, after), (after, before))):
        for key in sorted(key for key in own if key not in other and key[2] == _PLACE):
            moved.setdefault((*key[:4], key[5]), ([], []))[index].append(key)
    for old, new in moved.values():
        if len(old) == len(new):
            for old_key, new_key in zip(old, new, strict=True):
                before[new_key] = before.pop(old_key)
    changes = (_make_change(key, before.get(key), after.get(key)) for key in {**after, **before})
    return tuple(sorted(changes, key=_rank_change))


def _rank_change(change: GroupChange) -> tuple[int, int, str, str, str]:
    """Return the sort key: largest change first, growth before shrinkage."""
    delta = change.delta_bytes
    return (-abs(delta), -delta, change.tenant, change.where, change.operator)


def _sum_places(groups: Iterable[Allocation]) -> dict[_Key, _Side]:
    sides: dict[_Key, _Side] = {}
    for entry in groups:
        side = sides.setdefault(_make_key(entry), _Side(entry.where))
        side.bytes += entry.held_bytes
        side.blocks += entry.count
    return sides


def _make_key(entry: Allocation) -> _Key:
    if entry.groups > 1:
        return (entry.tenant, "", _MERGED, "", 0, "")
    if entry.before:
        return (entry.tenant, entry.sub, _BEFORE, "", 0, "")
    location, _, function = entry.where.partition(" ")
    path, _, line = location.rpartition(":")
    name = path.replace("\\", "/").rpartition("/")[2]
    number = int(line) if line.isascii() and line.isdigit() and len(line) < 10 else 0
    return (entry.tenant, entry.sub, _PLACE, f"{name} {function}", number, entry.operator)


def _make_change(key: _Key, a: _Side | None, b: _Side | None) -> GroupChange:
    tenant, sub, kind, _, _, operator = key
    shown = b or a
    return GroupChange(
        tenant=tenant,
        sub=sub,
        where=shown.where if shown else "",
        operator=operator,
        a_bytes=a.bytes if a else 0,
        b_bytes=b.bytes if b else 0,
        a_blocks=a.blocks if a else 0,
        b_blocks=b.blocks if b else 0,
        before_history=kind == _BEFORE,
        merged=kind == _MERGED,
    )


class _Device(Struct, frozen=True, kw_only=True):
    """One device of one rank in one window."""

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
    memory = _make_rank_memory(run, rank, own, reconciliation)
    leaves: tuple[DeviceMemory, ...] = ()
    if own.name != _HOST:  # the host reserves no memory
        from zprof.analysis.memory.device import analyse_recorded_device, make_owners_lookup

        found = analyse_recorded_device(run, rank, own.name, own.peak.time_ns, make_owners_lookup(own.lives))
        memory = replace(
            memory,
            reserved_unused_bytes=_compute_unused_reserved_bytes(found.reserved_unused_bytes, reconciliation),
            non_pytorch_bytes=found.non_pytorch_bytes,
        )
        leaves = found.devices
        gaps += found.gaps
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
        devices=leaves,
        counters=() if samples is None else read_counters(rank, samples, _list_recorded_steps(run, rank)),
        host=tuple(
            _make_rank_memory(run, rank, d, t) for d, t in zip(host, host_reconciliations, strict=True)
        ),
        init=_analyse_init_window(run, rank, mark),
        out_of_memory=(*early, *failures),
        timelines=(thin_recording(rank, own.name, own.lives),),
        gaps=tuple(dict.fromkeys(gaps)),
    )


def _list_recorded_steps(run: Run, rank: int) -> list[int]:
    """Return the steps of the rank's windows; counters were sampled in all other steps, too."""
    manifest = run.rank_manifests[rank]
    return [*manifest.memory_steps, *manifest.time_steps]


def _select_allocator_rows(alloc: Columns) -> Columns:
    """Return the rows of memory from a torch allocator; tensors on ``meta`` have no memory."""
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
    """Return the own device (accelerator with the largest peak, else the host), the host, and the others."""
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
    """Return the bytes that are reserved but not live, without bytes unseen by hooks."""
    if reserved_unused_bytes is None or reconciliation.lower_bound:
        return None
    unused = reserved_unused_bytes - reconciliation.unseen_bytes
    return unused if unused >= 0 else None


def _analyse_init_window(run: Run, rank: int, mark: Columns) -> tuple[RankMemory, ...]:
    """Return the peak from program start to the first step; empty if it was not recorded."""
    timeline = read_timeline(mark, INIT)
    if timeline is None or not all(run.has_table(rank, name) for name in ("init_alloc", "init_role")):
        return ()
    alloc = _select_allocator_rows(read_checked_table(run, rank, "init_alloc"))
    if not len(alloc):
        return ()
    own, _, _ = _choose_own_device(_read_devices(alloc, read_checked_table(run, rank, "init_role"), timeline))
    return (_make_rank_memory(run, rank, own, _reconcile(run, rank, own, None)),)


def _find_failures_outside(run: Run, rank: int) -> tuple[OutOfMemory, ...]:
    """Return the allocations that failed before the first step or between windows."""
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
    """Return the allocations that failed in a window, with the owners of the memory live at that moment."""
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
    """Return the running step; None if no step had started or all recorded steps had ended."""
    before = mark.at(mark.texts("kind").equals("step_begin", "step_end") & (mark.ints("time_ns") <= time_ns))
    if not len(before):
        return None
    last = before.sort_by("time_ns").at(np.array([len(before) - 1]))
    return int(last.ints("number")[0]) if last.texts("kind")[0] == "step_begin" else None
