"""The memory of one rank from an allocator's history alone: an imported snapshot, where no hook saw anything.

Live bytes count as they were asked for: what a dead block took of its segment is not in a snapshot.  Tenants
rest on the program's tags, else on rules over stacks and lives (``blocks/naming``); every row says which.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from zprof.analysis.memory.answer import RankAnswer, no_memory
from zprof.analysis.memory.blocks.annotations import phase_at, step_at
from zprof.analysis.memory.blocks.history import History, devices_in, history_of
from zprof.analysis.memory.blocks.identity import ALLOCATED_PEAK, RESERVED_PEAK, Moment, identity_of
from zprof.analysis.memory.blocks.instant import live_at
from zprof.analysis.memory.blocks.naming.named import Named, named, tenant_bytes
from zprof.analysis.memory.blocks.naming.stacks import Stacks
from zprof.analysis.memory.blocks.outside import Outside, outside_at
from zprof.analysis.memory.blocks.peaks import allocated_peak, reserved_peak
from zprof.analysis.memory.blocks.thinned import timeline_of_history
from zprof.analysis.memory.leaves.parts import MOST_PARTS, TOP
from zprof.analysis.memory.lives import Int
from zprof.model.findings import Confidence
from zprof.model.gaps import Gap
from zprof.model.memory import Allocation, Basis, DeviceMemory, MemoryPart, RankMemory
from zprof.model.units import format_bytes, format_percent
from zprof.run.reader import Run

_EARLIER = "call torch.cuda.memory._record_memory_history before the model is built"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """One device of a snapshot with its blocks' owners and the highest point of its live bytes."""

    rank: int
    history: History
    names: Named
    stacks: Stacks
    mark: pd.DataFrame
    nvml: pd.DataFrame | None
    peak_ns: int
    peak_bytes: int
    rows: Int


def snapshot_memory(run: Run, rank: int) -> RankAnswer:
    """The leaves of one rank: its fullest device.

    Raises:
        BadInput: a table is damaged.
    """
    missing = [name for name in ("block", "segment", "stack") if not run.has_table(rank, name)]
    if missing:
        return no_memory(rank, f"no table {missing[0]!r} was imported", "import the snapshot again")
    block, segment = run.frame(rank, "block"), run.frame(rank, "segment")
    if block.empty:
        return no_memory(rank, "the snapshot has no block of memory", "dump it while memory is in use")
    stacks = Stacks(run.frame(rank, "stack"))
    mark, nvml = (run.frame(rank, name) if run.has_table(rank, name) else None for name in ("mark", "device"))
    devices = [
        _device(rank, history, stacks, mark, nvml)
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
        gaps=(*gaps, *_gaps(own), *(_unshown(own, other) for other in devices if other is not own)),
    )


def _device(
    rank: int, history: History, stacks: Stacks, mark: pd.DataFrame | None, nvml: pd.DataFrame | None
) -> _Device:
    peak_ns, peak_bytes = allocated_peak(history)
    empty = pd.DataFrame({"time_ns": [], "kind": [], "number": [], "name": []})
    return _Device(
        rank=rank,
        history=history,
        names=named(history.blocks, stacks.origins(history.blocks.stack)),
        stacks=stacks,
        mark=empty if mark is None else mark,
        nvml=nvml,
        peak_ns=peak_ns,
        peak_bytes=peak_bytes,
        rows=live_at(history.blocks, peak_ns),
    )


def _rank_memory(device: _Device, at_peak: DeviceMemory) -> RankMemory:
    sizes, names = device.history.blocks.requested_bytes[device.rows], device.names
    tenants, untagged = tenant_bytes(names.tenant[device.rows], sizes)
    reserved = at_peak.reserved_bytes
    beside = (at_peak.collectives_bytes, at_peak.context_bytes)
    return RankMemory(
        rank=device.rank,
        device=device.history.device,
        peak_bytes=device.peak_bytes,
        peak_step=step_at(device.mark, device.peak_ns),
        peak_phase=phase_at(device.mark, device.peak_ns),
        tenants=tenants,
        untagged_bytes=untagged,
        reserved_unused_bytes=None if reserved is None else max(reserved - device.peak_bytes, 0),
        non_pytorch_bytes=None if None in beside else sum(term or 0 for term in beside),
        formula=None,
        method=_method(device),
        parts=_parts(device),
        basis_bytes=names.basis_bytes(device.rows, device.history.blocks.requested_bytes),
    )


def _method(device: _Device) -> str:
    """How much of the peak rests on what."""
    sizes, names = device.history.blocks.requested_bytes, device.names
    basis = names.basis_bytes(device.rows, sizes)
    sure = names.confidence_bytes(device.rows, sizes)

    def share(count_bytes: int) -> str:
        return format_percent(count_bytes / device.peak_bytes if device.peak_bytes else 0.0)

    levels = ", ".join(f"{share(sure[level])} {level}" for level in Confidence)
    rules = f"rules on stacks: {share(basis[Basis.RULE])} of the peak (confidence: {levels})"
    return f"tags: {share(basis[Basis.TAGGED])} of the peak; {rules}" if basis[Basis.TAGGED] else rules


def _parts(device: _Device) -> tuple[MemoryPart, ...]:
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


def _top(device: _Device) -> tuple[Allocation, ...]:
    blocks, names = device.history.blocks, device.names
    order = np.argsort(-blocks.requested_bytes[device.rows], kind="stable")[:TOP]
    return tuple(
        Allocation(
            rank=device.rank,
            bytes=int(blocks.requested_bytes[row]),
            tenant=names.tenant_name(row),
            sub=names.subs[int(names.sub[row])],
            module="",
            stack=device.stacks.shown(int(blocks.stack[row])),
            basis=names.basis_of(row),
        )
        for row in device.rows[order].tolist()
    )


def _identities(device: _Device) -> tuple[list[DeviceMemory], list[Gap]]:
    history, leaves, gaps = device.history, [], []
    moments = {ALLOCATED_PEAK: device.peak_ns}
    highest_ns = reserved_peak(history, history.begin_ns, history.end_ns)
    if highest_ns is not None:
        moments[RESERVED_PEAK] = highest_ns
    for name, time_ns in moments.items():
        moment = Moment(rank=device.rank, device=history.device, name=name, time_ns=time_ns)
        rows = live_at(history.blocks, time_ns)
        held, _ = tenant_bytes(device.names.tenant[rows], history.blocks.requested_bytes[rows])
        leaf, found = identity_of(moment, history, held, _outside(device, time_ns))
        leaves.append(leaf)
        gaps += found
    return leaves, list(dict.fromkeys(gaps))


def _outside(device: _Device, time_ns: int) -> Outside:
    if device.nvml is None:
        return Outside()
    return outside_at(device.nvml, device.rank, device.history.device, time_ns)


def _gaps(device: _Device) -> list[Gap]:
    blocks, peak_bytes = device.history.blocks, device.peak_bytes
    gaps = []
    if device.nvml is None:
        gaps.append(
            _gap(
                device,
                "memory outside the allocator",
                "a snapshot does not hold what NVML says of the device",
                "record the program with zprof record",
            )
        )
    if device.peak_ns == device.history.begin_ns and bool(blocks.before[device.rows].any()):
        reason = "live memory is highest where the history begins: the true peak may be higher"
        gaps.append(_gap(device, "allocated peak", reason, _EARLIER))
    unknown = _untold(device)
    if unknown:
        told = ", ".join(f"{format_bytes(size)} {why}" for why, size in unknown.items())
        reason = f"no tag and no rule names the owner of {told}"
        gaps.append(
            _gap(
                device,
                f"tenants of {format_percent(sum(unknown.values()) / peak_bytes)} of the peak",
                reason,
                f"{_EARLIER}, or tag memory: torch.cuda.memory._set_memory_metadata('zprof:activations')",
            )
        )
    return gaps


def _untold(device: _Device) -> Mapping[str, int]:
    """Bytes of the peak without an owner, by why."""
    blocks, names = device.history.blocks, device.names
    rows = device.rows[names.rule[device.rows] == -1]
    before = blocks.before[rows]
    sizes = {
        "from before the history": int(blocks.requested_bytes[rows[before]].sum()),
        "made within it": int(blocks.requested_bytes[rows[~before]].sum()),
    }
    return {why: size for why, size in sizes.items() if size}


def _unshown(own: _Device, other: _Device) -> Gap:
    reason = (
        f"the snapshot has several devices; the report shows the fullest, {own.history.device}; the peak of "
        f"{other.history.device} is {format_bytes(other.peak_bytes)}"
    )
    return Gap(
        what=f"memory of {other.history.device}",
        rank=own.rank,
        reason=reason,
        remedy="read the tables with zprof.load",
    )


def _gap(device: _Device, what: str, reason: str, remedy: str) -> Gap:
    return Gap(what=what, rank=device.rank, reason=f"{device.history.device}: {reason}", remedy=remedy)
