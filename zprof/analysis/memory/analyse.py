"""Analyse the memory of every rank, combine the results, and compare the ranks."""

from collections.abc import Mapping, Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.memory.group_changes import list_group_changes
from zprof.analysis.memory.rank_result import RankMemoryResult
from zprof.analysis.memory.recording import analyse_recorded_rank
from zprof.analysis.memory.state_checks import check_formulas, find_formula_gaps
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import Memory, RankMemory, RankSpread
from zprof.model.tenants import DISPLAY_ORDER, UNTAGGED_NAME
from zprof.model.training import TrainingFacts
from zprof.run.reader import Run

#: Maximum number of ranks whose timelines a report shows; the largest and the smallest peak are included.
_MAX_TIMELINES = 8


class MemoryAnalysis(Struct, frozen=True, kw_only=True):
    """Memory results of all ranks, and their gaps."""

    memory: Memory
    gaps: tuple[Gap, ...]


def analyse_memory(run: Run) -> MemoryAnalysis:
    """Analyse every rank that can be loaded.

    Raises:
        BadInput: a table is damaged.
    """
    if run.manifest.source == "trace" and not any(run.has_table(rank, "alloc") for rank in run.ranks):
        gap = Gap(
            kind=GapKind.MEMORY,
            what="memory",
            reason="a trace has the times of a job but not its memory",
            remedy="run zprof record -o RUN -- COMMAND, or import a CUDA memory snapshot of the same job",
        )
        return MemoryAnalysis(memory=Memory(), gaps=(gap,))
    return combine_ranks(run.manifest.training, [_analyse_rank(run, rank) for rank in run.ranks])


def _analyse_rank(run: Run, rank: int) -> RankMemoryResult:
    """Analyse one rank; a snapshot has an allocator history but no rows from hooks."""
    if run.has_table(rank, "block") and not run.has_table(rank, "alloc"):
        from zprof.analysis.memory.snapshot import analyse_snapshot_rank

        return analyse_snapshot_rank(run, rank)
    return analyse_recorded_rank(run, rank)


def combine_ranks(facts: TrainingFacts, results: Sequence[RankMemoryResult]) -> MemoryAnalysis:
    """Combine the results of the ranks: their leaves, the formula checks, and the spread between ranks."""
    ranks = tuple(memory for result in results for memory in result.per_rank)
    states = tuple(measured for result in results for measured in result.states)
    gaps = [*(gap for result in results for gap in result.gaps), *find_formula_gaps(facts, states)]
    if any(memory.device == "cpu" for memory in ranks):
        gaps.append(
            Gap(
                kind=GapKind.DEVICE_MEMORY,
                what="reserved and non-PyTorch memory",
                reason="the CPU allocator reserves no memory, and no device counter covers this process",
                remedy="record on a GPU",
            )
        )
    # The timelines of the largest ranks and the smallest rank, in rank order.
    timelines = [entry for result in results for entry in result.timelines]
    by_size = [memory.rank for memory in sorted(ranks, key=attrgetter("peak_bytes"), reverse=True)]
    if len(by_size) > _MAX_TIMELINES:
        by_size = [*by_size[: _MAX_TIMELINES - 1], by_size[-1]]
    return MemoryAnalysis(
        memory=Memory(
            per_rank=ranks,
            top=tuple(entry for result in results for entry in result.top),
            phases=tuple(entry for result in results for entry in result.phases),
            modules=tuple(entry for result in results for entry in result.modules),
            spread=_add_groups(find_rank_spread(ranks), results),
            laws=check_formulas(facts, states),
            devices=tuple(entry for result in results for entry in result.devices),
            counters=tuple(entry for result in results for entry in result.counters),
            host=tuple(entry for result in results for entry in result.host),
            init=tuple(entry for result in results for entry in result.init),
            windows=tuple(entry for result in results for entry in result.windows),
            stacks=tuple(entry for result in results for entry in result.stacks),
            growth=tuple(entry for result in results for entry in result.growth),
            out_of_memory=tuple(entry for result in results for entry in result.out_of_memory),
            timelines=tuple(timeline for timeline in timelines if timeline.rank in by_size),
        ),
        gaps=tuple(gaps),
    )


def find_rank_spread(ranks: Sequence[RankMemory]) -> RankSpread | None:
    """Return the difference between the largest and the smallest rank; None for fewer than two ranks.

    The deltas sum to the difference. Among ranks with equal peaks, the first is used.
    """
    if len(ranks) < 2:
        return None
    largest = max(ranks, key=lambda rank: (rank.peak_bytes, -rank.rank))
    smallest = min(
        (rank for rank in ranks if rank is not largest), key=lambda rank: (rank.peak_bytes, rank.rank)
    )
    high, low = _list_bytes_by_tenant(largest), _list_bytes_by_tenant(smallest)
    delta = {name: high[name] - low[name] for name in high}
    tenant = max(delta, key=lambda name: delta[name])
    return RankSpread(
        largest_rank=largest.rank,
        smallest_rank=smallest.rank,
        difference_bytes=largest.peak_bytes - smallest.peak_bytes,
        tenant=tenant if delta[tenant] > 0 else "",
        delta_bytes=delta,
    )


def _add_groups(spread: RankSpread | None, results: Sequence[RankMemoryResult]) -> RankSpread | None:
    """Return the spread with the groups of both ranks if both ranks are snapshots: only those list all."""
    if spread is None or not spread.difference_bytes:
        return spread
    groups = {memory.rank: result.top for result in results if result.growth for memory in result.per_rank}
    if spread.largest_rank not in groups or spread.smallest_rank not in groups:
        return spread
    return replace(
        spread, groups=list_group_changes(groups[spread.smallest_rank], groups[spread.largest_rank])
    )


def _list_bytes_by_tenant(rank: RankMemory) -> Mapping[str, int]:
    bytes_by_name = {tenant.value: rank.tenants.get(tenant, 0) for tenant in DISPLAY_ORDER}
    return bytes_by_name | {UNTAGGED_NAME: rank.untagged_bytes}
