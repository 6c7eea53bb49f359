"""Change the measured step as fixes of several causes do."""

from collections.abc import Callable, Sequence

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import list_copy_names
from zprof.analysis.time.needless_collectives import (
    Regathers,
    RepeatedGather,
    find_regathers,
    select_gone_with,
)
from zprof.step import edits
from zprof.step.tasks import Floats, Graph, RankGraph


def drop_repeated_gathers(analysis: RunAnalysis, graph: Graph, repeat: RepeatedGather) -> Sequence[Graph]:
    """Return the step without the gathers that are repeated for this reason; empty if there are none."""
    again = find_regathers(analysis, repeat)
    if not isinstance(again, Regathers):
        return []
    return drop_collectives(graph, select_gone_with(again.gathers, repeat).ints("row").tolist())


def drop_collectives(graph: Graph, rows: Sequence[int]) -> Sequence[Graph]:
    """Drop collectives with their copies; the host time before the first call of each remains or shrinks."""
    return [
        edits.drop_collectives(graph, frozenset(rows), keeps_hooks=True),
        edits.drop_collectives(graph, frozenset(rows)),
    ]


def scale_copies(
    analysis: RunAnalysis, ratio: float, are_chosen: Callable[[str], bool] = lambda name: True
) -> Callable[[RankGraph], Floats]:
    """Return the ratios of work of a rank in which the chosen copies take this share of their time."""
    names = frozenset(filter(are_chosen, list_copy_names(analysis)))
    return lambda rank: np.where(rank.tasks.kernel.match(names.__contains__), ratio, 1.0)
