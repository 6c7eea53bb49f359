"""Find the gathers that end a step, those of parameters that the optimizer has just updated, and hide them.

All large gathers (or broadcasts, as of PyTorch's ZeroRedundancyOptimizer) of a step start after its last
reduction of gradients, as in ZeRO stages 1 and 2. The others open a forward or a backward, which needs them.
"""

from collections.abc import Sequence

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups, Mask, find_places
from zprof.analysis.per_step import list_copy_names, mean_per_step
from zprof.analysis.time.collective_rows import select_kind
from zprof.model.collectives import CollectiveKind
from zprof.step import edits
from zprof.step.blocks import count_blocks
from zprof.step.links import read_latencies
from zprof.step.messages import run_beside_ratio
from zprof.step.slowdown import measure_slowdown
from zprof.step.tasks import Graph
from zprof.step.traffic import count_elements, has_known_sizes, select_large, weigh_rows

_SHARING_KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST)
_SCATTERING_KIND = CollectiveKind.REDUCE_SCATTER
_REDUCING_KINDS = (_SCATTERING_KIND, CollectiveKind.ALL_REDUCE)
#: Minimum share of the bytes gathered in all steps; programs that also gather before (stage 3) have less.
_MIN_CLOSING_RATIO = 0.95
#: Minimum size relative to the reductions: less (predictions, metrics) is not parameters.
_MIN_GATHERED_RATIO = 0.10
#: Maximum bytes relative to the reductions: parameters of 32 bits, gradients of 8. More (embeddings) is
#: not the parameters whose gradients were reduced.
_MAX_GATHERED_RATIO = 4.0
#: All-reduced gradients have as many elements as gathered parameters, except for padding and frozen ones.
_SAME_RATIO = 0.10
#: Method of collectives whose launches were not recorded: gloo runs a reduce-scatter as an all-reduce.
_WITHOUT_LAUNCH = "gloo_execution"

#: The forward's share of a step's compute, with and without recomputation, and its minimum slowdown beside
#: gathers, which take SMs and memory bandwidth from it.
_FORWARD_AND_SLOWDOWN_RATIOS = ((0.25, 0.5), (0.35, 0.15))
#: Units before and after a model's blocks: embeddings and head.
_UNITS_AROUND_BLOCKS = 2
#: If more of the time of closing gathers overlaps with compute, they are hidden, at least partly.
_BESIDE_RATIO = 0.1


class ClosingGathers(Struct, frozen=True, kw_only=True):
    """Rows of the collectives: those that share new parameters, and the reductions before them."""

    gathers: Columns
    reductions: Columns
    three_psi: bool


def read_closing_gathers(analysis: RunAnalysis) -> ClosingGathers | None:
    """Return the gathers that share parameters at the end of steps, None if there are none; read once."""
    return analysis.compute_once(_read_closing_gathers)


def _read_closing_gathers(analysis: RunAnalysis) -> ClosingGathers | None:
    rows = select_large(analysis.collectives)
    reductions, gathers = (select_kind(rows, *kinds) for kinds in (_REDUCING_KINDS, _SHARING_KINDS))
    if not len(gathers) or not len(reductions):
        return None
    closing = gathers.at(_begin_after_reductions(gathers, reductions))
    if weigh_rows(closing).sum() < _MIN_CLOSING_RATIO * weigh_rows(gathers).sum():
        return None
    if weigh_rows(closing).sum() < _MIN_GATHERED_RATIO * weigh_rows(reductions).sum():
        return None
    if (
        has_known_sizes(rows)
        and closing.ints("bytes").sum() > _MAX_GATHERED_RATIO * reductions.ints("bytes").sum()
    ):
        return None
    return ClosingGathers(
        gathers=closing,
        reductions=reductions,
        three_psi=has_known_sizes(rows)
        and _is_reduced_in_full(reductions, closing)
        and not any(_WITHOUT_LAUNCH in entry.method for entry in analysis.time.collectives),
    )


def _begin_after_reductions(gathers: Columns, reductions: Columns) -> Mask:
    """Return a mask of the gathers that started after the last reduction of their rank and step."""
    rank, step = reductions.ints("rank"), reductions.ints("step")
    steps = Groups(rank, step)
    places = find_places([gathers.ints("rank"), gathers.ints("step")], [rank[steps.first], step[steps.first]])
    last = steps.max(reductions.ints("start_ns"))[places]
    behind: Mask = (places >= 0) & (gathers.ints("start_ns") > last)
    return behind


def _is_reduced_in_full(reductions: Columns, gathers: Columns) -> bool:
    """Return True if the gathered elements were all-reduced before, and nothing was scattered."""
    scattered, moved_bytes = reductions.texts("kind").equals(_SCATTERING_KIND.value), reductions.ints("bytes")
    if moved_bytes[scattered].sum() > _SAME_RATIO * moved_bytes.sum():
        return False
    return count_elements(reductions.at(~scattered)) >= (1 - _SAME_RATIO) * count_elements(gathers)


def select_gathers(analysis: RunAnalysis) -> frozenset[int]:
    """Return the rows of the collectives that gather from several ranks."""
    gathers = select_kind(analysis.collectives, CollectiveKind.ALL_GATHER)
    return frozenset(gathers.row[gathers.ints("group_size") != 1].tolist())


def select_opening_gathers(analysis: RunAnalysis) -> frozenset[int]:
    """Return the rows of the gathers that a forward or a backward needs, except gathers that end a step."""
    closing = read_closing_gathers(analysis)
    return select_gathers(analysis).difference(closing.gathers.row.tolist() if closing is not None else ())


def hide_closing_gathers(analysis: RunAnalysis, graph: Graph) -> Sequence[Graph]:
    """Return the steps in which the next forward hides the gathers, each block's by the blocks before it."""
    seen = read_closing_gathers(analysis)
    if seen is None:
        return []
    rows = frozenset(seen.gathers.row.tolist())
    if run_beside_ratio(graph, rows) > _BESIDE_RATIO:  # the next forward hides them already
        return [graph]
    slower = measure_slowdown(analysis, graph).factor - 1
    # each block and both ends of the model have a gather of their own
    blocks = count_blocks(graph.ranks[0], list_copy_names(analysis)) + _UNITS_AROUND_BLOCKS
    known = read_latencies(analysis)
    latency_ns = max((known.get_for_row(row) or 0.0 for row in rows), default=0.0)
    splits = max(0.0, blocks - mean_per_step(analysis, len(rows)))
    return [
        edits.hide_under_next_step(
            graph, rows, ratio, slower=max(least, slower), splits=splits, latency_ns=latency_ns
        )
        for ratio, least in _FORWARD_AND_SLOWDOWN_RATIOS
    ]
