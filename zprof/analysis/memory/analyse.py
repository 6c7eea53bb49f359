"""The memory side of the report: each rank's peak by tenant, its state bytes, its largest allocations."""

from dataclasses import dataclass

from zprof.analysis.laws import state_law
from zprof.analysis.memory.rank import Peak, RankLives, devices_of, rank_lives
from zprof.analysis.memory.timeline import timeline_of
from zprof.model.gaps import Gap
from zprof.model.memory import Allocation, Memory, RankMemory
from zprof.model.units import format_bytes
from zprof.run.reader import Run

_RECORD = "record again with a memory window: zprof.steps(memory=2)"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAnalysis:
    """What could be said of memory, and what could not."""

    memory: Memory
    gaps: tuple[Gap, ...]


def analyse_memory(run: Run) -> MemoryAnalysis:
    """Analyse every rank that can be loaded.

    Raises:
        BadInput: a table is damaged.
    """
    per_rank: list[RankMemory] = []
    top: list[Allocation] = []
    gaps: list[Gap] = []
    for rank in run.ranks:
        lives = _load(run, rank, gaps)
        if lives is not None:
            device, rank_life = lives
            peak = rank_life.peak()
            per_rank.append(_rank_memory(run, rank, device, rank_life, peak))
            top.extend(rank_life.top(rank, peak.time_ns))
            gaps.extend(_peak_gaps(rank, rank_life, peak))
    if any(memory.device == "cpu" for memory in per_rank):
        gaps.append(_no_device_memory())
    return MemoryAnalysis(memory=Memory(per_rank=tuple(per_rank), top=tuple(top)), gaps=tuple(gaps))


def _load(run: Run, rank: int, gaps: list[Gap]) -> tuple[str, RankLives] | None:
    missing = [name for name in ("alloc", "role", "mark") if not run.has_table(rank, name)]
    if missing:
        gaps.append(_no_memory(rank, f"no table {missing[0]!r} was recorded"))
        return None
    timeline = timeline_of(run.frame(rank, "mark"))
    alloc = run.frame(rank, "alloc")
    if timeline is None or alloc.empty:
        gaps.append(_no_memory(rank, "no memory window was recorded"))
        return None
    device = devices_of(alloc)[0]
    return device, rank_lives(alloc, run.frame(rank, "role"), timeline, device)


def _rank_memory(run: Run, rank: int, device: str, lives: RankLives, peak: Peak) -> RankMemory:
    return RankMemory(
        rank=rank,
        device=device,
        peak_bytes=peak.bytes,
        peak_step=lives.timeline.step_at(peak.time_ns),
        peak_phase=lives.timeline.phase_at(peak.time_ns),
        tenants=peak.tenants,
        untagged_bytes=peak.untagged_bytes,
        reserved_unused_bytes=None,
        non_pytorch_bytes=None,
        formula=state_law(run.manifest.training),
        state_bytes=lives.states(),
        upper_bound=peak.open_bytes > 0,
        method=(
            "allocator events joined with storage roles"
            if lives.has_allocator_events
            else "tensor storages only; what operators allocate inside is missing"
        ),
    )


def _peak_gaps(rank: int, lives: RankLives, peak: Peak) -> list[Gap]:
    gaps: list[Gap] = []
    if peak.open_bytes:
        gaps.append(
            Gap(
                what="end of some allocations",
                rank=rank,
                reason=f"{format_bytes(peak.open_bytes)} of the peak were allocated in "
                f"{', '.join(peak.open_operators[:3])} and no free was seen: the peak is an upper bound",
                remedy="none on a CPU; on a GPU the allocator reports every free",
            )
        )
    if not lives.has_allocator_events:
        gaps.append(
            Gap(
                what="allocator events",
                rank=rank,
                reason="the profiler gave none, so that memory inside operators is not seen",
                remedy="leave torch.profiler to zprof while it records",
            )
        )
    return gaps


def _no_memory(rank: int, reason: str) -> Gap:
    return Gap(what="memory", rank=rank, reason=reason, remedy=_RECORD)


def _no_device_memory() -> Gap:
    return Gap(
        what="reserved and non-PyTorch memory",
        reason="the CPU allocator reserves nothing, and no device counter covers this process",
        remedy="record on a GPU",
    )
