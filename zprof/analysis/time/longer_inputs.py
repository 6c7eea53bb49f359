"""Find the rank that computes longer than the others because its inputs are longer, not its device slower.

A rank with more tokens keeps more activations for its backward, a slow one does not. It also spends the same
time in kernels that work on parameters (optimizer, copies of shards), but more in those that work on
activations, bound by memory or not. A slow device is slow at all of them, one with low clocks at matrix
products only. Its activations must exceed the others' by at least half as much as its compute. If memory was
not recorded, its work on parameters must exceed the others' by at most a quarter of that, its memory-bound
work on activations by at least half, with the same number of kernels (within 1 %).
"""

import re
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Floats, Groups, Mask
from zprof.analysis.intervals import Int64s
from zprof.analysis.signal import Fact, make_fact
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence
from zprof.model.tenants import Tenant

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


class LongerInputs(Struct, frozen=True, kw_only=True):
    """The rank with longer inputs, and the ratio by which it exceeds the median of the others.

    ``mean_excess_ns``: its compute above the mean of all ranks, per step: the part that even shares would
    remove. ``excess_ns``: above the median of the others. ``activations`` is None if kernels were the
    evidence.
    """

    rank: int
    longer: float
    activations: float | None
    excess_ns: float
    mean_excess_ns: float
    confidence: Confidence

    @property
    def facts(self) -> list[Fact]:
        """By how much its compute, and its activations, exceed the others'."""
        held = self.activations
        return [
            make_fact("compute_over_median", self.longer, rank=self.rank),
            make_fact("compute_excess_per_step", self.excess_ns, rank=self.rank),
            make_fact("compute_excess_over_mean", self.mean_excess_ns, rank=self.rank),
            *([make_fact("activations_ratio", held, rank=self.rank)] if held is not None else ()),
        ]


def find_longer_inputs(analysis: RunAnalysis) -> LongerInputs | None:
    """Return the rank with longer inputs, None if no rank clearly computes more or it may just be slow.

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
    # The maximum activations of each rank at the peaks of its phases and of its steps.
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
    """Return the ranks in order, and one value of each."""
    by_rank = Groups(rank)
    return rank[by_rank.first], reduce(by_rank, values)


def _ratio_to_others(ranks: Int64s, values: Int64s | Floats, rank: int) -> float:
    others = float(np.median(values[ranks != rank]))
    return float(values[ranks == rank][0]) / others if others > 0 else 0.0
