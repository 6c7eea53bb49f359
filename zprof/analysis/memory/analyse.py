"""Analyse the memory of every rank, combine the results, and compare ranks or runs by place of allocation.

A place is matched by file name, line, function and operator; if code was moved, by its order in the function.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.memory.recording import analyse_recorded_rank
from zprof.analysis.memory.state_checks import RankMemoryResult, check_formulas, find_formula_gaps
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.memory import Allocation, GroupChange, Memory, RankMemory, RankSpread
from zprof.model.tenants import DISPLAY_ORDER, UNTAGGED_NAME
from zprof.model.training import TrainingFacts
from zprof.run.reader import Run

#: Maximum number of ranks whose timelines a report shows; the largest and the smallest peak are included.
_MAX_TIMELINES = 8
#: Owner, kind of group, file name and function, line, operator.
_Key = tuple[str, str, str, str, int, str]
_MERGED, _BEFORE, _PLACE = "merged", "before", "place"


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
        return MemoryAnalysis(memory=Memory(), gaps=(make_gap("memory_not_in_traces"),))
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
        gaps.append(make_gap("no_device_memory_on_cpu"))
    # The timelines of the largest ranks and the smallest rank, in rank order.
    timelines = [entry for result in results for entry in result.timelines]
    by_size = [memory.rank for memory in sorted(ranks, key=attrgetter("peak_bytes"), reverse=True)]
    if len(by_size) > _MAX_TIMELINES:
        by_size = [*by_size[: _MAX_TIMELINES - 1], by_size[-1]]
    formulas = check_formulas(facts, states)
    return MemoryAnalysis(
        memory=Memory(
            per_rank=ranks,
            top=tuple(entry for result in results for entry in result.top),
            phases=tuple(entry for result in results for entry in result.phases),
            modules=tuple(entry for result in results for entry in result.modules),
            spread=_add_groups(find_rank_spread(ranks), results),
            formulas=formulas,
            laws=formulas,
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


class _Side(Struct):
    """The bytes and blocks of one place in one snapshot, and its frame."""

    where: str
    bytes: int = 0
    blocks: int = 0


def compare_groups(a: Memory, b: Memory) -> tuple[GroupChange, ...]:
    """Return the changes of all groups, largest first, of either sign; empty unless both are snapshots."""
    ranks = _find_largest_rank(a), _find_largest_rank(b)
    if not all(rank and memory.is_history(rank.rank) for rank, memory in zip(ranks, (a, b), strict=True)):
        return ()
    sides = (
        [entry for entry in memory.top if rank and entry.rank == rank.rank]
        for rank, memory in zip(ranks, (a, b), strict=True)
    )
    return list_group_changes(*sides)


def find_group_phases(a: Memory, b: Memory) -> tuple[str, str]:
    """Return the phases of the two peaks whose groups are compared; empty if unknown."""
    ranks = _find_largest_rank(a), _find_largest_rank(b)
    before, after = (rank.peak_phase if rank else "" for rank in ranks)
    return before, after


def _find_largest_rank(memory: Memory) -> RankMemory | None:
    return max(memory.per_rank, key=lambda entry: (entry.peak_bytes, -entry.rank), default=None)


def list_group_changes(a: Sequence[Allocation], b: Sequence[Allocation]) -> tuple[GroupChange, ...]:
    """Return the changes of all groups of two ranks of snapshots, largest first, of either sign."""
    before, after = _sum_places(a), _sum_places(b)
    # Rename places of ``a`` whose line ``b`` lacks, if both have as many such places in that function.
    moved: dict[tuple[str, ...], tuple[list[_Key], list[_Key]]] = {}
    for index, (own, other) in enumerate(((before, after), (after, before))):
        for key in sorted(key for key in own if key not in other and key[2] == _PLACE):
            moved.setdefault((*key[:4], key[5]), ([], []))[index].append(key)
    for old, new in moved.values():
        if len(old) == len(new):
            for old_key, new_key in zip(old, new, strict=True):
                before[new_key] = before.pop(old_key)
    changes = (_make_change(key, before.get(key), after.get(key)) for key in {**after, **before})
    return tuple(sorted(changes, key=_rank_change))


def _rank_change(change: GroupChange) -> tuple[int, int, str, str, str]:
    """Return the sort key: the largest change first, and of equal ones the growth."""
    delta = change.delta_bytes
    return (-abs(delta), -delta, change.tenant, change.where, change.operator)


def _sum_places(groups: Iterable[Allocation]) -> dict[_Key, _Side]:
    sides: dict[_Key, _Side] = {}
    for entry in groups:
        side = sides.setdefault(_make_key(entry), _Side(entry.where))
        side.bytes += entry.held_bytes
        side.blocks += entry.count
    return sides


def _make_key(entry: Allocation) -> _Key:
    if entry.groups > 1:
        return (entry.tenant, "", _MERGED, "", 0, "")
    if entry.before:
        return (entry.tenant, entry.sub, _BEFORE, "", 0, "")
    location, _, function = entry.where.partition(" ")
    path, _, line = location.rpartition(":")
    name = path.replace("\\", "/").rpartition("/")[2]
    number = int(line) if line.isascii() and line.isdigit() and len(line) < 10 else 0
    return (entry.tenant, entry.sub, _PLACE, f"{name} {function}", number, entry.operator)


def _make_change(key: _Key, a: _Side | None, b: _Side | None) -> GroupChange:
    tenant, sub, kind, _, _, operator = key
    shown = b or a
    return GroupChange(
        tenant=tenant,
        sub=sub,
        where=shown.where if shown else "",
        operator=operator,
        a_bytes=a.bytes if a else 0,
        b_bytes=b.bytes if b else 0,
        a_blocks=a.blocks if a else 0,
        b_blocks=b.blocks if b else 0,
        before_history=kind == _BEFORE,
        merged=kind == _MERGED,
    )
