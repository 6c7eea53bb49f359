"""Measure and even out work that depends on data: tokens of experts, and attention over long sequences.

Both are compared between ranks that run the same program on other data, kernel by kernel. Ranks that are slow
for other reasons are slow in all kernels. So the work of experts, or of attention, counts as unequal only if
the rest of the compute is much more equal:

    spread = sum over kernels of (largest of the ranks - mean of the ranks) / sum over kernels of the mean

The work of experts is the compute between an all_to_all that dispatches tokens and the next one, which
combines their results. On CPU ranks it is the time of the thread there, in the typical step.
"""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.decomposition import parse_group_ranks
from zprof.model.collectives import CollectiveKind
from zprof.model.mesh import GroupRole
from zprof.step.tasks import NONE, Bools, Floats, Graph, RankGraph, mark_rows

#: Names of attention kernels: FlashAttention, cuDNN, PyTorch, Composable Kernel, AOTriton, xFormers.
_ATTENTION = re.compile(r"flash|fmha|attention|attn_|sdpa|bwd_kernel_d[kq]", re.IGNORECASE)
#: Least spread of attention and of experts: kernels of equal shape, and balanced routers, vary by a few
#: percent.
MIN_ATTENTION_SPREAD_RATIO, MIN_EXPERT_SPREAD_RATIO = 0.08, 0.05
#: Part of the spread that the rest of the compute may have.
_MAX_REST_RATIO = 0.4
_Table = npt.NDArray[np.float64]


class UnequalWork(Struct, frozen=True, kw_only=True):
    """Work of one kind of the ranks of a group, in the replayed steps.

    ``loads``: each rank's sum relative to the mean. ``spread_ratio``, ``rest_ratio``: spread of the work and
    of the rest of the compute. ``mean_ns``: mean work of a rank per step. ``tokens``: each rank's bytes of
    dispatched tokens relative to the mean, if known.
    """

    ranks: tuple[int, ...]
    loads: tuple[float, ...]
    spread_ratio: float
    rest_ratio: float
    mean_ns: float
    tokens: tuple[float, ...] = ()

    @property
    def is_by_data(self) -> bool:
        """True if the rest of the compute is much more equal."""
        return self.rest_ratio <= _MAX_REST_RATIO * self.spread_ratio

    @property
    def heaviest(self) -> int:
        """The rank with the most work."""
        return self.ranks[int(np.argmax(self.loads))]

    @property
    def largest_load(self) -> float:
        """Work of that rank relative to the mean."""
        return max(self.loads)


def is_unequal_by_data(analysis: RunAnalysis, graph: Graph) -> bool:
    """Return True if ranks differ because of their data: tokens of experts, or lengths of sequences."""
    return any(
        each.is_by_data and each.spread_ratio >= least
        for found, least in (
            (measure_attention(analysis, graph), MIN_ATTENTION_SPREAD_RATIO),
            (measure_experts(analysis, graph), MIN_EXPERT_SPREAD_RATIO),
        )
        for each in found
    )


def list_data_peers(analysis: RunAnalysis, graph: Graph) -> list[tuple[RankGraph, ...]]:
    """Return the sets of ranks with the same program and other data: all ranks of a job of one dimension.

    With a mesh, these are the ranks that groups of shards and replicas connect.
    """
    known = {rank.tasks.rank: rank for rank in graph.ranks}
    if analysis.time.mesh is None:
        return [graph.ranks]
    sets: list[set[int]] = []
    for group in analysis.time.mesh.groups:
        if group.role in (GroupRole.SHARD, GroupRole.REPLICA):
            mine = set(group.ranks)
            for other in [each for each in sets if each & mine]:
                sets.remove(other)
                mine |= other
            sets.append(mine)
    return [
        tuple(known[rank] for rank in sorted(each) if rank in known)
        for each in sets
        if len(each & known.keys()) > 1
    ]


def measure_attention(analysis: RunAnalysis, graph: Graph) -> list[UnequalWork]:
    """Return the work of attention of ranks with other data; none if their kernels differ in number."""
    found = []
    for ranks in list_data_peers(analysis, graph):
        chosen = [_mark_attention(rank) for rank in ranks]
        work = _make_table([rank.work_ns[mine] for rank, mine in zip(ranks, chosen, strict=True)])
        rest = _make_table(
            [rank.work_ns[_mark_compute(rank) & ~mine] for rank, mine in zip(ranks, chosen, strict=True)]
        )
        if work is not None and rest is not None:
            found.append(_compare(ranks, work, rest, graph.steps))
    return found


def even_out_attention(analysis: RunAnalysis, graph: Graph) -> Graph:
    """Return the step in which each attention kernel takes the mean of its kind on all ranks of a set."""
    changed = {rank.tasks.rank: rank for rank in graph.ranks}
    for ranks in list_data_peers(analysis, graph):
        names = [np.array(list(rank.tasks.kernel)) for rank in ranks]
        chosen = [_mark_attention(rank) for rank in ranks]
        works = [rank.work_ns.copy() for rank in ranks]
        for name in {str(word) for each, mine in zip(names, chosen, strict=True) for word in each[mine]}:
            places = [mine & (each == name) for each, mine in zip(names, chosen, strict=True)]
            mean = np.concatenate([work[at] for work, at in zip(works, places, strict=True)]).mean()
            for work, at in zip(works, places, strict=True):
                work[at] = mean
        for rank, work in zip(ranks, works, strict=True):
            changed[rank.tasks.rank] = replace(rank, work_ns=work)
    return replace(graph, ranks=tuple(changed[rank.tasks.rank] for rank in graph.ranks))


def measure_experts(analysis: RunAnalysis, graph: Graph) -> list[UnequalWork]:
    """Return the work of experts in each group whose ranks have the same exchanges."""
    found = []
    for ranks, exchanges in _list_expert_groups(analysis, graph):
        pairs = list(zip(ranks, exchanges, strict=True))
        work: _Table | None = np.array([_sum_between(*each) for each in pairs], dtype=np.float64)
        if graph.has_kernels:
            inside = [_mark_between(*each) for each in pairs]
            marked = [_mark_compute(rank) & ~mine for rank, mine in zip(ranks, inside, strict=True)]
            rest = _make_table([rank.work_ns[each] for rank, each in zip(ranks, marked, strict=True)])
        else:
            work = _find_typical_step(work, graph.steps)
            rest = _find_typical_step(np.array([_sum_outside(*each) for each in pairs]), graph.steps)
        if rest is not None and work is not None and work.sum() > 0:
            compared = _compare(ranks, work, rest, graph.steps if graph.has_kernels else 1)
            found.append(replace(compared, tokens=_sum_tokens(analysis, ranks, exchanges)))
    return found


def even_out_experts(analysis: RunAnalysis, graph: Graph) -> list[Graph]:
    """Return the step with equal work of experts; and with equal messages, and equal compute elsewhere too.

    Gradients of experts may be computed outside of the exchanges (zero-bubble schedules).
    """
    groups = _list_expert_groups(analysis, graph)
    if not groups:
        return []
    equal = {rank.tasks.rank: rank for rank in graph.ranks}
    whole = dict(equal)
    transfer_ns = graph.transfer_ns.copy()
    for ranks, exchanges in groups:
        work = np.array([_sum_between(rank, each) for rank, each in zip(ranks, exchanges, strict=True)])
        ratios = work.mean(axis=0) / np.maximum(1.0, work)
        bytes_of = np.array([_read_bytes(analysis, r, e) for r, e in zip(ranks, exchanges, strict=True)])
        fewer = bytes_of.mean(axis=0) / np.maximum(1.0, bytes_of.max(axis=0))
        everything = _make_table([rank.work_ns[_mark_compute(rank)] for rank in ranks])
        for index, (rank, pairs) in enumerate(zip(ranks, exchanges, strict=True)):
            own, all_equal = rank.work_ns.copy(), rank.work_ns.copy()
            computes = _mark_compute(rank)
            for number, (begin, end) in enumerate(pairs):
                inside = slice(begin + 1, end)
                own[inside] = np.where(computes[inside], own[inside] * ratios[index, number], own[inside])
                all_equal[inside] = own[inside]
                for at in (begin, end):
                    all_equal[at] *= fewer[number]
                    collective = int(rank.collective[at])
                    transfer_ns[collective] = graph.transfer_ns[collective] * fewer[number]
            if everything is not None:
                all_equal[computes] = everything.mean(axis=0)
            equal[rank.tasks.rank] = replace(rank, work_ns=own)
            whole[rank.tasks.rank] = replace(rank, work_ns=all_equal)
    return [
        replace(graph, ranks=tuple(equal[rank.tasks.rank] for rank in graph.ranks)),
        replace(graph, ranks=tuple(whole[rank.tasks.rank] for rank in graph.ranks), transfer_ns=transfer_ns),
    ]


def _list_expert_groups(
    analysis: RunAnalysis, graph: Graph
) -> list[tuple[tuple[RankGraph, ...], list[list[tuple[int, int]]]]]:
    """Return the ranks of each group that exchanges tokens with its pairs of exchanges.

    All ranks must have the same number. If experts are spread over all ranks, tokens may travel in the group
    that also reduces gradients.
    """
    rows = analysis.collectives
    if not len(rows):
        return []
    mesh, exchanges_tokens = analysis.time.mesh, rows.texts("kind").equals(CollectiveKind.ALL_TO_ALL)
    others = {group.group for group in mesh.groups if group.role is GroupRole.CONTEXT} if mesh else set()
    known = {rank.tasks.rank: rank for rank in graph.ranks}
    found = []
    for name in rows.texts("group").at(exchanges_tokens).list_distinct():
        if name in others:
            continue
        ranks = tuple(known[rank] for rank in sorted(parse_group_ranks(name)) if rank in known)
        chosen = frozenset(rows.row[exchanges_tokens & rows.texts("group").equals(name)].tolist())
        exchanges = [_pair_exchanges(rank, chosen) for rank in ranks]
        if len(ranks) > 1 and exchanges[0] and len({len(each) for each in exchanges}) == 1:
            found.append((ranks, exchanges))
    return found


def _pair_exchanges(rank: RankGraph, rows: frozenset[int]) -> list[tuple[int, int]]:
    """Return the tasks that dispatch and combine, in the order of launches; both are of the same step."""
    at = np.flatnonzero(mark_rows(rank, rows))
    pairs: list[tuple[int, int]] = []
    for step in np.unique(rank.tasks.step[at]).tolist():
        mine = at[rank.tasks.step[at] == step]
        if len(mine) % 2:
            return []
        pairs += zip(mine[::2].tolist(), mine[1::2].tolist(), strict=True)
    return pairs


def _mark_between(rank: RankGraph, pairs: Sequence[tuple[int, int]]) -> Bools:
    inside = np.zeros(len(rank.tasks), dtype=np.bool_)
    for begin, end in pairs:
        inside[begin + 1 : end] = True
    return inside


def _sum_between(rank: RankGraph, pairs: Sequence[tuple[int, int]]) -> list[float]:
    work = np.where(_mark_compute(rank), rank.work_ns, 0.0)
    return [float(work[begin + 1 : end].sum()) for begin, end in pairs]


def _sum_outside(rank: RankGraph, pairs: Sequence[tuple[int, int]]) -> list[float]:
    """Return the compute before each pair, since the pair before it or the start of the step."""
    sums = np.concatenate(([0.0], np.cumsum(np.where(_mark_compute(rank), rank.work_ns, 0.0))))
    first = np.searchsorted(rank.tasks.step, rank.tasks.step[[begin for begin, _ in pairs]])
    since = np.maximum(first, np.array([0, *(end for _, end in pairs[:-1])]))
    return [float(sums[begin] - sums[at]) for (begin, _), at in zip(pairs, since.tolist(), strict=True)]


def _find_typical_step(table: _Table | None, steps: int) -> _Table | None:
    """Return the median over the steps of each piece, ranks as rows; None if steps have unequal pieces.

    A CPU rank that loses its processor for a moment has other work in one step, not in most of them.
    """
    if table is None or table.shape[1] % steps:
        return None
    typical: _Table = np.median(table.reshape(len(table), steps, -1), axis=1)
    return typical


def _read_bytes(analysis: RunAnalysis, rank: RankGraph, pairs: Sequence[tuple[int, int]]) -> list[float]:
    """Return the bytes that a rank sends back in each pair: its experts' tokens."""
    sizes = analysis.collectives.ints("bytes")
    place = dict(zip(analysis.collectives.row.tolist(), range(len(sizes)), strict=True))
    return [float(sizes[place[int(rank.tasks.row[end])]]) for _, end in pairs]


def _sum_tokens(
    analysis: RunAnalysis, ranks: Sequence[RankGraph], exchanges: Sequence[Sequence[tuple[int, int]]]
) -> tuple[float, ...]:
    sums = np.array([sum(_read_bytes(analysis, r, e)) for r, e in zip(ranks, exchanges, strict=True)])
    return tuple((sums / sums.mean()).tolist()) if sums.mean() > 0 else ()


def _compare(ranks: Sequence[RankGraph], work: _Table, rest: _Table, steps: int) -> UnequalWork:
    sums = work.sum(axis=1)
    return UnequalWork(
        ranks=tuple(rank.tasks.rank for rank in ranks),
        loads=tuple((sums / max(1.0, float(sums.mean()))).tolist()),
        spread_ratio=_measure_spread(work),
        rest_ratio=_measure_spread(rest),
        mean_ns=float(sums.mean()) / max(1, steps),
    )


def _measure_spread(work: _Table) -> float:
    mean = work.mean(axis=0)
    return float((work.max(axis=0) - mean).sum() / max(1.0, float(mean.sum())))


def _mark_compute(rank: RankGraph) -> Bools:
    marked: Bools = (rank.collective == NONE) & (rank.stream != NONE)
    return marked


def _mark_attention(rank: RankGraph) -> Bools:
    marked: Bools = _mark_compute(rank) & rank.tasks.kernel.match(_is_attention)
    return marked


def _is_attention(name: str) -> bool:
    return _ATTENTION.search(name) is not None


def _make_table(works: Sequence[Floats]) -> _Table | None:
    """Return the ranks' times as rows; None without any, or if ranks have different numbers of them."""
    if len({len(work) for work in works}) != 1 or not len(works[0]):
        return None
    return np.array(works, dtype=np.float64)
