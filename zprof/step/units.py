"""Find a step's units, their order and the engine's policy, from the sharding group's messages.

The messages are selected in :mod:`zprof.step.traffic`. Up to 9 ranks represent any number of ranks: the
median rank and ranks at evenly spaced positions in the order of compute time, including the slowest.

A unit is gathered and reduced in one piece. The unit gathered first in both directions and reduced last is
the root, which encloses the others; without gathers in the backward pass, a unit with a root's name is the
root. If a reduction has no unit name, all reductions are buckets: each bucket counts as a unit, in the
reverse order of the reductions.
"""

from collections import Counter

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups, OptionalInts, Texts
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.decomposition import select_kind
from zprof.step.schedule import GATHER, SCATTER, UNLIMITED, EnginePolicy, UnitSize
from zprof.step.traffic import find_sharding

_MAX_RANKS, _MAX_STEPS = 8, 12
#: Maximum number of replayed messages per rank; it limits the number of steps, so many units mean fewer
#: steps.
_MAX_MESSAGES, _MIN_STEPS = 2_000, 4
#: Engines' names for the unit that encloses the others.
_ROOTS = frozenset({"root", "", "model", "module"})
#: Reductions in flight if the run does not show them (the reference engine's default from stage 2 on).
DEFAULT_IN_FLIGHT = 2
_IMMEDIATE_NS = 20_000
#: If more than this share of the gathers' time is exposed, they overlap with nothing.
_EXPOSED_RATIO = 0.9


class ShardingMessages(Struct, frozen=True, kw_only=True):
    """Collective rows of the modelled ranks and steps, split into sharding traffic and other rows.

    ``all_sharding``: sharding rows of all ranks and steps. ``steps``: empty if the modelled ranks share no
    step with sharding traffic.
    """

    sharding: Columns
    others: Columns
    all_sharding: Columns
    group_size: int
    ranks: tuple[int, ...]
    steps: tuple[int, ...]


def select_messages(analysis: RunAnalysis) -> ShardingMessages | None:
    """Select the sharding traffic; None if there is none."""
    gathers, reductions = find_sharding(analysis).gathers, find_sharding(analysis).reductions
    if len(gathers):  # the schedule of a step has no all_reduces beside gathers
        reductions = select_kind(reductions, SCATTER)
    rows = _add_phases(analysis)
    is_sharding = np.zeros(len(rows), dtype=np.bool_)
    is_sharding[np.concatenate((gathers.row, reductions.row))] = True
    if not is_sharding.any():
        return None
    # Ranks spread evenly over the order of compute time, including the slowest and the median.
    by_rank = analysis.steps.group_by("rank")
    order = by_rank.first[np.argsort(by_rank.mean(analysis.steps.ints("compute_ns")))]
    order = analysis.steps.ints("rank")[order].tolist()
    indices = np.unique(np.linspace(0, len(order) - 1, min(len(order), _MAX_RANKS)).round().astype(int))
    ranks = tuple(sorted({order[index] for index in indices} | {order[len(order) // 2]}))
    steps = _select_steps(analysis, ranks, rows.at(is_sharding))
    before = [step - 1 for step in steps[:1]]
    is_modelled = np.isin(rows.ints("rank"), ranks) & np.isin(rows.ints("step"), [*before, *steps])
    return ShardingMessages(
        sharding=rows.at(is_sharding & is_modelled),
        others=rows.at(~is_sharding & is_modelled),
        all_sharding=rows.at(is_sharding),
        group_size=int(np.median(rows.ints("group_size")[is_sharding])),
        ranks=ranks,
        steps=steps,
    )


def _add_phases(analysis: RunAnalysis) -> Columns:
    rows, passes = analysis.collectives, analysis.passes
    pass_of_row = np.full(len(rows), -1, dtype=np.int64)
    if not len(passes):
        nothing = OptionalInts(pass_of_row, pass_of_row >= 0)
        return rows.with_columns(
            phase=Texts(("unknown",), np.zeros(len(rows), dtype=np.int64)), micro_batch=nothing
        )
    numbers, first = np.unique(passes.ints("row"), return_index=True)
    pass_of_row[numbers] = first
    is_known = pass_of_row >= 0
    phase = passes.texts("phase").at(np.maximum(pass_of_row, 0))
    micro_batch = passes.ints("micro_batch")[pass_of_row], passes.known("micro_batch")[pass_of_row]
    return rows.with_columns(
        phase=phase.with_text(~(is_known & phase.known), "unknown"),
        micro_batch=OptionalInts(micro_batch[0], micro_batch[1] & is_known),
    )


def _select_steps(analysis: RunAnalysis, ranks: tuple[int, ...], sharding: Columns) -> tuple[int, ...]:
    """Return the last steps timed on all of these ranks, with sharding traffic on at least one.

    A marked step may have no traffic, so the result may be empty.
    """
    timed, moved = (rows.at(np.isin(rows.ints("rank"), ranks)) for rows in (analysis.steps, sharding))
    by_step = timed.group_by("step")
    in_all_ranks = by_step.count_distinct(timed.ints("rank")) == len(np.unique(timed.ints("rank")))
    common = timed.ints("step")[by_step.first[in_all_ranks]]
    steps = np.intersect1d(common, moved.ints("step")).tolist()
    messages_per_step = max(1, len(moved) // max(1, int(np.isin(timed.ints("step"), steps).sum())))
    return tuple(steps[-max(_MIN_STEPS, min(_MAX_STEPS, _MAX_MESSAGES // messages_per_step)) :])


class UnitOrder(Struct, frozen=True, kw_only=True):
    """Units in forward order; ``backward`` lists the inner units in the order of their reductions.

    ``not_resharded``: units gathered only for the forward. ``gathers_before_passes``: gathers precede forward
    and backward (stage 3). ``has_unit_names``: messages have their unit's name.
    """

    units: tuple[UnitSize, ...]
    backward: tuple[int, ...]
    not_resharded: frozenset[int]
    gathers_before_passes: bool
    has_gathers: bool
    has_unit_names: bool
    micro_batches: int
    reduce_each: bool


def detect_order(rows: Columns) -> UnitOrder | None:
    """Detect the order of units from the sharding messages; None if no step has a reduction."""
    step = _typical_step(rows)
    gathers, reduces = select_gathers(step), select_reductions(step)
    if not len(reduces):
        return None
    if not reduces.known("unit").all():
        return _order_buckets(gathers, reduces)
    reduced = reduces.texts("unit").list_distinct()
    backward_gathers = gathers.at(gathers.texts("phase").equals("backward", "recompute"))
    forward_gathers = gathers.at(gathers.texts("phase").equals("forward"))
    gathers_before = bool(len(backward_gathers)) or (
        bool(len(forward_gathers)) and bool(forward_gathers.ints("at")[0] < reduces.ints("at")[0])
    )
    gathered = forward_gathers if gathers_before else gathers
    forward = list(gathered.texts("unit").list_distinct() or reduced[::-1])
    forward += [unit for unit in reversed(reduced) if unit not in forward]
    backward_names = backward_gathers.texts("unit").list_distinct()
    root = _find_root(
        forward,
        reduced,
        backward_names,
        gathers_before and bool(len(backward_gathers)),
    )
    sizes = [_measure_unit(unit, gathers, reduces, encloses=unit == root) for unit in forward]
    count = max(1, max(Counter(reduces.texts("unit")).values()))
    batches = max(
        count, max(Counter(forward_gathers.texts("unit")).values(), default=1) if gathers_before else 1
    )
    return UnitOrder(
        units=tuple(sizes),
        backward=tuple(forward.index(unit) for unit in reduced if unit != root),
        not_resharded=frozenset(
            forward.index(unit) for unit in forward if gathers_before and unit not in backward_names
        ),
        gathers_before_passes=gathers_before,
        has_gathers=bool(len(gathers)),
        has_unit_names=True,
        micro_batches=batches,
        reduce_each=count == batches,
    )


def _typical_step(rows: Columns) -> Columns:
    """Return the messages of a (rank, step) with the most common message count, in launch order."""
    reduces = select_reductions(rows)
    chosen = rows.at(np.isin(rows.ints("step"), reduces.ints("step"))) if len(reduces) else rows
    steps = chosen.group_by("rank", "step")
    counts, frequency = np.unique(steps.sizes, return_counts=True)
    typical_count = counts[frequency == frequency.max()].max()
    messages = chosen.at(steps.codes == np.flatnonzero(steps.sizes == typical_count)[-1])
    return sort_by_launch(messages)


def select_gathers(rows: Columns) -> Columns:
    """Return the gathers among the sharding messages."""
    return rows.at(rows.texts("kind").equals(GATHER))


def select_reductions(rows: Columns) -> Columns:
    """Return the sharding messages that are not gathers."""
    return rows.at(~rows.texts("kind").equals(GATHER))


def launch_times_ns(rows: Columns) -> Int64s:
    """Return each message's launch time, or its start if the launch was not recorded."""
    return np.where(rows.known("launch_start_ns"), rows.ints("launch_start_ns"), rows.ints("start_ns"))


def sort_by_launch(rows: Columns) -> Columns:
    """Return the messages sorted by launch time, with the launch times as ``at``."""
    at = launch_times_ns(rows)
    return rows.with_columns(at=at).at(np.argsort(at, kind="stable"))


def _find_root(
    forward: list[str], reduced: list[str], backward_gathered: list[str], has_backward_gathers: bool
) -> str | None:
    first = forward[0]
    if len(forward) < 2 or first != reduced[-1]:
        return None
    if has_backward_gathers and backward_gathered:
        return first if backward_gathered[0] == first else None
    return first if first in _ROOTS else None


def _measure_unit(unit: str, gathers: Columns, reduces: Columns, *, encloses: bool) -> UnitSize:
    reduced = reduces.at(reduces.texts("unit").equals(unit))
    bytes_per_micro_batch = Groups(reduced.ints("micro_batch", -1)).sum(reduced.ints("bytes"))
    reduce_bytes = float(bytes_per_micro_batch.max(initial=0))
    gathered = gathers.ints("bytes")[gathers.texts("unit").equals(unit)]
    return UnitSize(
        name=unit,
        gather_bytes=float(np.median(gathered)) if len(gathered) else reduce_bytes,
        reduce_bytes=reduce_bytes,
        encloses=encloses,
    )


def _order_buckets(gathers: Columns, reduces: Columns) -> UnitOrder | None:
    by_micro_batch = _list_bucket_sizes(reduces)
    sizes, micro_batches = by_micro_batch[0], len(by_micro_batch)
    gather_to_reduce_ratio = float(gathers.ints("bytes").sum()) / sum(sizes) if len(gathers) else 1.0
    units = [
        UnitSize(name=f"bucket {number}", gather_bytes=size * gather_to_reduce_ratio, reduce_bytes=size)
        for number, size in enumerate(reversed(sizes))
    ]
    return UnitOrder(
        units=tuple(units),
        backward=tuple(reversed(range(len(units)))),
        not_resharded=frozenset(),
        gathers_before_passes=False,
        has_gathers=bool(len(gathers)),
        has_unit_names=False,
        micro_batches=micro_batches,
        reduce_each=True,
    )


def _list_bucket_sizes(reduces: Columns) -> list[list[float]]:
    """Return the bucket sizes of each reducing micro-batch if all are equal, else one list for the step."""
    sizes = reduces.floats("bytes")
    if reduces.known("micro_batch").all():
        batches = [sizes[rows].tolist() for rows in Groups(reduces.ints("micro_batch")).split()]
        if all(batch == batches[0] for batch in batches):
            return batches
    return [sizes.tolist()]


def detect_policy(rows: Columns, order: UnitOrder, stage: int | None) -> EnginePolicy:
    """Return the policy shown by the order of launches and waits; ``stage``: the run's stage, or None."""
    if stage is None:
        stage = 3 if order.gathers_before_passes else 2 if order.has_gathers else 0
    reduces = select_reductions(rows)
    return EnginePolicy(
        stage=stage,
        prefetch=_detect_prefetch(rows, order)
        if order.gathers_before_passes and not _awaits_gathers_immediately(rows)
        else 0,
        keep=_detect_kept_units(order),
        overlap_reduce=not _awaits_reductions_immediately(reduces),
        overlap_gather=order.gathers_before_passes or not _awaits_gathers_before_end(rows),
        in_flight=_detect_in_flight(reduces),
    )


def _detect_kept_units(order: UnitOrder) -> str:
    inner = {index for index, unit in enumerate(order.units) if not unit.encloses}
    if not order.not_resharded:
        return "none"
    return "all" if inner <= order.not_resharded and len(inner) > 1 else "last"


def _detect_prefetch(rows: Columns, order: UnitOrder) -> int:
    """Return the number of prefetched gathers in the backward, as a median over steps."""
    enclosing = {unit.name for unit in order.units if unit.encloses}
    depths = []
    for places in rows.group_by("rank", "step").split():
        step = rows.at(places)
        step = step.at(step.ints("micro_batch") == 0)
        step = step.at(np.argsort(step.ints("at"), kind="stable"))
        gathers = select_gathers(step)
        gathers = gathers.at(~gathers.texts("phase").equals("forward"))
        names, launched = gathers.texts("unit").tolist(), gathers.ints("at")
        reduces = select_reductions(step)
        ahead = [
            int((launched < at).sum()) - names.index(name) - 1
            for name, at in zip(reduces.texts("unit").tolist(), reduces.ints("at").tolist(), strict=True)
            if name in names and name not in enclosing
        ]
        if len(names) > 1 and ahead:
            depths.append(max(0, *ahead))
        elif not names:
            depths.append(_detect_forward_prefetch(step))
    return round(float(np.median(depths))) if depths else 1


def _awaits_gathers_immediately(rows: Columns) -> bool:
    """Return True if almost every gather is awaited right after its launch, as in FSDP2 on CPU ranks."""
    gathers = select_gathers(rows)
    gathers = gathers.at(gathers.known("wait_start_ns") & gathers.known("launch_end_ns"))
    if not len(gathers):
        return False
    gap = gathers.ints("wait_start_ns") - gathers.ints("launch_end_ns")
    return float((gap < 10 * _IMMEDIATE_NS).mean()) > _EXPOSED_RATIO


def _detect_forward_prefetch(step: Columns) -> int:
    """Return the number of gathers launched before the first wait, excluding the first gather."""
    gathers = select_gathers(step)
    gathers = gathers.at(gathers.texts("phase").equals("forward"))
    waits = gathers.ints("wait_start_ns")[gathers.known("wait_start_ns")]
    if not len(waits):
        return 1
    return max(0, int((gathers.ints("at") < waits.min()).sum()) - 1)


def _detect_in_flight(reduces: Columns) -> int:
    """Return the maximum number of reductions in flight at a wait, up to the step's last launch."""
    max_pending, limited = 1, False
    known = reduces.at(reduces.known("wait_start_ns"))
    for places in known.group_by("rank", "step").split():
        launched = known.ints("at")[places]
        order = np.argsort(launched, kind="stable")
        at, waits = launched[order], known.ints("wait_start_ns")[places][order]
        for index, wait in enumerate(waits):
            pending = int((at < wait).sum()) - index
            if int((at > wait).sum()):
                limited = True
                max_pending = max(max_pending, pending)
    return max_pending if limited else UNLIMITED


def _awaits_reductions_immediately(reduces: Columns) -> bool:
    known = reduces.at(reduces.known("wait_start_ns") & reduces.known("launch_end_ns"))
    early = known.at(known.ints("at") < _last_launch_ns(known))
    gap = early.ints("wait_start_ns") - early.ints("launch_end_ns")
    return bool(len(gap)) and float(np.median(gap)) < 10 * _IMMEDIATE_NS


def _last_launch_ns(rows: Columns) -> Int64s:
    """Return, for each message, the last launch in its step."""
    steps = rows.group_by("rank", "step")
    return steps.max(rows.ints("at"))[steps.codes]


def _awaits_gathers_before_end(rows: Columns) -> bool:
    """Return True if stages 1 and 2 wait for gathers of new parameters before the next step starts."""
    gathers = select_gathers(rows)
    waits = gathers.at(gathers.known("wait_start_ns"))
    if len(waits) < len(gathers) / 2 or not len(gathers):
        # without recorded waits: if the gathers are exposed, they are awaited immediately
        exposed, elapsed = (
            float(sum(gathers.ints(name).sum() for name in names))
            for names in (("exposed_transfer_ns", "exposed_wait_ns"), ("transfer_ns", "wait_ns"))
        )
        return bool(len(gathers)) and exposed > _EXPOSED_RATIO * elapsed
    gap = waits.ints("wait_start_ns") - _last_launch_ns(waits)
    return bool(gap.max() < np.median(waits.ints("end_ns") - waits.ints("start_ns")))
