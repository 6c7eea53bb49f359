"""Analyse the memory of one rank from an imported snapshot: an allocator history without hooks.

Live bytes are the requested bytes, because a snapshot lacks the block sizes of freed blocks. Tenants come
from the tags of the program, else from rules on stacks, lifetimes and sizes (``attribution``).
"""

import numpy as np
import pandas as pd
from msgspec.structs import replace

from zprof.analysis.memory.attribution.assign import sum_tenant_bytes
from zprof.analysis.memory.attribution.block_tenants import TenantLedger, get_tenant_name
from zprof.analysis.memory.attribution.frames import StackIndex
from zprof.analysis.memory.breakdown import MAX_PARTS, find_phase_peaks
from zprof.analysis.memory.device_terms import (
    ALLOCATED_PEAK,
    RESERVED_PEAK,
    DeviceMoment,
    OutsideTerms,
    make_device_memory,
)
from zprof.analysis.memory.history import (
    find_live_blocks,
    find_reserved_peak,
    list_history_devices,
    read_history,
)
from zprof.analysis.memory.out_of_memory import find_failure_times, find_out_of_memory
from zprof.analysis.memory.peak_growth import measure_growth
from zprof.analysis.memory.rank_result import RankMemoryResult, make_unknown_result
from zprof.analysis.memory.snapshot_device import SnapshotDevice, read_snapshot_device
from zprof.analysis.memory.snapshot_gaps import list_snapshot_gaps, make_hidden_device_gap
from zprof.analysis.memory.stack_groups import list_largest_groups
from zprof.analysis.memory.stack_tree import build_stack_tree
from zprof.analysis.memory.steps_and_phases import (
    find_annotated_phase,
    find_annotated_step,
)
from zprof.analysis.memory.tables import read_checked_frame
from zprof.analysis.memory.thinning import thin_recording
from zprof.model.findings import Confidence
from zprof.model.formatting import format_percent
from zprof.model.gaps import Gap
from zprof.model.memory import Basis, DeviceMemory, MemoryPart, RankMemory
from zprof.model.out_of_memory import OutOfMemory
from zprof.model.training import Phase
from zprof.run.reader import Run


def analyse_snapshot_rank(run: Run, rank: int) -> RankMemoryResult:
    """Return the leaves of one rank: its fullest device.

    Raises:
        BadInput: a table is damaged.
    """
    missing = [name for name in ("block", "segment", "stack") if not run.has_table(rank, name)]
    if missing:
        return make_unknown_result(rank, f"no table {missing[0]!r} was imported", "import the snapshot again")
    block, segment = read_checked_frame(run, rank, "block"), read_checked_frame(run, rank, "segment")
    stacks = StackIndex(read_checked_frame(run, rank, "stack"))
    mark = read_checked_frame(run, rank, "mark") if run.has_table(rank, "mark") else _make_no_marks()
    if block.empty:
        unknown = make_unknown_result(
            rank, "the snapshot has no memory blocks", "dump the snapshot while memory is in use"
        )
        return replace(
            unknown, out_of_memory=_list_failures_without_blocks(rank, block, segment, stacks, mark)
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
            *(make_hidden_device_gap(own, other) for other in devices if other is not own),
        ),
    )


def _make_no_marks() -> pd.DataFrame:
    return pd.DataFrame({"time_ns": [], "kind": [], "number": [], "name": []})


def _list_failures_without_blocks(
    rank: int, block: pd.DataFrame, segment: pd.DataFrame, stacks: StackIndex, mark: pd.DataFrame
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
    """Describe the shares of the peak that are assigned by tags, by rules and by sizes."""
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
    """Return the peak by tenant, kind and reason, largest first; the smallest parts of each are merged."""
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
