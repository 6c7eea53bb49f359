"""Fit the slowdown of kernels concurrent with collectives, from kernels that do the same work.

Kernels at the same position in a repeated block do the same work in every block, step and rank; blocks are
identified by their kernel sequence. Blocks of different sizes differ by a factor per block. With r = share of
a kernel's time overlapped by a collective,

    log(time) = position in the block + block + log(slowdown) * r

is fitted over all kernels in blocks. Names alone are not enough: one GEMM kernel serves matrices of many
sizes.

Kernels slow down differently by kind. To tell whether kernels slow down at all, each kernel has equal weight.
For the cost, kernels are weighted by time, because the long kernels lose most.
"""

from collections.abc import Collection

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis, list_copy_names
from zprof.analysis.intervals import Int64s, covered, union
from zprof.analysis.time.kernel_comparison import measure_slowdown_by_name
from zprof.step.structure import find_blocks
from zprof.step.tasks import NONE, Floats, Graph, RankGraph, step_places

#: Acceptance of the fit: minimum contrast between overlapped and other kernels, and maximum standard error.
_MIN_CONTRAST, _MAX_ERROR_RATIO = 4.0, 0.03
#: Positions with fewer kernels are ignored.
_MIN_SAMPLES = 3
#: Iterations of alternately subtracting the means of positions and of blocks.
_ROUNDS = 12


class _Kernels(Struct, frozen=True, kw_only=True):
    """Kernels in blocks: log time, overlapped share of the time, position and block."""

    log_ns: Floats
    beside_ratio: Floats
    place: Int64s
    block: Int64s


class FittedSlowdown(Struct, frozen=True, kw_only=True):
    """Kernel time overlapped by a collective relative to alone, fitted from this number of kernels."""

    factor: float
    kernels: int


def measure_slowdown(analysis: RunAnalysis, graph: Graph, *, by_time: bool = False) -> FittedSlowdown:
    """Measure the time of kernels during collectives relative to alone, by position in blocks, else by name.

    The factor is that of the typical kernel, to tell if kernels slow down; ``by_time``: weighted by time, for
    the cost. It is at least 1; it is 1, from no kernels, if it cannot be measured.
    """
    fitted = fit_slowdown(graph, list_copy_names(analysis), by_time=by_time)
    if fitted is not None:
        return FittedSlowdown(factor=max(1.0, fitted.factor), kernels=fitted.kernels)
    by_name = measure_slowdown_by_name(analysis.kernels)
    if not by_name.known:
        return FittedSlowdown(factor=1.0, kernels=0)
    return FittedSlowdown(factor=min(by_name.factor, by_name.typical_factor), kernels=by_name.kernels)


def fit_slowdown(graph: Graph, copies: Collection[str], *, by_time: bool = False) -> FittedSlowdown | None:
    """Fit the time of kernels overlapped by a collective relative to alone.

    ``copies`` names kernels that only serve collectives. ``by_time`` weighs kernels by their time.
    The result is None if the step has no blocks, or if its kernels are always or never overlapped by
    collectives.
    """
    numbers: dict[tuple[object, ...], int] = {}
    ranks = [_read_block_kernels(rank, copies, numbers) for rank in graph.ranks]
    kernels = _Kernels(
        log_ns=np.concatenate([kernels.log_ns for kernels in ranks]),
        beside_ratio=np.concatenate([kernels.beside_ratio for kernels in ranks]),
        place=np.concatenate([kernels.place for kernels in ranks]),
        block=np.concatenate([kernels.block for kernels in ranks]),
    )
    if not len(kernels.log_ns):
        return None
    has_samples = np.bincount(kernels.place)[kernels.place] >= _MIN_SAMPLES
    weight: Floats = np.ones(len(kernels.place))
    if by_time:  # the mean time at each kernel's position: its own time would favor slow ones
        count = np.maximum(1, np.bincount(kernels.place))
        weight = (np.bincount(kernels.place, weights=np.exp(kernels.log_ns)) / count)[kernels.place]
    ratio = _subtract_means(kernels, kernels.beside_ratio, weight)[has_samples]
    log_ns = _subtract_means(kernels, kernels.log_ns, weight)[has_samples]
    unknowns = len(np.unique(kernels.place[has_samples])) + len(np.unique(kernels.block[has_samples]))
    if float(ratio @ ratio) < _MIN_CONTRAST or len(ratio) <= unknowns:
        return None
    weighted = weight[has_samples] * ratio
    slope = float(weighted @ log_ns) / float(weighted @ ratio)
    residuals = (log_ns - slope * ratio) * np.sqrt(len(ratio) / (len(ratio) - unknowns))
    error = np.sqrt(float(weighted**2 @ residuals**2)) / float(weighted @ ratio)
    if error > _MAX_ERROR_RATIO:
        return None
    return FittedSlowdown(factor=float(np.exp(slope)), kernels=len(ratio))


def _read_block_kernels(
    rank: RankGraph, copies: Collection[str], numbers: dict[tuple[object, ...], int]
) -> _Kernels:
    """Return a rank's kernels of blocks; ``numbers`` maps positions and blocks to numbers for all ranks.

    The first of several steps is left out: work concurrent with its kernels may have been launched before the
    recording, and is not in the graph.
    """
    blocks = find_blocks(rank, copies)
    places = step_places(rank)
    is_complete = (places > 0) | (places.max(initial=0) == 0)
    runs = rank.tasks.work[:, 1] > rank.tasks.work[:, 0]
    chosen = np.flatnonzero((blocks != NONE) & is_complete & runs)
    names = list(rank.tasks.kernel)
    place, block = [], []
    counts: dict[tuple[object, ...], int] = {}
    starts = np.flatnonzero(np.diff(blocks[chosen], prepend=NONE))
    for members in np.split(chosen, starts)[1:]:
        # a forward and a backward may start with the same kernel, but rarely run the same sequence
        sequence = tuple(names[member] for member in members.tolist())
        pass_key = (int(rank.tasks.step[members[0]]), sequence)
        counts[pass_key] = counts.get(pass_key, 0) + 1
        for order in range(len(members)):
            place.append(numbers.setdefault(("place", sequence, order), len(numbers)))
            block.append(numbers.setdefault(("block", sequence, counts[pass_key]), len(numbers)))
    work = np.rint(rank.tasks.work)
    busy = union(work[rank.collective != NONE].astype(np.int64))
    begin, end = work[chosen].astype(np.int64).T
    length = np.maximum(1.0, end - begin)
    return _Kernels(
        log_ns=np.log(length),
        beside_ratio=covered(busy, begin, end) / length,
        place=np.array(place, dtype=np.int64),
        block=np.array(block, dtype=np.int64),
    )


def _subtract_means(kernels: _Kernels, values: Floats, weight: Floats) -> Floats:
    """Subtract the weighted means per position and per block from the values."""
    remainder = values
    for _ in range(_ROUNDS):
        for key in (kernels.place, kernels.block):
            total = np.bincount(key, weights=weight)
            means = np.bincount(key, weights=remainder * weight) / np.where(total > 0, total, 1.0)
            remainder = remainder - means[key]
    return remainder
