"""Compare the stages of a pipeline: how fast each stage runs a kernel, and how many kernels it runs.

    time of a stage = pace * work        work = its time at the pace of the reference stage

The reference is the stage with the lower median time. The pace is the time of one call against the reference,
as the weighted median over kernel names. A name whose calls are equally many on both stages does the same
work on both; other names count only if there are no such names, because a mix of forward and backward calls
has another mean. Stages are compared within each pipeline, then over the pipelines by the lower median: a
single slow rank of a stage changes nothing.

Kernels that run less than once per micro-batch (optimizer, norms) are left out: they are not part of a pass.

On CPU ranks, the main thread's outermost operators replace kernels. Their time is calls * median of one call:
an operator that lost its processor takes many times longer, which says nothing about its stage.
"""

import re
from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Floats
from zprof.analysis.intervals import Int64s
from zprof.model.mesh import Bubble, GroupRole, MeshGroup

#: Counts of calls per step are equal up to this share.
_SAME_COUNT_RATIO = 0.01
#: Names with as many calls decide the pace if they have this share of the time.
_MIN_SAME_RATIO = 0.02
#: Share of the calls of all names that run more often if a forward is computed again.
_MIN_FORWARD_RATIO = 0.5
_ATTENTION = re.compile(r"flash|attention|attn|fmha|sdpa", re.IGNORECASE)
_MAX_NAMES = 3


class ExtraWork(StrEnum):
    """What a stage runs more of than the reference stage."""

    #: All kernels of a layer, in the same proportion.
    LAYERS = "layers"
    #: Kernels that other stages run rarely or never: head, loss, embedding.
    OWN_KERNELS = "own_kernels"
    #: Kernels of the forward pass, but not more of the backward's.
    FORWARD = "forward"


class Stage(Struct, frozen=True, kw_only=True):
    """One stage of a pipeline, means per step over its ranks.

    ``busy_ns``: kernels of its passes. ``pace_ratio``: time of the same work against the reference stage.
    ``work_ns``: ``busy_ns`` at the pace of the reference. ``calls``: kernels. ``extra``, ``extra_names``: the
    kernels that it runs more often than the reference, by decreasing time.
    """

    stage: int
    ranks: tuple[int, ...]
    busy_ns: float
    pace_ratio: float
    calls: float
    extra: ExtraWork | None = None
    extra_names: tuple[str, ...] = ()

    @property
    def work_ns(self) -> float:
        """Its time at the pace of the reference stage."""
        return self.busy_ns / self.pace_ratio


class Stages(Struct, frozen=True, kw_only=True):
    """The stages of a job in order; ``reference``: number of the stage with the lower median time."""

    stages: tuple[Stage, ...]
    reference: int
    bubble: Bubble

    def find_slowest(self) -> Stage:
        """Return the stage with the slowest pace."""
        return max(self.stages, key=lambda stage: stage.pace_ratio)

    def find_fullest(self) -> Stage:
        """Return the stage with the most work."""
        return max(self.stages, key=lambda stage: stage.work_ns)

    @property
    def mean_work_ns(self) -> float:
        """Work of each stage after an equal split."""
        return float(np.mean([stage.work_ns for stage in self.stages]))

    @property
    def gain_of_equal_split_ns(self) -> float:
        """What an equal split of the work wins per step: all passes but one run one after another."""
        return max(0.0, self.find_fullest().work_ns - self.mean_work_ns) * self._repeated_ratio

    @property
    def gain_of_split_by_pace_ns(self) -> float:
        """What a split wins in which stages take equally long although their paces differ."""
        each_ns = sum(stage.work_ns for stage in self.stages) / sum(
            1 / stage.pace_ratio for stage in self.stages
        )
        longest_ns = max(stage.busy_ns for stage in self.stages)
        return max(0.0, longest_ns - each_ns) * self._repeated_ratio

    @property
    def _repeated_ratio(self) -> float:
        passes = self.bubble.micro_batches * self.bubble.virtual
        return (passes - 1) / passes


class _Kernels(Struct, frozen=True, kw_only=True):
    """Calls and time per step of each kernel or operator name (rows) on each rank (columns)."""

    names: tuple[str, ...]
    ranks: Int64s
    calls: Floats
    times_ns: Floats

    def of(self, rank: int) -> int:
        """Return the column of a rank."""
        return int(np.searchsorted(self.ranks, rank))


def measure_stages(analysis: RunAnalysis) -> Stages | None:
    """Return the stages of a job; None without a pipeline, without kernels or if ranks are missing."""
    return analysis.compute_once(_measure_stages)


def list_lanes(groups: Sequence[MeshGroup]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each pipeline, by stage; pipelines of another length are left out."""
    pipelines = [group.ranks for group in groups if group.role is GroupRole.PIPELINE]
    longest = max(map(len, pipelines), default=0)
    return tuple(dict.fromkeys(ranks for ranks in pipelines if len(ranks) == longest))


def _measure_stages(analysis: RunAnalysis) -> Stages | None:
    mesh = analysis.time.mesh
    lanes = list_lanes(mesh.groups) if mesh is not None else ()
    if mesh is None or mesh.bubble is None or not lanes or not len(analysis.kernels):
        return None
    kernels = _read_kernels(analysis, mesh.bubble.micro_batches)
    if not len(kernels.names) or not {rank for lane in lanes for rank in lane} <= set(kernels.ranks.tolist()):
        return None
    places = np.array([[kernels.of(rank) for rank in lane] for lane in lanes])
    busy = kernels.times_ns.sum(axis=0)[places]
    typical = np.median(busy, axis=0)
    reference = int(np.argsort(typical, kind="stable")[(len(typical) - 1) // 2])
    stages = []
    for number in range(places.shape[1]):
        paces = [_measure_pace(kernels, lane[number], lane[reference]) for lane in places]
        middle = sorted(paces)[(len(paces) - 1) // 2]
        lane = places[paces.index(middle)]
        extra, names = _find_extra_work(kernels, lane[number], lane[reference])
        stages.append(
            Stage(
                stage=number,
                ranks=tuple(sorted(lane[number] for lane in lanes)),
                busy_ns=float(np.sort(busy[:, number])[(len(lanes) - 1) // 2]),
                pace_ratio=middle,
                calls=float(kernels.calls[:, lane[number]].sum()),
                extra=extra,
                extra_names=names,
            )
        )
    return Stages(stages=tuple(stages), reference=reference, bubble=mesh.bubble)


def _read_kernels(analysis: RunAnalysis, micro_batches: int) -> _Kernels:
    """Return the kernels of passes: called at least once per micro-batch on some rank."""
    rows = analysis.kernels.at(analysis.kernels.texts("role").equals("compute"))
    ranks, steps = np.unique(analysis.steps.ints("rank"), return_counts=True)
    names = rows.texts("name").list_distinct()
    number = {name: place for place, name in enumerate(names)}
    calls, times = np.zeros((len(names), len(ranks))), np.zeros((len(names), len(ranks)))
    at = np.array([number[name] for name in rows.texts("name")], dtype=np.int64)
    known = np.isin(rows.ints("rank"), ranks)
    column = np.searchsorted(ranks, rows.ints("rank")[known])
    np.add.at(calls, (at[known], column), rows.ints("count")[known])
    is_on_cpu = analysis.run.device == "cpu"
    times_ns = rows.ints("count") * rows.floats("median_ns") if is_on_cpu else rows.floats("total_ns")
    np.add.at(times, (at[known], column), times_ns[known])
    calls, times = calls / steps, times / steps
    kept = np.flatnonzero(calls.max(axis=1, initial=0.0) >= micro_batches)
    return _Kernels(
        names=tuple(names[place] for place in kept.tolist()),
        ranks=ranks,
        calls=calls[kept],
        times_ns=times[kept],
    )


def _measure_pace(kernels: _Kernels, rank: int, reference: int) -> float:
    """Return the time of one call against the reference: the median over names, weighted by time."""
    own, other = kernels.calls[:, rank], kernels.calls[:, reference]
    chosen = _are_same(own, other)
    weights = kernels.times_ns[:, reference]
    if weights[chosen].sum() < _MIN_SAME_RATIO * weights.sum():
        chosen = (own > 0) & (other > 0)
    if not chosen.any():
        return 1.0
    times = kernels.times_ns[chosen, rank] / own[chosen]
    ratios = times / np.maximum(1.0, weights[chosen] / other[chosen])
    order = np.argsort(ratios)
    sums = np.cumsum(weights[chosen][order])
    return float(ratios[order][np.searchsorted(sums, sums[-1] / 2)]) or 1.0


def _are_same(own: Floats, other: Floats) -> np.ndarray:
    return (own > 0) & (other > 0) & (np.abs(own - other) <= _SAME_COUNT_RATIO * other)


def _find_extra_work(
    kernels: _Kernels, rank: int, reference: int
) -> tuple[ExtraWork | None, tuple[str, ...]]:
    """Return what a rank runs more often than the reference, and the names with the most additional time."""
    own, other = kernels.calls[:, rank], kernels.calls[:, reference]
    more = (own > other) & ~_are_same(own, other)
    if not more.any():
        return None, ()
    added = kernels.times_ns[:, rank] - kernels.times_ns[:, reference]
    places = [at for at in np.argsort(-added).tolist() if more[at]]
    names = tuple(kernels.names[at] for at in places[:_MAX_NAMES])
    weights = kernels.times_ns[:, reference]
    has_same = weights[_are_same(own, other)].sum() >= _MIN_SAME_RATIO * weights.sum()
    if not has_same:
        return ExtraWork.LAYERS, names
    share = other[more].sum() / max(1.0, other.sum())
    computes_attention = any(_ATTENTION.search(kernels.names[at]) and other[at] for at in places)
    is_forward = share >= _MIN_FORWARD_RATIO or computes_attention
    return (ExtraWork.FORWARD if is_forward else ExtraWork.OWN_KERNELS), names
