"""A recorded GPU at its allocated and at its reserved peak, down to what NVML says of the device."""

from dataclasses import dataclass

import pandas as pd

from zprof.analysis.memory.blocks.coarse import coarse_identity, reserved_around, reserved_peak_row
from zprof.analysis.memory.blocks.history import History, history_of
from zprof.analysis.memory.blocks.identity import (
    ALLOCATED_PEAK,
    RESERVED_PEAK,
    Moment,
    identity_of,
    with_outside,
)
from zprof.analysis.memory.blocks.instant import live_at
from zprof.analysis.memory.blocks.outside import Outside, outside_at
from zprof.analysis.memory.blocks.owners import Owners, OwnersAt, tenants_of
from zprof.analysis.memory.blocks.peaks import near, reserved_peak
from zprof.analysis.memory.rank.lives import CODES, Int
from zprof.analysis.memory.rank.tables import checked_frame
from zprof.model.gaps import Gap
from zprof.model.memory import DeviceMemory
from zprof.model.tenants import Tenant
from zprof.model.units import format_bytes
from zprof.run.reader import Run

_HOST = "cpu"
#: Live bytes of the history and of the recording may differ by this share: clocks differ by microseconds.
_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAnswer:
    """``reserved_unused_bytes``: reserved at the allocated peak and not live in the recording;
    ``non_pytorch_bytes``: what the process has beside its allocator."""

    devices: tuple[DeviceMemory, ...] = ()
    reserved_unused_bytes: int | None = None
    non_pytorch_bytes: int | None = None
    gaps: tuple[Gap, ...] = ()


def device_memory(run: Run, rank: int, device: str, peak_time_ns: int, tenants: OwnersAt) -> DeviceAnswer:
    """The leaves of one device of a rank; nothing for the host, which reserves no memory.

    Args:
        run: The recording.
        rank: One of its ranks.
        device: As its tables name it, ``cuda:0``.
        peak_time_ns: When the recording's live bytes were highest.
        tenants: What the recording has live at an instant, see :func:`owners_of`.

    Raises:
        BadInput: a table is damaged.
    """
    if device == _HOST:
        return DeviceAnswer()
    nvml, peak = _frame(run, rank, "device"), tenants(peak_time_ns)
    outside = outside_at(nvml, rank, device, peak_time_ns)
    history = _history(run, rank, device)
    if history is not None and history.begin_ns <= peak_time_ns:
        leaves, gaps = _from_history(history, rank, peak_time_ns, tenants, nvml)
        reserved = leaves[0].reserved_bytes
    else:
        leaves, reserved, gaps = _from_counters(run, rank, device, peak_time_ns, tenants, outside)
    unused = None if reserved is None else reserved - int(peak.bytes.sum())
    if unused is not None and unused < 0:
        gaps.append(_disagreement(rank, device, "more is live than is reserved", -unused))
        unused = None
    return DeviceAnswer(
        devices=tuple(leaves),
        reserved_unused_bytes=unused,
        non_pytorch_bytes=outside.beside_bytes,
        gaps=tuple(dict.fromkeys([*outside.gaps, *gaps])),
    )


def by_tenant(tenant: Int, sizes: Int) -> dict[Tenant, int]:
    """Bytes of each tenant; those of nobody are left out."""
    return {owner: int(sizes[tenant == code].sum()) for owner, code in CODES.items()}


def _from_history(
    history: History, rank: int, peak_time_ns: int, tenants: OwnersAt, nvml: pd.DataFrame | None
) -> tuple[list[DeviceMemory], list[Gap]]:
    moments = [(ALLOCATED_PEAK, near(history, peak_time_ns))]
    highest_ns = reserved_peak(history, history.begin_ns, history.end_ns)
    if highest_ns is not None:
        moments.append((RESERVED_PEAK, highest_ns))
    leaves, gaps = [], []
    for name, time_ns in moments:
        moment = Moment(rank=rank, device=history.device, name=name, time_ns=time_ns)
        outside, owners = outside_at(nvml, rank, history.device, time_ns), tenants(time_ns)
        rows = live_at(history.blocks, time_ns)
        held = by_tenant(tenants_of(history.blocks, rows, owners), history.blocks.requested_bytes[rows])
        leaf, found = identity_of(moment, history, held, outside)
        leaves.append(leaf)
        gaps += [*found, *_agreement(moment, leaf, owners)]
    return leaves, gaps


def _agreement(moment: Moment, leaf: DeviceMemory, owners: Owners) -> list[Gap]:
    """The recording counts whole blocks, the history knows both."""
    blocks, recorded = leaf.live_bytes + (leaf.rounding_bytes or 0), int(owners.bytes.sum())
    if abs(blocks - recorded) <= _TOLERANCE * max(blocks, recorded):
        return []
    what = f"at the {moment.name} the allocator's history and its events differ"
    return [_disagreement(moment.rank, moment.device, what, abs(blocks - recorded))]


def _from_counters(
    run: Run, rank: int, device: str, peak_time_ns: int, tenants: OwnersAt, outside: Outside
) -> tuple[list[DeviceMemory], int | None, list[Gap]]:
    samples, owners = _frame(run, rank, "samples"), tenants(peak_time_ns)
    gaps = [_no_history(rank, device)]
    reserved = None if samples is None else reserved_around(samples, device, peak_time_ns)
    row = None if samples is None else reserved_peak_row(samples, device)
    leaf = _bare_leaf(rank, device, owners, reserved, outside)
    if row is None:
        return [leaf], reserved, gaps
    time_ns = int(row["time_ns"])
    then, nvml = tenants(time_ns), _frame(run, rank, "device")
    highest = coarse_identity(
        rank, device, row, by_tenant(then.tenant, then.bytes), outside_at(nvml, rank, device, time_ns)
    )
    if highest is None:
        gaps.append(_disagreement(rank, device, "counters of a step boundary do not add up", 0))
    return [leaf, *([] if highest is None else [highest])], reserved, gaps


def _bare_leaf(
    rank: int, device: str, owners: Owners, reserved: int | None, outside: Outside
) -> DeviceMemory:
    """The allocated peak where only its live bytes are known: whole blocks, with their rounding."""
    leaf = DeviceMemory(
        rank=rank,
        device=device,
        moment=ALLOCATED_PEAK,
        live_bytes=int(owners.bytes.sum()),
        tenants=by_tenant(owners.tenant, owners.bytes),
        reserved_bytes=reserved,
    )
    return with_outside(leaf, outside)


def _history(run: Run, rank: int, device: str) -> History | None:
    block, segment = _frame(run, rank, "block"), _frame(run, rank, "segment")
    return None if block is None or segment is None else history_of(block, segment, device)


def _frame(run: Run, rank: int, name: str) -> pd.DataFrame | None:
    return checked_frame(run, rank, name) if run.has_table(rank, name) else None


def _no_history(rank: int, device: str) -> Gap:
    return Gap(
        what="where reserved memory is",
        rank=rank,
        reason=f"{device}: no history of the allocator at the peak, only its counters at step boundaries",
        remedy="record a full memory window, and leave torch's memory history to zprof",
    )


def _disagreement(rank: int, device: str, what: str, size: int) -> Gap:
    return Gap(
        what="reserved memory",
        rank=rank,
        reason=f"{device}: {what}" + (f", by {format_bytes(size)}" if size else ""),
        remedy="record again; if it stays, please report it",
    )
