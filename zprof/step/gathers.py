"""Find gathers that end a step, and gathers that start only when their result is needed.

Closing gathers share parameters that the optimizer has just updated: all large gathers (or broadcasts, in
PyTorch's ZeroRedundancyOptimizer) of a step start after its last gradient reduction, as in ZeRO stages 1 and
2. Opening gathers precede a forward or backward pass that needs them.

A late all_gather overlaps with almost no compute, although there was compute since the previous all_gather
while the link was idle (``free_compute_ns``, :mod:`zprof.analysis.time.decomposition`). That compute could
have hidden it, so with

    blocked_i = its exposed transfer + the exposed transfer of collectives that it was queued behind

    hideable = sum over the late ones of min(blocked_i, free_i)       per rank and step
    at most    min(sum of blocked_i + exposed wait, sum of free_i + the largest of them)

because with prefetch, a unit's compute (including the last unit's) can also hide other units' gathers, and
the waiting for occasionally late ranks. A gather that was ready long before it started waits for the device,
not for its launch, and does not count.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis, list_copy_names, mean_per_step, select_state_rows
from zprof.analysis.columns import Columns, Floats, Groups, Mask, find_places
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.decomposition import select_kind
from zprof.model.collectives import CollectiveKind
from zprof.step import edits
from zprof.step.links import read_latencies
from zprof.step.play import PlayedStep
from zprof.step.structure import count_blocks, held_gathers_ratio, late_gathers_ratio, run_beside_ratio
from zprof.step.tasks import Graph
from zprof.step.traffic import count_elements, has_known_sizes, select_large, weigh_rows

_SHARING_KINDS = (CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST)
_SCATTERING_KIND = CollectiveKind.REDUCE_SCATTER
_REDUCING_KINDS = (_SCATTERING_KIND, CollectiveKind.ALL_REDUCE)
#: Minimum share of the bytes gathered in all steps; programs that also gather before (stage 3) have less.
_MIN_CLOSING_RATIO = 0.95
#: Minimum size relative to the reductions: smaller messages (predictions, metrics) are not parameters.
_MIN_GATHERED_RATIO = 0.10
#: Maximum bytes relative to the reductions: 32-bit parameters, 8-bit gradients. Larger messages (embeddings)
#: are not the parameters whose gradients were reduced.
_MAX_GATHERED_RATIO = 4.0
#: All-reduced gradients have as many elements as gathered parameters, except for padding and frozen
#: parameters.
_SAME_RATIO = 0.10
#: Method of collectives whose launches were not recorded: gloo runs a reduce-scatter as an all-reduce.
_WITHOUT_LAUNCH = "gloo_execution"

#: The forward's share of a step's compute, with and without recomputation, and its minimum slowdown during
#: gathers, which take SMs and memory bandwidth from it.
_FORWARD_AND_SLOWDOWN_RATIOS = ((0.25, 0.5), (0.35, 0.15))
#: Units before and after a model's blocks: embeddings and head.
_UNITS_AROUND_BLOCKS = 2
#: If a larger share of the closing gathers' time overlaps with compute, they are at least partly hidden.
_BESIDE_RATIO = 0.1
#: Overlapping compute below this share of an all_gather's duration does not hide it.
_HIDES_NOTHING_RATIO = 0.10
#: Free compute before an all_gather below this share of its duration would not hide it either.
_WORTH_HIDING_RATIO = 0.10
#: If a gather was ready this long, and this share of its duration, before it started, something else delayed
#: it.
_STARTS_LATE_NS = 50_000
_STARTS_LATE_RATIO = 0.10
#: Maximum saving relative to the hideable time: a rank that is not blocked need not wake up and launch again
#: (the reference engine on two gloo ranks gained up to 1.08 times the blocked time).
_MAX_SAVING_RATIO = 1.15
#: Minimum overlapping compute, as a share of a gather's duration, to count it as prefetched.
_MIN_OVERLAP_RATIO = 0.10
#: A gather that starts later than this after it was ready was delayed by something other than the event.
_MAX_READY_DELAY_NS = 50_000
#: Minimum share of late gathers in the measured step. Without prefetch in one of two passes, half of the
#: gathers are late, or a quarter if later micro-batches keep units.
_MIN_LATE_RATIO = 0.20
#: Minimum share of delayed gathers: a few start by chance when a kernel ends.
_MIN_DELAYED_RATIO = 0.1


class ClosingGathers(Struct, frozen=True, kw_only=True):
    """Collective rows: the gathers of new parameters, and the reductions before them."""

    gathers: Columns
    reductions: Columns
    three_psi: bool


def read_closing_gathers(analysis: RunAnalysis) -> ClosingGathers | None:
    """Return the parameter gathers at the end of steps, None if there are none; read once per analysis."""
    return analysis.compute_once(_read_closing_gathers)


def _read_closing_gathers(analysis: RunAnalysis) -> ClosingGathers | None:
    rows = select_large(select_state_rows(analysis, analysis.collectives))
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
    """Return a mask of the gathers that started after their rank's last reduction in the step."""
    rank, step = reductions.ints("rank"), reductions.ints("step")
    steps = Groups(rank, step)
    places = find_places([gathers.ints("rank"), gathers.ints("step")], [rank[steps.first], step[steps.first]])
    last = steps.max(reductions.ints("start_ns"))[places]
    return (places >= 0) & (gathers.ints("start_ns") > last)


def _is_reduced_in_full(reductions: Columns, gathers: Columns) -> bool:
    """Return True if the gathered elements were all-reduced before, and nothing was scattered."""
    scattered, moved_bytes = reductions.texts("kind").equals(_SCATTERING_KIND.value), reductions.ints("bytes")
    if moved_bytes[scattered].sum() > _SAME_RATIO * moved_bytes.sum():
        return False
    return count_elements(reductions.at(~scattered)) >= (1 - _SAME_RATIO) * count_elements(gathers)


def select_gathers(analysis: RunAnalysis) -> frozenset[int]:
    """Return the collective rows that gather states from several ranks."""
    gathers = select_kind(select_state_rows(analysis, analysis.collectives), CollectiveKind.ALL_GATHER)
    return frozenset(gathers.row[gathers.ints("group_size") != 1].tolist())


def select_opening_gathers(analysis: RunAnalysis) -> frozenset[int]:
    """Return the rows of gathers needed by a forward or backward pass, except gathers that end a step."""
    closing = read_closing_gathers(analysis)
    return select_gathers(analysis).difference(closing.gathers.row.tolist() if closing is not None else ())


def hide_closing_gathers(analysis: RunAnalysis, graph: Graph) -> Sequence[Graph]:
    """Return the steps with gathers hidden by the next forward pass, each block's by the previous blocks."""
    seen = read_closing_gathers(analysis)
    if seen is None:
        return []
    rows = frozenset(seen.gathers.row.tolist())
    if run_beside_ratio(graph, rows) > _BESIDE_RATIO:  # the next forward hides them already
        return [graph]
    from zprof.step.slowdown import measure_slowdown

    slower = measure_slowdown(analysis, graph).factor - 1
    # each block and both ends of the model have their own gather
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


class LateGathers(Struct, frozen=True, kw_only=True):
    """The window's all_gathers: how many are late, and their cost per step.

    ``launched``: their launches are known. ``bound``: most of them were not recorded on all ranks.
    """

    count: int
    late: int
    transfer_ns: float
    exposed_ns: float
    queued_ns: float
    free_ns: float
    hideable_ns: float
    max_ns: float
    launched: bool
    bound: bool


def measure_late_gathers(analysis: RunAnalysis, gathers: Columns) -> LateGathers:
    """Measure how many of these collective rows are late, and their cost per step."""
    duration = np.maximum(1, gathers.ints("end_ns") - gathers.ints("start_ns"))
    queued, exposed = gathers.ints("queued_exposed_ns"), gathers.ints("exposed_transfer_ns")
    # almost no overlapping compute, although there was free compute
    late = gathers.ints("hidden_ns") <= _HIDES_NOTHING_RATIO * duration
    late &= gathers.ints("free_compute_ns") > _WORTH_HIDING_RATIO * duration
    late &= ~_is_held(analysis, gathers, duration)
    blocked = np.where(late, exposed + queued, 0)
    waited = blocked + np.where(late, gathers.ints("exposed_wait_ns"), 0)
    free = np.where(late, gathers.ints("free_compute_ns"), 0)
    steps = gathers.group_by("rank", "step")
    hideable = steps.sum(np.minimum(blocked, free))
    # the compute of the last unit, taken as the largest, counts too
    most = _MAX_SAVING_RATIO * np.minimum(steps.sum(waited), steps.sum(free) + steps.max(free))
    step_rows = gathers.at(steps.first)
    return LateGathers(
        count=len(gathers),
        late=int(late.sum()),
        transfer_ns=mean_per_step(analysis, gathers.ints("transfer_ns").sum()),
        exposed_ns=mean_per_step(analysis, exposed.sum()),
        queued_ns=mean_per_step(analysis, np.where(late, queued, 0).sum()),
        free_ns=mean_per_step(analysis, free.sum()),
        hideable_ns=_within_free_compute(analysis, step_rows, hideable),
        max_ns=_within_free_compute(analysis, step_rows, most),
        launched=bool(gathers.known("launch_start_ns").mean() > 0.5),
        bound=not gathers.bools("matched").mean() > 0.5,
    )


def _is_held(analysis: RunAnalysis, gathers: Columns, duration: Int64s) -> Mask:
    """Return a mask of ready gathers delayed by the device; none on CPU ranks."""
    if analysis.run.device == "cpu":
        return np.zeros(len(gathers), dtype=np.bool_)
    stood = gathers.ints("start_ns") - gathers.ints("launch_start_ns") - gathers.ints("dependency_ns")
    is_known = gathers.known("launch_start_ns") & gathers.known("dependency_ns")
    kept = np.maximum(np.where(is_known, stood, 0), gathers.ints("blocked_ns"))
    return (kept >= _STARTS_LATE_NS) & (kept >= _STARTS_LATE_RATIO * duration)


def _within_free_compute(analysis: RunAnalysis, rows: Columns, claimed: Int64s | Floats) -> float:
    """Cap each step's claims by its free compute; return the mean per rank and step."""
    steps = analysis.steps
    free = np.maximum(0, steps.ints("compute_ns") - steps.ints("overlapped_ns"))
    places = find_places(*([table.ints("rank"), table.ints("step")] for table in (rows, steps)))
    return mean_per_step(analysis, np.minimum(claimed, np.append(free, 0)[places]).sum())


def measure_shallow_prefetch(analysis: RunAnalysis, gathers: Columns) -> tuple[float, float, float]:
    """Measure gathers that wait for earlier compute and are then only partly hidden.

    Returns:
        Their number, their exposed time, and the time that deeper prefetch could hide, per rank and step.
    """
    duration = gathers.ints("end_ns") - gathers.ints("start_ns")
    dependency = gathers.ints("dependency_ns")
    stood = gathers.ints("start_ns") - gathers.ints("launch_start_ns") - dependency
    chosen = (
        (gathers.ints("hidden_ns") > _MIN_OVERLAP_RATIO * duration)
        & (dependency > 0)
        & (gathers.known("launch_start_ns") & (stood < _MAX_READY_DELAY_NS))
        & (gathers.ints("blocked_ns") < _MAX_READY_DELAY_NS)
    )
    exposed = np.where(chosen, gathers.ints("exposed_transfer_ns"), 0)
    hideable = np.minimum(exposed, gathers.ints("free_compute_ns"))
    count = mean_per_step(analysis, int((hideable > 0).sum()))
    exposed_ns, hideable_ns = (mean_per_step(analysis, each.sum()) for each in (exposed, hideable))
    return count, exposed_ns, hideable_ns


def are_gathers_late(step: PlayedStep) -> bool | None:
    """Return True if the program launches its units' gathers only when their compute is due.

    None if the step has no gather after its first one. False if kernels delay gathers launched before them,
    because then the kernels make the gathers late. A model with one unit has nothing to launch ahead.
    """
    graph = step.graph
    assert graph is not None, "the step was played"
    rows = select_opening_gathers(step.analysis)
    late_ratio = late_gathers_ratio(graph, rows)
    if late_ratio is None:
        return None
    if held_gathers_ratio(graph, rows) >= _MIN_DELAYED_RATIO or late_ratio < _MIN_LATE_RATIO:
        return False
    return not step.sizes.is_one_unit
