"""A memory side with every leaf filled: two ranks with a GPU each, sums that hold, and names from the run."""

from msgspec.structs import replace

from tests.support.memories import MIB, memory_of
from zprof.model.memory import (
    Allocation,
    AllocatorCounters,
    Basis,
    DeviceMemory,
    Memory,
    MemoryPart,
    MemoryTimeline,
    ModulePeak,
    PhasePeak,
    RankMemory,
    RankSpread,
)
from zprof.model.tenants import Tenant

GIB = 1 << 30


def full_memory(module: str = "blocks.3.mlp") -> Memory:
    """Stage 3 on two ranks; ``module`` is a name from the run."""
    plain = memory_of(3, module=module)
    ranks = tuple(replace(rank, device="cuda:0", parts=_parts(rank)) for rank in plain.per_rank)
    first = ranks[1]
    return Memory(
        per_rank=ranks,
        top=tuple(_top(module)),
        phases=_phases(first),
        modules=(
            ModulePeak(rank=1, module="", peak_bytes=40 * MIB, at_rank_peak_bytes=36 * MIB),
            ModulePeak(rank=1, module=module, peak_bytes=8 * MIB, at_rank_peak_bytes=6 * MIB),
        ),
        spread=RankSpread(
            largest_rank=1,
            smallest_rank=0,
            difference_bytes=1024,
            tenant="temporary_buffers",
            delta_bytes={"temporary_buffers": 1024, "activations": 0, "untagged": 0},
        ),
        formulas=plain.formulas,
        laws=plain.laws,
        devices=tuple(_device(first, moment) for moment in ("allocated peak", "reserved peak")),
        counters=(
            AllocatorCounters(
                rank=1,
                device="cuda:0",
                peak_allocated_bytes=first.peak_bytes,
                peak_reserved_bytes=first.peak_bytes + 24 * MIB,
                retries=3,
                ooms=0,
            ),
        ),
        host=(_host(first),),
        init=(replace(first, peak_bytes=2 * first.peak_bytes, upper_bound=True),),
        timelines=(_timeline(first),),
    )


def by_sizes(memory: Memory) -> Memory:
    """The same, as if read from a snapshot: most tenants by the sizes of blocks."""
    ranks = tuple(
        replace(
            rank,
            peak_step=-1,
            peak_phase="",
            formula=None,
            state_bytes=None,
            parts=tuple(_sized(part) for part in rank.parts),
            basis_bytes={
                Basis.TAGGED: 0,
                Basis.SIZES: rank.peak_bytes - rank.untagged_bytes,
                Basis.UNKNOWN: rank.untagged_bytes,
            },
            method="sizes",
        )
        for rank in memory.per_rank
    )
    top = tuple(replace(entry, basis=Basis.SIZES) for entry in memory.top)
    left = {name: () for name in ("phases", "formulas", "laws", "init", "host", "counters")}
    return replace(memory, per_rank=ranks, top=top, **left)


def _sized(part: MemoryPart) -> MemoryPart:
    return part if part.basis is Basis.UNKNOWN else replace(part, basis=Basis.SIZES)


def _parts(rank: RankMemory) -> tuple[MemoryPart, ...]:
    subs = {
        Tenant.PARAMETERS: "weight",
        Tenant.GRADIENTS: "grad",
        Tenant.OPTIMIZER_STATE: "state",
        Tenant.ACTIVATIONS: "saved",
        Tenant.TEMPORARY_BUFFERS: "act_grad",
        Tenant.COMMUNICATION_BUFFERS: "gathered_param",
    }
    parts = [MemoryPart(tenant=t.value, sub=subs[t], bytes=size) for t, size in rank.tenants.items()]
    unknown = MemoryPart(tenant="untagged", sub="", bytes=rank.untagged_bytes, basis=Basis.UNKNOWN)
    return (*parts, unknown)


def _top(module: str) -> list[Allocation]:
    stack = ("model.py:33 forward", "train.py:12 step", "train.py:40 <module>", "a:1 b", "c:2 d")
    return [
        Allocation(
            rank=rank,
            bytes=6 * MIB,
            tenant="activations",
            sub="saved",
            module=module,
            stack=tuple(f"{frame} {module}" for frame in stack),
            operator=f"aten::mm {module}",
        )
        for rank in (0, 1)
    ]


def _phases(rank: RankMemory) -> tuple[PhasePeak, ...]:
    return tuple(
        PhasePeak(
            rank=1,
            phase=phase,
            step=3,
            peak_bytes=rank.peak_bytes,
            tenants=rank.tenants,
            untagged_bytes=rank.untagged_bytes,
        )
        for phase in ("forward", "backward", "optimizer")
    )


def _device(rank: RankMemory, moment: str) -> DeviceMemory:
    free = 8 * MIB if moment == "allocated peak" else 24 * MIB
    reserved = rank.peak_bytes + 4 * MIB + free
    process = reserved + 900 * MIB
    return DeviceMemory(
        rank=1,
        device="cuda:0",
        moment=moment,
        live_bytes=rank.peak_bytes,
        tenants=rank.tenants,
        rounding_bytes=1 * MIB,
        awaiting_free_bytes=1 * MIB,
        split_bytes=2 * MIB,
        free_segments_bytes=free,
        private_pools_bytes=0,
        reserved_bytes=reserved,
        collectives_bytes=600 * MIB,
        context_bytes=300 * MIB,
        process_bytes=process,
        other_processes_bytes=None,
        device_used_bytes=None,
        device_total_bytes=140 * GIB,
        apart_ns=40_000_000,
    )


def _host(rank: RankMemory) -> RankMemory:
    held = {tenant: 0 for tenant in Tenant} | {Tenant.ACTIVATIONS: 5 * MIB}
    return replace(
        rank, device="cpu", peak_bytes=5 * MIB, tenants=held, untagged_bytes=0, parts=(), formula=None
    )


def _timeline(rank: RankMemory) -> MemoryTimeline:
    share = (0.5, 1.0, 0.7, 0.4)
    tenants = {t.value: tuple(int(size * s) for s in share) for t, size in rank.tenants.items()}
    return MemoryTimeline(
        rank=1,
        device="cuda:0",
        time_ns=(0, 10_000_000, 20_000_000, 30_000_000),
        tenants=tenants | {"untagged": (rank.untagged_bytes,) * 4},
        steps=((0, 2), (20_000_000, 3)),
        phases=((0, "forward"), (10_000_000, "backward"), (20_000_000, "optimizer")),
    )
