"""Loaded runs whose memory side is made by hand, for the memory screen."""

from msgspec.structs import replace

from tests.support.full_memories import full_memory
from tests.support.memories import MIB, memory_of
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import Memory, MemoryTimeline
from zprof.model.tenants import Tenant
from zprof.tui.session import LoadedRun, PendingAnalysis

NO_MEMORY = Gap(
    kind=GapKind.MEMORY,
    what="memory",
    reason="a trace has the times of a job and not its memory",
    remedy="zprof record -o RUN -- COMMAND",
)


def with_analysis(loaded: LoadedRun, **parts: object) -> LoadedRun:
    """The same run with other tables."""
    return replace(loaded, pending=PendingAnalysis(lambda: replace(loaded.analysis, **parts)))


def with_memory(loaded: LoadedRun, memory: Memory, *gaps: Gap) -> LoadedRun:
    """The same run with another memory, and other gaps."""
    report = replace(loaded.report, memory=memory, gaps=gaps)
    return replace(with_analysis(loaded, memory=memory), report=report)


def on_a_device(memory: Memory | None = None) -> Memory:
    """Every leaf filled: 24 MiB reserved and not used, 100 MiB outside of PyTorch, 512 MiB on the device."""
    memory = memory or full_memory()
    ranks = tuple(
        replace(rank, reserved_unused_bytes=24 * MIB, non_pytorch_bytes=100 * MIB) for rank in memory.per_rank
    )
    devices = tuple(replace(entry, device_total_bytes=512 * MIB) for entry in memory.devices)
    return replace(memory, per_rank=ranks, devices=devices)


def of_ranks(count: int) -> Memory:
    """So many ranks; rank r holds r MiB more of activations, but the last one least."""
    memory = memory_of(3, ranks=count)
    ranks = []
    for rank in memory.per_rank:
        more = rank.rank * MIB if rank.rank < count - 1 else -MIB
        tenants = dict(rank.tenants) | {Tenant.ACTIVATIONS: rank.tenants[Tenant.ACTIVATIONS] + more}
        ranks.append(replace(rank, tenants=tenants, peak_bytes=rank.peak_bytes + more))
    return replace(memory, per_rank=tuple(ranks))


def timeline_of(heights: list[int], every_ns: int = 1000) -> MemoryTimeline:
    """One tenant's timeline."""
    return MemoryTimeline(
        rank=1,
        device="cpu",
        time_ns=tuple(place * every_ns for place in range(len(heights))),
        tenants={"activations": tuple(heights), "untagged": (0,) * len(heights)},
    )
