"""Analyse the memory of one rank from an imported snapshot: an allocator history without hooks.

Live bytes are requested bytes, because a snapshot lacks the block sizes of freed blocks. Tenants come from
the program's tags, else from rules on stacks, lifetimes and sizes (``attribution``). The history is converted
to the form of a recording, so both share one analysis.

Before torch raises an out-of-memory error, it returns all entirely free segments of the common pool to the
driver and retries. The remaining free bytes are therefore in segments in use, and a request fails despite
enough free bytes if no free piece is large enough. A private pool (a CUDA graph's) serves only its own
requests.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Groups
from zprof.analysis.memory.attribution.assign import attribute_history, sum_tenant_bytes
from zprof.analysis.memory.attribution.block_tenants import BlockTenants, TenantLedger, get_tenant_name
from zprof.analysis.memory.attribution.frames import StackIndex
from zprof.analysis.memory.attribution.passes import BACKWARD, FORWARD, OPTIMIZER, AllocationPasses
from zprof.analysis.memory.breakdown import MAX_PARTS, find_phase_peaks, thin_recording
from zprof.analysis.memory.device import (
    ALLOCATED_PEAK,
    RESERVED_PEAK,
    DeviceMoment,
    OutsideTerms,
    make_device_memory,
)
from zprof.analysis.memory.history import (
    AllocatorTerms,
    History,
    compute_terms,
    find_allocated_peak,
    find_live_blocks,
    find_reserved_peak,
    list_history_devices,
    merge_segments,
    read_history,
)
from zprof.analysis.memory.live_bytes import RankLives, compute_live_curve
from zprof.analysis.memory.roles import Blocks, Segments, tenant_name
from zprof.analysis.memory.stacks import build_stack_tree, list_largest_groups
from zprof.analysis.memory.state_checks import RankMemoryResult
from zprof.analysis.memory.tables import (
    UNTAGGED,
    Int,
    Timeline,
    find_annotated_phase,
    find_annotated_step,
    list_annotated_phases,
    list_annotated_steps,
    make_empty_lives,
    read_checked_table,
)
from zprof.base.formatting import format_percent
from zprof.model.endings import OutOfMemory
from zprof.model.findings import Confidence
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.memory import (
    Basis,
    DeviceMemory,
    HistoryWindow,
    MemoryPart,
    PeakGrowth,
    RankMemory,
    WindowKind,
)
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.training import Phase
from zprof.run.reader import Run
from zprof.run.schema import TABLES
from zprof.run.table_reader import make_empty_table

#: Smaller shares of the peak without an owner round to 0.0 % and need no remedy.
_MIN_UNOWNED_RATIO = 0.0005
#: Maximum number of described failures, the last ones: a program that retries with smaller batches can fail
#: often.
_MAX_FAILURES = 8
_FREE, _REQUEST, _DRIVER, _STACK, _POOL = (
    "oom",
    "oom_request",
    "oom_driver_request",
    "oom_stack",
    "oom_pool",
)
_MAX_GROUPS = 3
#: A low separates two peaks if the memory fell to it by at least this share of the rise after it.
_MIN_PEAK_RATIO = 0.25
#: Minimum depth of such a low below the peak, relative to the peak: variation within a step is smaller.
_MIN_DEPTH_RATIO = 0.1
#: Of lows that differ by less than this share of the rise, the last one is the start of the growth.
_TOLERANCE_RATIO = 0.05
_PHASES = {FORWARD: Phase.FORWARD, BACKWARD: Phase.BACKWARD, OPTIMIZER: Phase.OPTIMIZER}


class SnapshotDevice(Struct, frozen=True, kw_only=True):
    """One device of a snapshot; ``rows``: the blocks live at the peak."""

    rank: int
    history: History
    names: BlockTenants
    lives: RankLives
    window: HistoryWindow
    stacks: StackIndex
    mark: Columns
    peak_ns: int
    peak_bytes: int
    rows: Int


class _Failure(Struct, frozen=True, kw_only=True):
    """The marks of one failed allocation."""

    time_ns: int
    requested_bytes: int
    driver_bytes: int
    device_free_bytes: int | None
    stack: int
    pool: str


def analyse_snapshot_rank(run: Run, rank: int) -> RankMemoryResult:
    """Return one rank's leaves, for its fullest device.

    Raises:
        BadInput: a table is damaged.
    """
    missing = [name for name in ("block", "segment", "stack") if not run.has_table(rank, name)]
    if missing:
        gap = make_gap("snapshot_table_missing", rank=rank, table=missing[0])
        return RankMemoryResult(gaps=(gap,))
    block, segment = read_checked_table(run, rank, "block"), read_checked_table(run, rank, "segment")
    stacks = StackIndex(read_checked_table(run, rank, "stack"))
    mark = (
        read_checked_table(run, rank, "mark")
        if run.has_table(rank, "mark")
        else Columns.from_arrow(make_empty_table(TABLES["mark"]))
    )
    if not len(block):
        return RankMemoryResult(
            gaps=(make_gap("snapshot_without_blocks", rank=rank),),
            out_of_memory=_list_failures_without_blocks(rank, block, segment, stacks, mark),
        )
    devices = [
        read_snapshot_device(rank, history, stacks, mark)
        for name in list_history_devices(block)
        if (history := read_history(block, segment, name)) is not None
    ]
    own = max(devices, key=lambda device: device.peak_bytes)
    leaves, gaps = _describe_peaks(own)
    return RankMemoryResult(
        per_rank=(_make_rank_memory(own, leaves[0]),),
        top=list_largest_groups(own.rank, own.history.blocks, own.rows, own.names, stacks),
        phases=find_phase_peaks(rank, own.lives) if len(own.lives.timeline.phases) else (),
        windows=(own.window,),
        devices=tuple(leaves),
        stacks=(
            build_stack_tree(own.rank, own.history.device, own.history.blocks, own.rows, own.names, stacks),
        ),
        growth=(measure_growth(own.rank, own.history, own.lives.timeline, own.peak_ns, own.names, stacks),),
        timelines=(thin_recording(rank, own.history.device, own.lives),),
        out_of_memory=(
            *(
                failure
                for device in devices
                for failure in find_out_of_memory(rank, device.history, device.names, stacks, mark)
            ),
            *_list_failures_without_blocks(rank, block, segment, stacks, mark),
        ),
        gaps=(
            *gaps,
            *list_snapshot_gaps(own),
            *(
                make_gap(
                    "snapshot_device_hidden",
                    rank=own.rank,
                    shown=own.history.device,
                    other=other.history.device,
                    peak=other.peak_bytes,
                )
                for other in devices
                if other is not own
            ),
        ),
    )


def _list_failures_without_blocks(
    rank: int, block: Columns, segment: Columns, stacks: StackIndex, mark: Columns
) -> tuple[OutOfMemory, ...]:
    """Return the failed allocations of devices on which no allocation succeeded."""
    used = set(list_history_devices(block))
    histories = (
        read_history(block, segment, device, empty_ns=time_ns)
        for device, time_ns in find_failure_times(mark).items()
        if device not in used
    )
    nobody = TenantLedger(0).get_tenants()
    return tuple(
        failure
        for history in histories
        if history is not None
        for failure in find_out_of_memory(rank, history, nobody, stacks, mark)
    )


def _make_rank_memory(device: SnapshotDevice, at_peak: DeviceMemory) -> RankMemory:
    sizes, names = device.history.blocks.requested_bytes[device.rows], device.names
    tenants, untagged = sum_tenant_bytes(names.tenant[device.rows], sizes)
    unused = None if at_peak.reserved_bytes is None else at_peak.reserved_bytes - device.peak_bytes
    inferred_phase = device.lives.timeline.phase_at(device.peak_ns)
    if inferred_phase == Phase.OTHER.value:
        inferred_phase = ""
    return RankMemory(
        rank=device.rank,
        device=device.history.device,
        peak_bytes=device.peak_bytes,
        peak_step=find_annotated_step(device.mark, device.peak_ns),
        peak_phase=find_annotated_phase(device.mark, device.peak_ns) or inferred_phase,
        tenants=tenants,
        untagged_bytes=untagged,
        reserved_unused_bytes=unused if unused is not None and unused >= 0 else None,
        non_pytorch_bytes=None,
        formula=None,
        method=_describe_method(device),
        parts=_list_parts(device),
        basis_bytes=names.sum_basis_bytes(device.rows, device.history.blocks.requested_bytes),
        unknown=names.list_unknown_tenants(),
        tenant_peaks=device.lives.find_tenant_peaks(),
    )


def _describe_method(device: SnapshotDevice) -> str:
    """Describe the shares of the peak assigned by tags, rules and sizes."""
    sizes, names = device.history.blocks.requested_bytes, device.names
    basis = names.sum_basis_bytes(device.rows, sizes)
    bytes_by_confidence = names.sum_confidence_bytes(device.rows, sizes)

    def share(count_bytes: int) -> str:
        return format_percent(count_bytes / device.peak_bytes if device.peak_bytes else 0.0)

    levels = ", ".join(f"{share(bytes_by_confidence[level])} {level}" for level in Confidence)
    rules = f"rules on stacks: {share(basis[Basis.RULE])} of the peak"
    sizes_alone = f", sizes alone: {share(basis[Basis.SIZES])}" if basis[Basis.SIZES] else ""
    rules = f"{rules}{sizes_alone} (confidence: {levels})"
    return f"tags: {share(basis[Basis.TAGGED])} of the peak; {rules}" if basis[Basis.TAGGED] else rules


def _list_parts(device: SnapshotDevice) -> tuple[MemoryPart, ...]:
    """Return the peak by tenant, kind and reason, largest first; each tenant's smallest parts are merged."""
    names, sizes = device.names, device.history.blocks.requested_bytes
    counts = np.bincount(names.number[device.rows], minlength=len(names.attributions))
    parts: dict[MemoryPart, tuple[int, int]] = {}
    for attribution, size in names.sum_bytes(device.rows, sizes).items():
        key = MemoryPart(
            tenant=get_tenant_name(attribution),
            sub=attribution.sub if len(parts) < MAX_PARTS else "other",
            bytes=0,
            basis=attribution.basis,
            confidence=attribution.confidence,
            reason=attribution.reason if len(parts) < MAX_PARTS else "",
        )
        held_bytes, blocks = parts.get(key, (0, 0))
        parts[key] = held_bytes + size, blocks + int(counts[names.attributions.index(attribution)])
    return tuple(replace(part, bytes=size, blocks=blocks) for part, (size, blocks) in parts.items())


def _describe_peaks(device: SnapshotDevice) -> tuple[list[DeviceMemory], list[Gap]]:
    history, leaves, gaps = device.history, [], []
    moments = {ALLOCATED_PEAK: device.peak_ns}
    reserved_peak_ns = find_reserved_peak(history, history.begin_ns, history.end_ns)
    if reserved_peak_ns is not None:
        moments[RESERVED_PEAK] = reserved_peak_ns
    for name, time_ns in moments.items():
        moment = DeviceMoment(rank=device.rank, device=history.device, name=name, time_ns=time_ns)
        rows = find_live_blocks(history.blocks, time_ns)
        held_bytes, _ = sum_tenant_bytes(device.names.tenant[rows], history.blocks.requested_bytes[rows])
        leaf, new_gaps = make_device_memory(moment, history, held_bytes, OutsideTerms())
        leaves.append(leaf)
        gaps += new_gaps
    return leaves, list(dict.fromkeys(gaps))


def list_snapshot_gaps(device: SnapshotDevice) -> list[Gap]:
    """Return all gaps, except those of the terms of reserved memory."""
    blocks, peak_bytes = device.history.blocks, device.peak_bytes
    rank, name = device.rank, device.history.device
    gaps = [make_gap("snapshot_without_samples", rank=rank, device=name)]
    if device.peak_ns == device.history.begin_ns and bool(blocks.before[device.rows].any()):
        gaps.append(make_gap("snapshot_starts_at_peak", rank=rank, device=name))
    unowned = device.rows[device.names.tenant[device.rows] == UNTAGGED]
    is_before, sizes = blocks.before[unowned], blocks.requested_bytes[unowned]
    unowned_bytes = int(sizes.sum())
    if unowned_bytes >= _MIN_UNOWNED_RATIO * max(1, peak_bytes):
        before, during = int(sizes[is_before].sum()), int(sizes[~is_before].sum())
        if before and during:
            key = "snapshot_owner_unknown"
        else:
            key = "snapshot_owner_unknown_before" if before else "snapshot_owner_unknown_during"
        ratio = unowned_bytes / peak_bytes
        gaps.append(make_gap(key, rank=rank, device=name, ratio=ratio, before=before, during=during))
    return gaps


def find_out_of_memory(
    rank: int, history: History, names: BlockTenants, stacks: StackIndex, mark: Columns
) -> tuple[OutOfMemory, ...]:
    """Return a device's last failed allocations, oldest first."""
    failures = list(_list_failures(mark, history.device))[-_MAX_FAILURES:]
    return tuple(_describe(rank, history, names, stacks, failure) for failure in failures)


def find_failure_times(mark: Columns) -> dict[str, int]:
    """Return the devices with failed allocations, and the time of the first failure on each."""
    rows = mark.at(mark.texts("kind").equals(_REQUEST))
    devices = Groups(rows.texts("name"))
    first_ns = devices.min(rows.ints("time_ns")).tolist()
    return dict(zip(rows.texts("name").at(devices.first), first_ns, strict=True))


def _list_failures(mark: Columns, device: str) -> Iterator[_Failure]:
    kinds = mark.texts("kind")
    rows = mark.at(mark.texts("name").equals(device) & kinds.equals(_FREE, _REQUEST, _DRIVER, _STACK))
    numbers: dict[int, dict[str, int]] = {}
    columns = (rows.ints("time_ns").tolist(), rows.texts("kind"), rows.ints("number").tolist())
    for time_ns, kind, number in zip(*columns, strict=True):
        numbers.setdefault(time_ns, {})[kind] = number
    index = device.rpartition(":")[2]
    pools = mark.at(kinds.equals(_POOL))
    pools = pools.at(np.array([str(number) == index for number in pools.ints("number").tolist()], dtype=bool))
    pool_by_time = dict(zip(pools.ints("time_ns").tolist(), pools.texts("name"), strict=True))
    for time_ns, found in sorted(numbers.items()):
        if _REQUEST in found:
            free_bytes = found.get(_FREE, -1)
            yield _Failure(
                time_ns=time_ns,
                requested_bytes=found[_REQUEST],
                driver_bytes=max(found.get(_DRIVER, 0), found[_REQUEST]),
                device_free_bytes=free_bytes if free_bytes >= 0 else None,
                stack=found.get(_STACK, -1),
                pool=pool_by_time.get(time_ns, ""),
            )


def _describe(
    rank: int, history: History, names: BlockTenants, stacks: StackIndex, failure: _Failure
) -> OutOfMemory:
    terms = compute_terms(history, failure.time_ns)
    live = find_live_blocks(history.blocks, failure.time_ns)
    sizes = history.blocks.requested_bytes
    tenants, untagged_bytes = sum_tenant_bytes(names.tenant[live], sizes[live])
    by_sizes = {owner.tenant for owner in names.sum_bytes(live, sizes) if owner.basis is Basis.SIZES}
    pieces = _list_free_pieces(history, failure) if _is_consistent(history, terms) else None
    would_fit, short_bytes = _judge_defragmented(failure, None if pieces is None else int(pieces.sum()))
    device_free = failure.device_free_bytes
    segments = history.held_segments
    held = (segments.begin_ns <= failure.time_ns) & (segments.end_ns > failure.time_ns)
    return OutOfMemory(
        rank=rank,
        device=history.device,
        time_ns=failure.time_ns - history.begin_ns,
        requested_bytes=failure.requested_bytes,
        driver_bytes=failure.driver_bytes,
        device_free_bytes=device_free,
        live_bytes=terms.live_bytes,
        allocated_bytes=terms.live_bytes + terms.rounding_bytes,
        awaiting_free_bytes=terms.awaiting_free_bytes,
        reserved_bytes=terms.reserved_bytes if _is_consistent(history, terms) else None,
        split_bytes=terms.split_bytes,
        free_segments_bytes=terms.free_segments_bytes,
        private_pools_bytes=terms.private_pools_bytes,
        largest_free_bytes=None if pieces is None else int(pieces.max(initial=0)),
        tenants=tenants,
        untagged_bytes=untagged_bytes,
        would_fit_defragmented=would_fit,
        short_bytes=short_bytes,
        is_limited=device_free is not None and device_free >= failure.driver_bytes,
        expandable=bool(segments.expandable[held].any()),
        pool=failure.pool,
        inferred_tenants=tuple(tenant for tenant in DISPLAY_ORDER if tenant in by_sizes),
        unknown_tenants=names.list_unknown_tenants(),
        confidence_bytes=names.sum_confidence_bytes(live, sizes),
        stack=stacks.format_stack(failure.stack),
    )


def _is_consistent(history: History, terms: AllocatorTerms) -> bool:
    return bool(len(history.held_segments)) and not terms.contradiction_bytes


def _judge_defragmented(failure: _Failure, pool_free_bytes: int | None) -> tuple[bool | None, int | None]:
    """Return (True if the free bytes would have sufficed, the missing bytes); None if unknown.

    The device's free bytes count only if the driver refused the request: under a process limit they are out
    of reach.
    """
    if pool_free_bytes is None:
        return None, None
    device_free = failure.device_free_bytes
    if device_free is not None and device_free < failure.driver_bytes:
        missing = failure.requested_bytes - pool_free_bytes - device_free
        return missing <= 0, max(0, missing)
    return (True, 0) if pool_free_bytes >= failure.requested_bytes else (None, None)


def _list_free_pieces(history: History, failure: _Failure) -> Int:
    """Return the sizes of the contiguous free pieces in the request's pool."""
    regions = merge_segments(history.held_segments, failure.time_ns)
    blocks = history.blocks
    held = np.flatnonzero((blocks.begin_ns <= failure.time_ns) & (blocks.released_ns > failure.time_ns))
    begins = np.sort(np.concatenate([regions.address, (blocks.address + blocks.block_bytes)[held]]))
    ends = np.sort(np.concatenate([regions.address + regions.bytes, blocks.address[held]]))
    # Nothing overlaps, so the sorted starts of free pieces pair with their sorted ends; some are empty.
    region = np.searchsorted(regions.address, begins, side="right") - 1
    # an empty name is the common pool
    same_pool = {failure.pool} if failure.pool else {"", "0,0"}
    in_pool = np.array([name in same_pool for name in history.held_segments.pools], dtype=bool)
    pieces: Int = (ends - begins)[in_pool[regions.pool[region]]]
    return pieces[pieces > 0]


def measure_growth(
    rank: int, history: History, timeline: Timeline, peak_ns: int, names: BlockTenants, stacks: StackIndex
) -> PeakGrowth:
    """Return what grew from the start of the step to the peak; without steps, from the low before the
    peak.
    """
    blocks = history.blocks
    begins = [time_ns for time_ns, _ in timeline.steps if history.begin_ns < time_ns <= peak_ns]
    start_ns = begins[-1] - 1 if begins else _find_low(history, peak_ns)
    at_start, at_peak = find_live_blocks(blocks, start_ns), find_live_blocks(blocks, peak_ns)
    before, after = (
        np.bincount(names.tenant[rows], weights=blocks.requested_bytes[rows], minlength=UNTAGGED + 1)
        for rows in (at_start, at_peak)
    )
    grown = {tenant_name(code): int(after[code] - before[code]) for code in range(UNTAGGED + 1)}
    new = at_peak[blocks.begin_ns[at_peak] > start_ns]
    groups = list_largest_groups(rank, blocks, new, names, stacks)
    return PeakGrowth(
        rank=rank,
        device=history.device,
        start_ns=start_ns - history.begin_ns,
        peak_ns=peak_ns - history.begin_ns,
        start_bytes=int(before.sum()),
        peak_bytes=int(after.sum()),
        grown_bytes=grown,
        largest=groups[:_MAX_GROUPS],
    )


def _find_low(history: History, peak_ns: int) -> int:
    """Return the time of the low between the peak and the previous peak, else of the minimum before the peak.

    In a training loop, this is the end of the previous step.
    """
    blocks = history.blocks
    times, live = compute_live_curve(blocks.begin_ns, blocks.freed_ns, blocks.requested_bytes)
    last = int(np.searchsorted(times, peak_ns, side="right"))
    if not last:
        return peak_ns
    times, live = times[:last], live[:last]
    peak_bytes = int(live[-1])
    is_low = live == np.minimum.accumulate(live[::-1])[::-1]
    highest = np.maximum.accumulate(live)
    is_between = is_low & (highest - live >= _MIN_PEAK_RATIO * (peak_bytes - live))
    is_between &= peak_bytes - live >= _MIN_DEPTH_RATIO * peak_bytes
    lows: Int = np.flatnonzero(is_between if is_between.any() else is_low)
    least = int(live[lows].min())
    lows = lows[live[lows] <= least + _TOLERANCE_RATIO * (peak_bytes - least)]
    return int(times[lows[-1]])


def read_snapshot_device(rank: int, history: History, stacks: StackIndex, mark: Columns) -> SnapshotDevice:
    """Assign a tenant to every block, and find the peak."""
    peak_ns, peak_bytes = find_allocated_peak(history)
    names, passes, keeps_for_backward = attribute_history(history.blocks, stacks, list_annotated_phases(mark))
    return SnapshotDevice(
        rank=rank,
        history=history,
        names=names,
        lives=make_history_lives(history, names, passes, list_annotated_steps(mark)),
        window=describe_window(rank, passes, keeps_for_backward=keeps_for_backward),
        stacks=stacks,
        mark=mark,
        peak_ns=peak_ns,
        peak_bytes=peak_bytes,
        rows=find_live_blocks(history.blocks, peak_ns),
    )


def make_history_lives(
    history: History, names: BlockTenants, passes: AllocationPasses, steps: Sequence[tuple[int, int]] = ()
) -> RankLives:
    """Return a history's blocks with one tenant each, over the history's time span.

    ``steps``: start and number of each step annotated by the program.
    """
    blocks, count = history.blocks, len(history.blocks)
    subs = np.array([attribution.sub for attribution in names.attributions], dtype=object)
    nothing, row = np.full(count, None, dtype=object), np.arange(count, dtype=np.int64)
    times_ns, live_bytes = compute_live_curve(blocks.begin_ns, blocks.freed_ns, blocks.requested_bytes)
    return RankLives(
        blocks=Blocks(
            address=blocks.address,
            begin_ns=blocks.begin_ns,
            end_ns=blocks.freed_ns,
            bytes=blocks.requested_bytes,
            tenant=names.tenant,
            sub=subs[names.number],
            module=nothing,
            operator=nothing,
            phase=nothing,
            tracked=np.zeros(count, dtype=bool),
            open=np.zeros(count, dtype=bool),
            owner=row[:0],
        ),
        segments=Segments(
            block=row,
            begin_ns=blocks.begin_ns,
            end_ns=blocks.freed_ns,
            bytes=blocks.requested_bytes,
            tenant=names.tenant,
            sub=subs[names.number],
        ),
        storages=make_empty_lives(),
        timeline=make_timeline(history, passes, steps),
        times_ns=times_ns,
        live_bytes=live_bytes,
        has_allocator_events=True,
    )


def make_timeline(history: History, passes: AllocationPasses, steps: Sequence[tuple[int, int]]) -> Timeline:
    """Return a history's phases and steps; steps without annotations are counted from 1."""
    optimizers = np.flatnonzero(passes.kind == OPTIMIZER)
    after = optimizers[optimizers + 1 < len(passes)] + 1
    begins = passes.first_ns[np.append(0, after)].tolist() if len(passes) else []
    return Timeline(
        begin_ns=history.begin_ns,
        end_ns=history.end_ns,
        steps=[(max(time_ns, history.begin_ns), number) for time_ns, number in steps]
        or [(begin, number) for number, begin in enumerate(begins, start=1)],
        step_ends=passes.last_ns[optimizers].tolist(),
        phases=[
            (start, _PHASES[kind].value)
            for start, kind in zip(passes.first_ns.tolist(), passes.kind.tolist(), strict=True)
        ],
    )


def describe_window(rank: int, passes: AllocationPasses, *, keeps_for_backward: bool) -> HistoryWindow:
    """Return which part of the program's steps a history covers."""
    optimizers = np.flatnonzero(passes.kind == OPTIMIZER)
    backward = np.flatnonzero(passes.kind == BACKWARD)
    per_step = np.diff(np.searchsorted(backward, np.append(-1, optimizers)))
    per_step = per_step[per_step > 0]  # a second optimizer makes no second step
    if len(backward):
        kind = WindowKind.TRAINING
    elif len(optimizers):
        kind = WindowKind.OPTIMIZER
    elif bool((passes.kind == FORWARD).any()):
        kind = WindowKind.FORWARD if keeps_for_backward else WindowKind.INFERENCE
    else:
        kind = WindowKind.UNKNOWN
    return HistoryWindow(
        rank=rank,
        kind=kind,
        steps=len(per_step) if len(backward) else len(optimizers),
        micro_batches=int(np.median(per_step)) if len(per_step) else None,
    )
