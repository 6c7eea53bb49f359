"""The memory of one rank from an allocator's history alone: an imported snapshot, where no hook saw anything.

Live bytes count as they were asked for: what a dead block took of its segment is not in a snapshot.  Tenants
rest on the program's tags, else on rules over stacks and lives (``blocks/naming``); every row says which.
"""

import numpy as np

from zprof.analysis.memory.blocks.annotations import phase_at, step_at
from zprof.analysis.memory.blocks.history import devices_in, history_of
from zprof.analysis.memory.blocks.identity import ALLOCATED_PEAK, RESERVED_PEAK, Moment, identity_of
from zprof.analysis.memory.blocks.instant import live_at
from zprof.analysis.memory.blocks.naming.named import tenant_bytes
from zprof.analysis.memory.blocks.naming.stacks import Stacks
from zprof.analysis.memory.blocks.outside import Outside
from zprof.analysis.memory.blocks.peaks import reserved_peak
from zprof.analysis.memory.blocks.snapshot_device import SnapshotDevice, device_of
from zprof.analysis.memory.blocks.snapshot_gaps import gaps_of, unshown
from zprof.analysis.memory.blocks.thinned import timeline_of_history
from zprof.analysis.memory.leaves.parts import MOST_PARTS, TOP
from zprof.analysis.memory.rank.answer import RankAnswer, no_memory
from zprof.analysis.memory.rank.tables import checked_frame
from zprof.model.findings import Confidence
from zprof.model.gaps import Gap
from zprof.model.memory import Allocation, Basis, DeviceMemory, MemoryPart, RankMemory
from zprof.model.units import format_percent
from zprof.run.reader import Run


def snapshot_memory(run: Run, rank: int) -> RankAnswer:
    """The leaves of one rank: its fullest device.

    Raises:
        BadInput: a table is damaged.
    """
    missing = [name for name in ("block", "segment", "stack") if not run.has_table(rank, name)]
    if missing:
        return no_memory(rank, f"no table {missing[0]!r} was imported", "import the snapshot again")
    block, segment = checked_frame(run, rank, "block"), checked_frame(run, rank, "segment")
    if block.empty:
        return no_memory(rank, "the snapshot has no block of memory", "dump it while memory is in use")
    stacks = Stacks(checked_frame(run, rank, "stack"))
    mark = checked_frame(run, rank, "mark") if run.has_table(rank, "mark") else None
    devices = [
        device_of(rank, history, stacks, mark)
        for name in devices_in(block)
        if (history := history_of(block, segment, name)) is not None
    ]
    own = max(devices, key=lambda device: device.peak_bytes)
    leaves, gaps = _identities(own)
    return RankAnswer(
        per_rank=(_rank_memory(own, leaves[0]),),
        top=_top(own),
        devices=tuple(leaves),
        timelines=(timeline_of_history(rank, own.history, own.names),),
        gaps=(*gaps, *gaps_of(own), *(unshown(own, other) for other in devices if other is not own)),
    )


def _rank_memory(device: SnapshotDevice, at_peak: DeviceMemory) -> RankMemory:
    sizes, names = device.history.blocks.requested_bytes[device.rows], device.names
    tenants, untagged = tenant_bytes(names.tenant[device.rows], sizes)
    unused = None if at_peak.reserved_bytes is None else at_peak.reserved_bytes - device.peak_bytes
    return RankMemory(
        rank=device.rank,
        device=device.history.device,
        peak_bytes=device.peak_bytes,
        peak_step=step_at(device.mark, device.peak_ns),
        peak_phase=phase_at(device.mark, device.peak_ns),
        tenants=tenants,
        untagged_bytes=untagged,
        reserved_unused_bytes=unused if unused is not None and unused >= 0 else None,
        non_pytorch_bytes=None,
        formula=None,
        method=_method(device),
        parts=_parts(device),
        basis_bytes=names.basis_bytes(device.rows, device.history.blocks.requested_bytes),
    )


def _method(device: SnapshotDevice) -> str:
    """How much of the peak rests on what."""
    sizes, names = device.history.blocks.requested_bytes, device.names
    basis = names.basis_bytes(device.rows, sizes)
    sure = names.confidence_bytes(device.rows, sizes)

    def share(count_bytes: int) -> str:
        return format_percent(count_bytes / device.peak_bytes if device.peak_bytes else 0.0)

    levels = ", ".join(f"{share(sure[level])} {level}" for level in Confidence)
    rules = f"rules on stacks: {share(basis[Basis.RULE])} of the peak (confidence: {levels})"
    return f"tags: {share(basis[Basis.TAGGED])} of the peak; {rules}" if basis[Basis.TAGGED] else rules


def _parts(device: SnapshotDevice) -> tuple[MemoryPart, ...]:
    """The peak by tenant, kind and basis, largest first; the smallest beyond a number are left together."""
    names, sizes = device.names, device.history.blocks.requested_bytes
    held: dict[tuple[str, str, Basis], int] = {}
    keys = np.stack([names.tenant, names.sub, np.minimum(names.rule, 0)], axis=1)[device.rows]
    kinds, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    sums = np.zeros(len(kinds), dtype=np.int64)
    np.add.at(sums, which.reshape(-1), sizes[device.rows])
    for index in np.argsort(-sums, kind="stable").tolist():
        row = int(device.rows[first[index]])
        sub = names.subs[int(names.sub[row])] if len(held) < MOST_PARTS else "other"
        key = (names.tenant_name(row), sub, names.basis_of(row))
        held[key] = held.get(key, 0) + int(sums[index])
    return tuple(
        MemoryPart(tenant=tenant, sub=sub, bytes=size, basis=basis)
        for (tenant, sub, basis), size in held.items()
    )


def _top(device: SnapshotDevice) -> tuple[Allocation, ...]:
    """Group what is live at the peak by tenant and stack; the groups that hold most."""
    blocks, names, rows = device.history.blocks, device.names, device.rows
    if not len(rows):
        return ()
    size = blocks.requested_bytes[rows]
    keys = np.stack(
        [names.tenant[rows], names.sub[rows], np.minimum(names.rule[rows], 0), blocks.stack[rows]], axis=1
    )
    groups, which = np.unique(keys, axis=0, return_inverse=True)
    which = which.reshape(-1)
    total, count, largest = (np.zeros(len(groups), dtype=np.int64) for _ in range(3))
    np.add.at(total, which, size)
    np.add.at(count, which, 1)
    by_size = np.argsort(size, kind="stable")
    largest[which[by_size]] = rows[by_size]  # the last one written is the largest
    order = np.lexsort((largest, -total))[:TOP].tolist()
    return tuple(
        Allocation(
            rank=device.rank,
            bytes=int(blocks.requested_bytes[row]),
            tenant=names.tenant_name(row),
            sub=names.subs[int(names.sub[row])],
            module="",
            stack=device.stacks.shown(int(blocks.stack[row])),
            basis=names.basis_of(row),
            count=int(count[group]),
            total_bytes=int(total[group]),
        )
        for group, row in ((group, int(largest[group])) for group in order)
    )


def _identities(device: SnapshotDevice) -> tuple[list[DeviceMemory], list[Gap]]:
    history, leaves, gaps = device.history, [], []
    moments = {ALLOCATED_PEAK: device.peak_ns}
    highest_ns = reserved_peak(history, history.begin_ns, history.end_ns)
    if highest_ns is not None:
        moments[RESERVED_PEAK] = highest_ns
    for name, time_ns in moments.items():
        moment = Moment(rank=device.rank, device=history.device, name=name, time_ns=time_ns)
        rows = live_at(history.blocks, time_ns)
        held, _ = tenant_bytes(device.names.tenant[rows], history.blocks.requested_bytes[rows])
        leaf, found = identity_of(moment, history, held, Outside())
        leaves.append(leaf)
        gaps += found
    return leaves, list(dict.fromkeys(gaps))
