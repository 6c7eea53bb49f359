"""Make the memory side of the report: analyse every rank, combine the results, and compare the ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from zprof.analysis.memory.rank_result import RankMemoryResult
from zprof.analysis.memory.recording import analyse_recorded_rank
from zprof.analysis.memory.snapshot import analyse_snapshot_rank
from zprof.analysis.memory.state_checks import check_formulas, find_formula_gaps
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import Memory, MemoryTimeline, RankMemory, RankSpread
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.training import TrainingFacts
from zprof.run.reader import Run

#: Maximum number of ranks whose timelines a report shows; the largest and the smallest peak are included.
_MAX_TIMELINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAnalysis:
    """Memory side of the report, and the gaps in it."""

    memory: Memory
    gaps: tuple[Gap, ...]


def analyse_memory(run: Run) -> MemoryAnalysis:
    """Analyse every rank that can be loaded.

    Raises:
        BadInput: a table is damaged.
    """
    if run.manifest.source == "trace" and not any(run.has_table(rank, "alloc") for rank in run.ranks):
        return MemoryAnalysis(memory=Memory(), gaps=(_only_time_gap(),))
    return combine_ranks(run.manifest.training, [_analyse_rank(run, rank) for rank in run.ranks])


def _analyse_rank(run: Run, rank: int) -> RankMemoryResult:
    """Analyse one rank; a snapshot has an allocator's history and no rows from hooks."""
    if run.has_table(rank, "block") and not run.has_table(rank, "alloc"):
        return analyse_snapshot_rank(run, rank)
    return analyse_recorded_rank(run, rank)


def _only_time_gap() -> Gap:
    return Gap(
        kind=GapKind.MEMORY,
        what="memory",
        reason="a trace has the times of a job and not its memory",
        remedy="zprof record -o RUN -- COMMAND, or a CUDA memory snapshot of the same job",
    )


def combine_ranks(facts: TrainingFacts, answers: Sequence[RankMemoryResult]) -> MemoryAnalysis:
    """Combine the results of the ranks: their leaves, the formula checks, and the spread between ranks."""
    ranks = tuple(memory for answer in answers for memory in answer.per_rank)
    states = tuple(measured for answer in answers for measured in answer.states)
    gaps = [*(gap for answer in answers for gap in answer.gaps), *find_formula_gaps(facts, states)]
    if any(memory.device == "cpu" for memory in ranks):
        gaps.append(_no_device_memory_gap())
    return MemoryAnalysis(
        memory=Memory(
            per_rank=ranks,
            top=tuple(entry for answer in answers for entry in answer.top),
            phases=tuple(entry for answer in answers for entry in answer.phases),
            modules=tuple(entry for answer in answers for entry in answer.modules),
            spread=find_rank_spread(ranks),
            laws=check_formulas(facts, states),
            devices=tuple(entry for answer in answers for entry in answer.devices),
            counters=tuple(entry for answer in answers for entry in answer.counters),
            host=tuple(entry for answer in answers for entry in answer.host),
            init=tuple(entry for answer in answers for entry in answer.init),
            timelines=_choose_timelines(ranks, [entry for answer in answers for entry in answer.timelines]),
        ),
        gaps=tuple(gaps),
    )


def _choose_timelines(
    ranks: Sequence[RankMemory], timelines: Sequence[MemoryTimeline]
) -> tuple[MemoryTimeline, ...]:
    """Return the timelines of the largest ranks and the smallest, in rank order."""
    by_size = [memory.rank for memory in sorted(ranks, key=attrgetter("peak_bytes"), reverse=True)]
    if len(by_size) > _MAX_TIMELINES:
        by_size = [*by_size[: _MAX_TIMELINES - 1], by_size[-1]]
    return tuple(timeline for timeline in timelines if timeline.rank in by_size)


def _no_device_memory_gap() -> Gap:
    return Gap(
        kind=GapKind.DEVICE_MEMORY,
        what="reserved and non-PyTorch memory",
        reason="the CPU allocator reserves nothing, and no device counter covers this process",
        remedy="record on a GPU",
    )


UNTAGGED_NAME = "untagged"


def find_rank_spread(ranks: Sequence[RankMemory]) -> RankSpread | None:
    """Return the difference between the largest and the smallest rank; None for fewer than two ranks.

    The deltas sum to the difference. Of ranks with equal peaks the first is used.
    """
    if len(ranks) < 2:
        return None
    largest = max(ranks, key=lambda rank: (rank.peak_bytes, -rank.rank))
    smallest = min(
        (rank for rank in ranks if rank is not largest), key=lambda rank: (rank.peak_bytes, rank.rank)
    )
    high, low = _bytes_by_tenant(largest), _bytes_by_tenant(smallest)
    delta = {name: high[name] - low[name] for name in high}
    tenant = max(delta, key=lambda name: delta[name])
    return RankSpread(
        largest_rank=largest.rank,
        smallest_rank=smallest.rank,
        difference_bytes=largest.peak_bytes - smallest.peak_bytes,
        tenant=tenant if delta[tenant] > 0 else "",
        delta_bytes=delta,
    )


def _bytes_by_tenant(rank: RankMemory) -> Mapping[str, int]:
    held = {tenant.value: rank.tenants.get(tenant, 0) for tenant in DISPLAY_ORDER}
    return held | {UNTAGGED_NAME: rank.untagged_bytes}
