"""Compare kernels by name: with a baseline, during collectives with alone, and between ranks.

With t = time of a kernel name per step and rank, and w = work per step and rank,

    ratio = sum(t_b / w_b) / sum(t_a / w_a)         lost = sum(t_b) * (1 - 1 / ratio)

Both are computed twice: from measured times, and without the slowdown by concurrent collectives, which is an
estimate and varies with the overlap. The smaller ratio decides.

w is in tokens, else in samples, if both runs report them; else it is assumed to be equal. Optimizers are
excluded, because sharding reduces a rank's share of them, as are copies around collectives.

The rows come from :mod:`zprof.analysis.time.rank`. With o = concurrent time of comparable kernels, and e =
its excess over their time alone, the slowdown is s = sum(o) / (sum(o) - sum(e)), and

    excess = measured excess of comparable kernels + (1 - 1/s) of the other concurrent time

*Longer inputs.* A rank with more tokens keeps more activations for its backward pass; a slow rank does not.
It spends the same time in kernels that work on parameters (optimizer, shard copies), but more in kernels that
work on activations, memory-bound or not. A slow device is slow at all of them, a device with low clocks only
at matrix products. A rank has longer inputs if its activations exceed the others' by at least half as much as
its compute does. If memory was not recorded, its work on parameters must exceed the others' by at most a
quarter of its excess compute, and its memory-bound work on activations by at least half, with the same number
of kernels (within 1 %).
"""

import re
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import (
    GRADIENT_COPY_KERNEL,
    Fact,
    RunAnalysis,
    make_fact,
    mean_per_step,
    select_copy_kernels,
)
from zprof.analysis.columns import Columns, Floats, Groups, Mask
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.decomposition import select_kind
from zprof.analysis.time.needless_collectives import select_needless_gathers
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence
from zprof.model.tenants import Tenant

_OPTIMIZER = re.compile(r"(?i)adam|lamb\b|sgd|multi_tensor_apply|optimizer")
#: Minimum number of kernels, and minimum share of the concurrent time, to measure a slowdown.
MIN_KERNELS = 8
MIN_JUDGED_RATIO = 0.02
#: Minimum slowdown for a kernel name to count as slowed down.
SLOWDOWN_RATIO = 1.15
_MESSAGES = (CollectiveKind.SEND.value, CollectiveKind.RECV.value)
_MAX_NAME_LENGTH = 400
_LONGER_RATIO = 1.10
_FOLLOWS_RATIO, _STAYS_RATIO = 0.5, 0.25
_SAME_COUNT_RATIO = 0.01
_ON_PARAMETERS = re.compile(
    r"multi_tensor_apply|adam|lamb|adagrad|sgd|split_with_sizes_copy|copy_in|chunk_cat", re.I | re.ASCII
)
_BOUND_BY_MEMORY = re.compile(
    r"elementwise|layer_?norm|rms_?norm|softmax|dropout|gelu|silu|aten::(?:add|mul)\b", re.I | re.ASCII
)


class Work(Struct, frozen=True, kw_only=True):
    """Work per step and rank in each run; ``unit`` is empty if unknown."""

    unit: str
    a: float
    b: float


class KernelComparison(Struct, frozen=True, kw_only=True):
    """``ratio`` of each rank at equal work: the smaller of measured and corrected; ``lost_ns`` follows from
    it.

    ``max_lost_ns`` follows from the larger ratio. ``names``: the compared names; ``matched_ratio``: their
    share of compute.
    """

    ranks: Int64s
    ratio: Floats
    lost_ns: float
    max_lost_ns: float
    names: int
    matched_ratio: float
    count_ratio: float
    work: Work


def compare_kernels(analysis: RunAnalysis, baseline: RunAnalysis) -> KernelComparison | None:
    """Compare each rank's kernels with the baseline's median rank; None if the runs share no name."""
    own_kernels, baseline_kernels = _select_model_kernels(analysis), _select_model_kernels(baseline)
    baseline_names = set(baseline_kernels.texts("name").list_distinct())
    common_names = [name for name in own_kernels.texts("name").list_distinct() if name in baseline_names]
    if not common_names:
        return None
    work = _read_work(analysis, baseline)
    by_basis = []
    for column in ("total_ns", "alone_ns"):
        own_times, baseline_times = (
            _sum_by_name(rows, common_names, column) for rows in (own_kernels, baseline_kernels)
        )
        baseline_ns = float(np.median(baseline_times, axis=1).sum()) * work.b / work.a
        own_ns = own_times.sum(axis=0)
        ratio = own_ns / max(1.0, baseline_ns)
        by_basis.append((ratio, float(np.median(own_ns * (1 - 1 / np.maximum(ratio, 1e-9))))))
    (measured, measured_lost_ns), (alone, alone_lost_ns) = by_basis
    return KernelComparison(
        ranks=np.unique(own_kernels.ints("rank")),
        ratio=np.minimum(measured, alone),
        lost_ns=max(0.0, min(measured_lost_ns, alone_lost_ns)),
        max_lost_ns=max(0.0, measured_lost_ns, alone_lost_ns),
        names=len(common_names),
        matched_ratio=min(
            _measure_compute_share(own_kernels, common_names),
            _measure_compute_share(baseline_kernels, common_names),
        ),
        count_ratio=_count_kernels(own_kernels, common_names, steps=len(analysis.steps))
        / max(1e-9, _count_kernels(baseline_kernels, common_names, steps=len(baseline.steps))),
        work=work,
    )


def _select_model_kernels(analysis: RunAnalysis) -> Columns:
    """Return the compute kernels without optimizers; ``total_ns`` and ``alone_ns`` are per step."""
    factor = measure_slowdown_by_name(analysis.kernels).factor
    rows = analysis.kernels.at(analysis.kernels.texts("role").equals("compute"))
    rows = rows.at(~rows.texts("name").match(_OPTIMIZER.search))
    step_counts = dict(zip(*np.unique(analysis.steps.ints("rank"), return_counts=True), strict=True))
    steps = np.array([step_counts.get(rank, np.nan) for rank in rows.ints("rank")], dtype=np.float64)
    # The time without concurrent collectives: measured, or estimated by the slowdown where nothing is
    # comparable.
    assumed = (rows.ints("beside_ns") - rows.ints("judged_beside_ns")) * (1 - 1 / factor)
    alone_ns = rows.ints("total_ns") - rows.ints("excess_ns") - assumed
    return rows.with_columns(alone_ns=alone_ns / steps, total_ns=rows.ints("total_ns") / steps)


def _sum_by_name(kernels: Columns, names: list[str], column: str) -> Floats:
    """Return each name's (row) time per step on each rank (column), in ns; 0 if a rank lacks the name."""
    ranks, rank = np.unique(kernels.ints("rank"), return_inverse=True)
    place = {name: index for index, name in enumerate(names)}
    texts = kernels.texts("name")
    name = np.array([*(place.get(word, -1) for word in texts.words), -1])[texts.codes]
    chosen = name >= 0
    cells = name[chosen] * len(ranks) + rank.ravel()[chosen]
    sums = np.zeros(len(names) * len(ranks))
    np.add.at(sums, cells, kernels.floats(column)[chosen])
    return sums.reshape(len(names), len(ranks))


def _measure_compute_share(kernels: Columns, names: list[str]) -> float:
    """Return these names' share of a run's compute."""
    alone_ns = kernels.floats("alone_ns")
    return float(alone_ns[kernels.texts("name").equals(*names)].sum()) / max(1.0, float(alone_ns.sum()))


def _count_kernels(kernels: Columns, names: list[str], *, steps: int) -> float:
    """Return the number of kernels with these names per step and rank; ``steps``: total over all ranks."""
    return float(kernels.ints("count")[kernels.texts("name").equals(*names)].sum()) / max(1, steps)


def _read_work(analysis: RunAnalysis, baseline: RunAnalysis) -> Work:
    """Read the work per step and rank: tokens, else samples, else unknown."""
    for unit in ("tokens", "samples"):
        a, b = (getattr(run.training, f"{unit}_per_step") for run in (baseline, analysis))
        if a and b:
            return Work(unit=unit, a=a / baseline.run.world_size, b=b / analysis.run.world_size)
    return Work(unit="", a=1.0, b=1.0)


class Slowdown(Struct, frozen=True, kw_only=True):
    """Sums over all ranks and steps. ``factor`` is 1 with too few comparable kernels (not ``known``).

    ``agreeing_ratio``: share of the compared time in kernel names that are slowed down individually.
    """

    factor: float
    known: bool
    kernels: int
    judged_ratio: float
    agreeing_ratio: float
    typical_factor: float
    concurrent_ns: float
    excess_ns: float


def measure_slowdown_by_name(kernels: Columns) -> Slowdown:
    """Measure the slowdown of compute, and of copies around collectives, by kernel name."""
    rows = kernels.at(~kernels.texts("role").equals("memcpy"))
    names = rows.group_by("name")
    judged_ns, excess_ns = names.sum(rows.ints("judged_beside_ns")), names.sum(rows.ints("excess_ns"))
    judged, excess = float(judged_ns.sum()), float(excess_ns.sum())
    concurrent = float(rows.ints("beside_ns").sum())
    count = int(rows.ints("judged_count").sum())
    known = count >= MIN_KERNELS and judged >= MIN_JUDGED_RATIO * concurrent
    alone = judged - max(0.0, excess)
    factor = judged / alone if known and alone > 0 else 1.0
    is_slowed = judged_ns >= SLOWDOWN_RATIO * (judged_ns - excess_ns)
    return Slowdown(
        factor=factor,
        known=known,
        kernels=count,
        judged_ratio=judged / concurrent if concurrent else 0.0,
        agreeing_ratio=float(judged_ns[is_slowed].sum()) / judged if judged else 0.0,
        typical_factor=_median_slowdown(rows),
        concurrent_ns=concurrent,
        excess_ns=max(0.0, excess + (concurrent - judged) * (1 - 1 / factor)),
    )


def _median_slowdown(rows: Columns) -> float:
    """Return the median slowdown, weighted by concurrent time; 1 if no name has both medians."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = rows.floats("overlapped_median_ns") / rows.floats("alone_median_ns")
    known = np.flatnonzero(ratio > 0)
    if not len(known):
        return 1.0
    known = known[np.argsort(ratio[known], kind="stable")]
    cumulative_ns = np.cumsum(rows.ints("judged_beside_ns")[known])
    return float(ratio[known][int((cumulative_ns < cumulative_ns[-1] / 2).sum())])


class CopyCost(Struct, frozen=True, kw_only=True):
    """Copies around collectives, per rank and step.

    ``exposed_ns``: time without concurrent compute, excluding copies of needless gathers, which disappear
    with the gathers. ``into_ns``: the part before reductions. ``total_ns``: time of all copies;
    ``largest_ns``: of the most expensive name. ``gathered_bytes``: bytes of the gathers.
    """

    exposed_ns: float
    into_ns: float
    total_ns: float
    count: float
    largest_ns: float
    largest_name: str
    gathered_bytes: float


def measure_copies(analysis: RunAnalysis) -> CopyCost:
    """Measure the copies around collectives, of which there must be at least one."""
    rows = select_copy_kernels(analysis)
    uncovered_ns, into = rows.ints("uncovered_ns"), _copy_into_reductions(rows)
    gathered, needless = (
        float(select_kind(each, CollectiveKind.ALL_GATHER).ints("bytes").sum())
        for each in (analysis.collectives, select_needless_gathers(analysis))
    )
    out_ns = mean_per_step(analysis, float(uncovered_ns[~into].sum()))
    needless_ns = out_ns * needless / gathered if gathered else 0.0
    names = rows.group_by("name")
    ns_by_name = names.sum(uncovered_ns)
    largest = int(ns_by_name.argmax())
    return CopyCost(
        exposed_ns=mean_per_step(analysis, float(uncovered_ns.sum())) - needless_ns,
        into_ns=mean_per_step(analysis, float(uncovered_ns[into].sum())),
        total_ns=mean_per_step(analysis, float(rows.ints("total_ns").sum())),
        count=mean_per_step(analysis, float(rows.ints("count").sum())),
        largest_ns=mean_per_step(analysis, ns_by_name[largest]),
        largest_name=rows.texts("name")[int(names.first[largest])],
        gathered_bytes=mean_per_step(analysis, gathered),
    )


def measure_copy_speed_ratio(analysis: RunAnalysis) -> float | None:
    """Return the speed of copies out of gathers relative to copies into reductions, by message bytes.

    None if the recording lacks either kind of copy or its bytes.
    """
    rows = select_copy_kernels(analysis)
    into, total_ns = _copy_into_reductions(rows), rows.ints("total_ns")
    in_ns, out_ns = (float(total_ns[chosen].sum()) for chosen in (into, ~into))
    gathered, reduced = (
        float(select_kind(analysis.collectives, kind).ints("bytes").sum())
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
    )
    if min(in_ns, out_ns, gathered, reduced) <= 0:
        return None
    return (gathered / out_ns) / (reduced / in_ns)


def _copy_into_reductions(rows: Columns) -> Mask:
    return rows.texts("name").match(lambda name: GRADIENT_COPY_KERNEL in name)


class LongerInputs(Struct, frozen=True, kw_only=True):
    """The rank with longer inputs, and its ratio to the median of the others.

    ``mean_excess_ns``: its compute above the mean of all ranks, per step, which even inputs would remove.
    ``excess_ns``: above the median of the others. ``activations`` is None if kernels were the evidence.
    """

    rank: int
    longer: float
    activations: float | None
    excess_ns: float
    mean_excess_ns: float
    confidence: Confidence

    @property
    def facts(self) -> list[Fact]:
        """The ratios of its compute and its activations to the others'."""
        held = self.activations
        return [
            make_fact("compute_over_median", self.longer, rank=self.rank),
            make_fact("compute_excess_per_step", self.excess_ns, rank=self.rank),
            make_fact("compute_excess_over_mean", self.mean_excess_ns, rank=self.rank),
            *([make_fact("activations_ratio", held, rank=self.rank)] if held is not None else ()),
        ]


def find_longer_inputs(analysis: RunAnalysis) -> LongerInputs | None:
    """Return the rank with longer inputs; None if no rank clearly computes more, or if it may just be slow.

    Ranks that send each other messages are stages of a pipeline: they compute different layers, and the first
    keeps the activations of more micro-batches.
    """
    steps = analysis.steps
    ranks, compute = _reduce_by_rank(steps.ints("rank"), steps.ints("compute_ns"), Groups.mean)
    if len(compute) < 2 or analysis.collectives.texts("kind").equals(*_MESSAGES).any():
        return None
    place = int(compute.argmax())
    rank, others = int(ranks[place]), np.delete(compute, place)
    longer = _ratio_to_others(ranks, compute, rank)
    if longer < _LONGER_RATIO:
        return None
    # Each rank's maximum activations at the peaks of its phases and steps.
    memory, name = analysis.memory, Tenant.ACTIVATIONS
    held = [(peak.rank, peak.tenants.get(name, 0)) for peak in memory.phases]
    held += [(peak.rank, peak.tenants.get(name, 0)) for peak in memory.per_rank]
    held += [(line.rank, max(line.tenants.get(name.value, ()), default=0)) for line in memory.timelines]
    owner, held_bytes = np.array([each for each in held if each[1] > 0], dtype=np.int64).reshape(-1, 2).T
    holders, most = _reduce_by_rank(owner, held_bytes, Groups.max)
    activations = _ratio_to_others(holders, most, rank) if len(most) >= len(compute) else None
    if activations is not None:
        is_confirmed = activations >= 1 + _FOLLOWS_RATIO * (longer - 1)
    else:
        is_confirmed = _do_kernels_agree(analysis, rank, longer)
    if not is_confirmed:
        return None
    return LongerInputs(
        rank=rank,
        longer=longer,
        activations=activations,
        excess_ns=float(compute[place] - np.median(others)),
        mean_excess_ns=float(compute[place] - compute.mean()),
        confidence=Confidence.MEDIUM if activations is None else Confidence.HIGH,
    )


def _match_names(table: Columns, pattern: re.Pattern[str]) -> Mask:
    return table.texts("name").match(lambda name: pattern.search(name[:_MAX_NAME_LENGTH]))


def _do_kernels_agree(analysis: RunAnalysis, rank: int, longer: float) -> bool:
    table = analysis.kernels
    if not len(table):
        return False
    on_parameters = _match_names(table, _ON_PARAMETERS)
    by_memory = ~on_parameters & _match_names(table, _BOUND_BY_MEMORY)
    counts = _reduce_by_rank(table.ints("rank"), table.ints("count"), Groups.sum)
    parameters, activations = (
        _reduce_by_rank(table.ints("rank")[chosen], table.ints("total_ns")[chosen], Groups.sum)
        for chosen in (on_parameters, by_memory)
    )
    if any(rank not in ranks or len(ranks) < 2 for ranks, _ in (counts, parameters, activations)):
        return False
    return (
        abs(_ratio_to_others(*counts, rank) - 1) <= _SAME_COUNT_RATIO
        and abs(_ratio_to_others(*parameters, rank) - 1) <= _STAYS_RATIO * (longer - 1)
        and _ratio_to_others(*activations, rank) >= 1 + _FOLLOWS_RATIO * (longer - 1)
    )


def _reduce_by_rank(
    rank: Int64s, values: Int64s, reduce: Callable[[Groups, Int64s], Int64s | Floats]
) -> tuple[Int64s, Int64s | Floats]:
    """Return the ranks in order, and one value per rank."""
    by_rank = Groups(rank)
    return rank[by_rank.first], reduce(by_rank, values)


def _ratio_to_others(ranks: Int64s, values: Int64s | Floats, rank: int) -> float:
    others = float(np.median(values[ranks != rank]))
    return float(values[ranks == rank][0]) / others if others > 0 else 0.0
