"""One device at one moment as a leaf of the report, from the allocator's terms and those outside of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zprof.analysis.memory.blocks.history import History
from zprof.analysis.memory.blocks.instant import Terms, terms_at
from zprof.analysis.memory.blocks.outside import Outside
from zprof.model.gaps import Gap
from zprof.model.memory import DeviceMemory
from zprof.model.tenants import Tenant
from zprof.model.units import format_bytes

ALLOCATED_PEAK, RESERVED_PEAK = "allocated peak", "reserved peak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A rank's device at a named instant."""

    rank: int
    device: str
    name: str
    time_ns: int


def identity_of(
    moment: Moment, history: History, tenants: Mapping[Tenant, int], outside: Outside
) -> tuple[DeviceMemory, list[Gap]]:
    """The leaf; where the history contradicts itself, its free terms are unknown and a gap says how much.

    Reserved memory is unknown, too, where it is less than the blocks in it.
    """
    terms = terms_at(history, moment.time_ns)
    reserved = terms.reserved_bytes if len(history.stretches) and not _lacks_bytes(terms) else None
    leaf = DeviceMemory(
        rank=moment.rank,
        device=moment.device,
        moment=moment.name,
        live_bytes=terms.live_bytes,
        tenants=tenants,
        rounding_bytes=terms.rounding_bytes,
        awaiting_free_bytes=terms.awaiting_free_bytes,
        split_bytes=terms.split_bytes,
        free_segments_bytes=terms.free_segments_bytes,
        private_pools_bytes=terms.private_pools_bytes,
        reserved_bytes=reserved,
    )
    return with_outside(leaf, outside), _gaps(moment, history, terms, reserved)


def with_outside(leaf: DeviceMemory, outside: Outside) -> DeviceMemory:
    """The leaf with what stands around the allocator."""
    beside, others, process = outside.beside_bytes, outside.other_processes_bytes, outside.process_bytes
    if leaf.reserved_bytes is not None and beside is not None:
        process = leaf.reserved_bytes + beside
    return replace(
        leaf,
        collectives_bytes=outside.collectives_bytes,
        context_bytes=outside.context_bytes,
        process_bytes=process,
        other_processes_bytes=others,
        device_used_bytes=outside.used_bytes if process is None or others is None else process + others,
        device_total_bytes=outside.total_bytes,
        apart_ns=outside.apart_ns,
    )


def _lacks_bytes(terms: Terms) -> int:
    """By how much the blocks that are held are more than all segments; nothing where they can lie in them."""
    held = terms.live_bytes + terms.rounding_bytes + terms.awaiting_free_bytes
    return max(0, held - terms.reserved_bytes)


def _gaps(moment: Moment, history: History, terms: Terms, reserved: int | None) -> list[Gap]:
    if not len(history.stretches):
        reason = f"{moment.device}: the history has no segments"
        return [_gap(moment, "reserved memory", reason, "dump the snapshot with a current torch")]
    gaps = []
    if reserved is None:
        reason = (
            f"{moment.device}: at the {moment.name} blocks are {format_bytes(_lacks_bytes(terms))} more than "
            f"the segments of the snapshot, which are {format_bytes(terms.reserved_bytes)}"
        )
        gaps.append(_gap(moment, "reserved memory", reason, "record from the program's start"))
    if terms.contradiction_bytes:
        reason = (
            f"{moment.device}: at the {moment.name} blocks of {format_bytes(terms.contradiction_bytes)} lie "
            "outside of the segments or in each other, so that its free parts cannot be told"
        )
        gaps.append(_gap(moment, "free memory within segments", reason, "record from the program's start"))
    if history.blocks.understated_bytes:
        size = format_bytes(history.blocks.understated_bytes)
        reason = f"{moment.device}: blocks are smaller than what was asked for, by {size} in all"
        gaps.append(_gap(moment, "rounding of blocks", reason, "record again; if it stays, please report it"))
    return gaps


def _gap(moment: Moment, what: str, reason: str, remedy: str) -> Gap:
    return Gap(what=what, rank=moment.rank, reason=reason, remedy=remedy)
