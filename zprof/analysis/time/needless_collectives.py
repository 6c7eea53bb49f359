"""Find repeated gathers of units in a step and the reason for each, and price needless collectives.

Each gather counts once, in this order: gathers of a unit already gathered in an earlier micro-batch; a unit's
third gather in a micro-batch, for recomputation; the gather of the last unit, whose forward has just ended;
and the rest, for a backward pass after the forward resharded the unit.

    headroom = device total - device used at the allocated peak        needed = bytes of the kept units

Headroom is known only if the allocator and the device were sampled, so not from a CPU rank or a trace alone.
If gather sizes are not recorded, the units of a model of known size need at most 4 bytes per parameter.

Waiting in these collectives does not count, because the next collective would wait for a late rank instead.
With the fix, they are not launched, and their data is not copied.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import (
    Fact,
    RunAnalysis,
    Untested,
    can_play_kernels,
    count_steps,
    find_missing_collectives,
    make_fact,
    make_untested,
    max_noise_floor_ns,
    mean_per_step,
    mean_wall_ns,
)
from zprof.analysis.columns import Columns, Groups, Mask, Texts, find_places
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.decomposition import select_kind
from zprof.base.formatting import format_bytes
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence
from zprof.model.training import Phase

#: Minimum exposed time as a share of the step, if their cost is decided by playing the step without them.
MIN_PLAYED_RATIO = 0.001
#: Minimum number of steps; fewer may be exceptions.
_MIN_STEPS = 3
#: Minimum size relative to the last micro-batch's reduction: smaller ones serve another purpose (a norm per
#: micro-batch).
_SAME_RATIO = 0.5
_UPDATE = ("rank", "step", "updates")


class CollectiveCost(Struct, frozen=True, kw_only=True):
    """Cost per step, as the mean over ranks and steps."""

    count: float
    bytes: float
    transfer_ns: float
    exposed_ns: float

    @property
    def size(self) -> str:
        """The bytes as text, if the recording contains them."""
        return format_bytes(int(self.bytes)) if self.bytes else "an unknown number of bytes"

    @property
    def size_facts(self) -> tuple[Fact, ...]:
        """The bytes as a fact; empty if unknown."""
        known = make_fact("bytes_per_step", self.bytes)
        return (known,) if self.bytes else ()

    @property
    def lost_ns(self) -> float:
        """The exposed transfer; if all is hidden, the whole transfer, which occupies the link."""
        return self.exposed_ns or self.transfer_ns


def price_collectives(analysis: RunAnalysis, rows: Columns) -> CollectiveCost:
    """Return the cost of these rows of the pass table."""
    priced = analysis.collectives.at(rows.ints("row"))
    return CollectiveCost(
        count=mean_per_step(analysis, len(priced)),
        bytes=mean_per_step(analysis, priced.ints("bytes").sum()),
        transfer_ns=mean_per_step(analysis, priced.ints("transfer_ns").sum()),
        exposed_ns=mean_per_step(analysis, priced.ints("exposed_transfer_ns").sum()),
    )


def select_early_reductions(passes: Columns) -> tuple[Columns, int]:
    """Return the reductions before each update's last micro-batch, and the number of reducing
    micro-batches.
    """
    reduces = ~passes.texts("kind").equals(CollectiveKind.ALL_GATHER.value)
    rows = passes.at(reduces & passes.known("micro_batch"))
    update = Groups(*(rows.ints(name) for name in _UPDATE)).codes
    each = Groups(update, rows.ints("micro_batch"))  # the micro-batches of each update, in order
    updates, micro_batch = Groups(update[each.first]), rows.ints("micro_batch")[each.first]
    reduced_bytes = each.sum(rows.ints("bytes"))
    last = updates.starts + updates.sizes - 1
    counts = reduced_bytes >= _SAME_RATIO * reduced_bytes[last][updates.codes]
    is_early = counts & (micro_batch < updates.max(np.where(counts, micro_batch, -1))[updates.codes])
    return rows.at(is_early[each.codes]), int(updates.sum(counts.astype(np.int64)).max(initial=0))


def find_unknown_units(analysis: RunAnalysis) -> Untested | None:
    """Return what is missing if gathers cannot be assigned to units and micro-batches, else None."""
    missing = find_unknown_micro_batches(analysis)
    if missing:
        return missing
    gathers = select_kind(analysis.passes, CollectiveKind.ALL_GATHER)
    if len(gathers) and not gathers.known("unit").any():
        return make_untested("gathered_unit_unknown")
    return None


def find_unknown_micro_batches(analysis: RunAnalysis) -> Untested | None:
    """Return what is missing if collectives cannot be assigned to micro-batches, else None."""
    missing = find_missing_collectives(analysis)
    if missing:
        return missing
    if len(analysis.passes) and not analysis.passes.known("micro_batch").any():
        return make_untested("passes_unknown")
    return None


def rate_cost(analysis: RunAnalysis, cost: CollectiveCost) -> Confidence:
    """Rate the confidence: counts are proof, but the cost may be noise, and two steps may be exceptions."""
    if cost.exposed_ns < max_noise_floor_ns(analysis):
        return Confidence.LOW
    enough = count_steps(analysis) >= _MIN_STEPS
    by_order = analysis.passes.texts("method").equals("order").any()
    return Confidence.HIGH if enough and not by_order else Confidence.MEDIUM


class RepeatedGather(StrEnum):
    """Why a unit is gathered again in a step."""

    FOR_BACKWARD = "its forward dropped it"
    OF_LAST_UNIT = "its forward has just dropped it"
    FOR_RECOMPUTATION = "its recomputation asks for it"
    IN_LATER_MICRO_BATCH = "an earlier micro-batch dropped it"


#: Minimum exposed time as a share of the step (docs/thresholds.md). Gathers above it are findings that
#: include their copies, which are then not counted again.
MIN_EXPOSED_RATIOS: Mapping[RepeatedGather, float] = {
    RepeatedGather.IN_LATER_MICRO_BATCH: 0.03,
    RepeatedGather.FOR_RECOMPUTATION: 0.02,
    RepeatedGather.OF_LAST_UNIT: 0.02,
    RepeatedGather.FOR_BACKWARD: 0.02,
}

#: Gathers of a unit in a micro-batch: one for the forward, one for the backward pass; a third is for
#: recomputation.
_WITHOUT_RECOMPUTATION = 2
#: Compute between the last unit's gather and its next gather, in units: its own forward, another unit that
#: the gather ran ahead of, and less than one in between.
_MAX_UNITS_BETWEEN = 3
#: Codes of the reasons for a repeated gather, in enumeration order; a unit's first gather has none.
_IS_FIRST, _FOR_BACKWARD, _OF_LAST_UNIT, _FOR_RECOMPUTATION, _IN_LATER_MICRO_BATCH = range(-1, 4)


class Regathers(Struct, frozen=True, kw_only=True):
    """Gathers repeated for one reason: their rows, their cost, and all gathers."""

    rows: Columns
    cost: CollectiveCost
    gathers: Columns


def find_regathers(analysis: RunAnalysis, repeat: RepeatedGather) -> Regathers | Untested | None:
    """Return the gathers repeated for one reason; None if there are none or they are sufficiently hidden."""
    missing = find_unknown_units(analysis)
    if missing:
        return missing
    # a hidden gather still costs the host a launch: playing the step decides, if possible
    min_ratio = 0.0 if can_play_kernels(analysis) else MIN_EXPOSED_RATIOS[repeat]
    return _price_if_exposed(analysis, read_gathers(analysis), repeat, min_ratio)


def select_gone_with(gathers: Columns, repeat: RepeatedGather) -> Columns:
    """Return the gathers that disappear if this reason is removed in all micro-batches.

    Each gather has one reason, and in a later micro-batch it is the micro-batch. But a fix that keeps a unit
    after its forward, or gathers it once for recomputation, also applies to later micro-batches.
    """
    if repeat is RepeatedGather.IN_LATER_MICRO_BATCH:
        return gathers.at(gathers.texts("repeat").equals(repeat))
    gone = [repeat]
    if repeat is RepeatedGather.FOR_BACKWARD:  # a program that keeps all units keeps the last one
        gone.append(RepeatedGather.OF_LAST_UNIT)
    return gathers.at(gathers.texts("in_pass").equals(*gone))


def select_needless_gathers(analysis: RunAnalysis) -> Columns:
    """Return the rows of ``analysis.collectives`` that are needless for any reason."""
    gathers = read_gathers(analysis)
    is_played = can_play_kernels(analysis)
    found = [
        _price_if_exposed(analysis, gathers, repeat, MIN_PLAYED_RATIO if is_played else min_ratio)
        for repeat, min_ratio in MIN_EXPOSED_RATIOS.items()
    ]
    rows = [again.rows.ints("row") for again in found if again is not None]
    return analysis.collectives.at(np.concatenate([np.zeros(0, dtype=np.int64), *rows]))


def _price_if_exposed(
    analysis: RunAnalysis, gathers: Columns, repeat: RepeatedGather, min_ratio: float
) -> Regathers | None:
    rows = gathers.at(gathers.texts("repeat").equals(repeat))
    if not len(rows):
        return None
    cost = price_collectives(analysis, rows)
    if min_ratio and cost.exposed_ns <= min_ratio * mean_wall_ns(analysis):
        return None
    return Regathers(rows=rows, cost=cost, gathers=gathers)


def read_gathers(analysis: RunAnalysis) -> Columns:
    """Return the gathers of known units, the reason for each repetition, and the step's ``micro_batches``.

    Read once per analysis.

    ``repeat`` is None for a unit's first gather in a step. ``in_pass``: the reason within the micro-batch,
    None for a unit's first gather there. Gathers without a known unit or micro-batch, and gathers of a unit
    that is called again, are excluded.
    """
    return analysis.compute_once(_read_gathers)


def _read_gathers(analysis: RunAnalysis) -> Columns:
    passes = analysis.passes
    steps = passes.group_by("rank", "step")
    micro_batches = steps.max(passes.ints("micro_batch", -1))[steps.codes] + 1
    passes = passes.with_columns(micro_batches=micro_batches)
    wanted = passes.texts("kind").equals(CollectiveKind.ALL_GATHER.value)
    wanted &= ~passes.texts("phase").equals(Phase.OPTIMIZER.value)
    rows = passes.at(wanted & passes.known("number") & passes.known("in_micro_batch"))
    rows = rows.at(~_is_called_again(rows))
    in_micro_batch = rows.ints("in_micro_batch")
    of_last = _is_of_last_unit(analysis, rows)
    third = in_micro_batch > _WITHOUT_RECOMPUTATION
    third |= _is_of_kept_unit(rows, third, of_last)
    reason = np.where(third, _FOR_RECOMPUTATION, np.where(of_last, _OF_LAST_UNIT, _FOR_BACKWARD))
    in_pass = np.where(third | (in_micro_batch > 1), reason, _IS_FIRST)
    reasons = [each.value for each in RepeatedGather]
    return rows.with_columns(
        repeat=Texts(reasons, _find_reasons(rows, in_pass)), in_pass=Texts(reasons, in_pass)
    )


def _mark_groups(groups: Groups, mask: Mask) -> Mask:
    """Return a mask of the rows whose group has a marked row."""
    return groups.max(mask)[groups.codes]


def _is_called_again(rows: Columns) -> Mask:
    """Return a mask of the last unit's third gathers if no other unit has any: a head called in parts."""
    steps, unit = rows.group_by("rank", "step"), rows.texts("unit").codes
    third = rows.ints("in_micro_batch") > _WITHOUT_RECOMPUTATION
    of_third = _count_units(steps, unit, third)[steps.codes]
    last, units = _find_last_units(rows, steps), _count_units(steps, unit, rows.ints("number") == 1)
    return third & (of_third == 1) & (unit == last[steps.codes]) & (units[steps.codes] > 1)


def _count_units(steps: Groups, unit: Int64s, chosen: Mask) -> Int64s:
    """Return the number of distinct units among each step's chosen rows."""
    step = steps.codes[chosen]
    return np.bincount(step[Groups(step, unit[chosen]).first], minlength=len(steps))


def _find_last_units(rows: Columns, steps: Groups) -> Int64s:
    """Return, for each step, the code of the unit first gathered last; -1 without gathers."""
    first = rows.ints("number") == 1
    last = np.full(len(steps), -1, dtype=np.int64)
    last[steps.codes[first]] = rows.texts("unit").codes[first]
    return last


def _is_of_kept_unit(rows: Columns, third: Mask, of_last: Mask) -> Mask:
    """Return a mask of recomputation gathers of kept units, which have no other gathers.

    If recomputation causes the third gathers, it also causes the last unit's second gather, and the only
    gather of a unit kept since the previous micro-batch.
    """
    step = rows.group_by("rank", "step")
    unit = Groups(step.codes, rows.texts("unit"))
    micro_batch = Groups(unit.codes, rows.ints("micro_batch"))
    repeats = _mark_groups(unit, third)
    last = _mark_groups(unit, of_last) & _mark_groups(step, third)
    count = micro_batch.max(rows.ints("in_micro_batch"))[micro_batch.codes]
    forward = _mark_groups(micro_batch, rows.texts("phase").equals(Phase.FORWARD.value))
    since_before = (repeats | last) & ~forward & (rows.ints("micro_batch") > 0) & (count == 1)
    return since_before | (last & of_last & (count == _WITHOUT_RECOMPUTATION))


def _find_reasons(rows: Columns, in_pass: Int64s) -> Int64s:
    again = rows.ints("number") > 1
    # a unit kept since the first micro-batch would not be gathered in later ones at all
    begins = (rows.ints("in_micro_batch") == 1) & rows.texts("phase").equals(Phase.FORWARD.value)
    unit = Groups(rows.ints("rank"), rows.ints("step"), rows.texts("unit"), rows.ints("micro_batch"))
    further = again & (rows.ints("micro_batch") > 0) & _mark_groups(unit, begins)
    # if a micro-batch did not start with a forward, it is only known that the unit was present
    reason = np.where(in_pass == _IS_FIRST, _FOR_BACKWARD, in_pass)
    return np.where(again, np.where(further, _IN_LATER_MICRO_BATCH, reason), _IS_FIRST)


def _is_of_last_unit(analysis: RunAnalysis, rows: Columns) -> Mask:
    """Return a mask of repeated gathers of the forward's last unit with little compute in between.

    The last unit is the same in all of a rank's steps: with missing events, a step may seem to end with
    another.
    """
    steps, unit = rows.group_by("rank", "step"), rows.texts("unit")
    units = _count_units(steps, unit.codes, rows.ints("number") == 1)[steps.codes]
    last = _find_usual_last_unit(rows, steps)[steps.codes]
    # The forward's compute in each row's step: a third of all compute, also with recomputation.
    places = find_places(*([table.ints("rank"), table.ints("step")] for table in (rows, analysis.steps)))
    forward_ns = np.append(analysis.steps.ints("compute_ns") / 3, np.nan)[places]
    least_ns = np.where(units > 0, _MAX_UNITS_BETWEEN * forward_ns / np.maximum(units, 1), 0.0)
    little = rows.known("compute_between_ns") & (rows.ints("compute_between_ns") < least_ns)
    return (unit.codes == last) & (units > 1) & little


def _find_usual_last_unit(rows: Columns, steps: Groups) -> Int64s:
    """Return, for each step, the code of the unit with which most of the rank's steps end; ties go by
    name.
    """
    rank, last = rows.ints("rank")[steps.first], _find_last_units(rows, steps)
    known = last >= 0
    ends = Groups(rank[known], Texts(rows.texts("unit").words, last[known]))
    end_rank, end_unit = rank[known][ends.first], last[known][ends.first]
    order = np.lexsort((-ends.sizes, end_rank))
    ranks = Groups(end_rank[order])
    usual = np.append(end_unit[order][ranks.first], -1)
    return usual[find_places([rank], [end_rank[order][ranks.first]])]


_PEAK_MOMENT = "allocated peak"
_MAX_BYTES_PER_PARAMETER = 4


class Headroom(Struct, frozen=True, kw_only=True):
    """Memory for keeping units: minimum ``free_bytes`` over ranks, None if no memory was recorded.

    ``needed_bytes`` is 0 if the sizes of the units were not recorded.
    """

    needed_bytes: int
    free_bytes: int | None

    @property
    def suffices(self) -> bool | None:
        """True if the units fit, None if unknown."""
        if self.free_bytes is None or not self.needed_bytes:
            return None
        return self.free_bytes >= self.needed_bytes

    @property
    def description(self) -> str:
        """The headroom as text."""
        if not self.needed_bytes:
            return "the memory needed to keep them is unknown"
        needed = format_bytes(self.needed_bytes)
        if self.free_bytes is None:
            return f"keeping them takes {needed}, headroom unknown"
        fits = "which fits" if self.suffices else "which does not fit"
        return f"keeping them takes {needed}, {fits}: {format_bytes(self.free_bytes)} are free at the peak"

    @property
    def facts(self) -> Sequence[Fact]:
        """The headroom as facts."""
        needed = make_fact("memory_to_keep_units", self.needed_bytes)
        rows = [needed] if self.needed_bytes else []
        if self.free_bytes is not None:
            rows.append(make_fact("free_at_peak", self.free_bytes))
        return rows

    def at_most(self, confidence: Confidence) -> Confidence:
        """Cap the confidence: MEDIUM if the memory may not suffice, LOW if it does not."""
        if self.suffices is False:
            return Confidence.LOW
        return Confidence.MEDIUM if confidence is Confidence.HIGH and not self.suffices else confidence


def measure_headroom(analysis: RunAnalysis, gathers: Columns) -> Headroom:
    """Return the headroom for the units in ``gathers``, each counted once."""
    rank, unit = gathers.ints("rank"), gathers.texts("unit")
    each = Groups(rank, gathers.ints("step"), unit, gathers.ints("number"))  # a unit's pieces together
    units = Groups(rank[each.first], unit.at(each.first))
    once = Groups(rank[each.first][units.first]).sum(units.max(each.sum(gathers.ints("bytes"))))
    free = [
        device.device_total_bytes - device.device_used_bytes
        for device in analysis.memory.devices
        if device.moment == _PEAK_MOMENT
        and device.device_total_bytes is not None
        and device.device_used_bytes is not None
    ]
    needed = int(once.max()) if len(once) else 0
    return Headroom(
        needed_bytes=needed or _MAX_BYTES_PER_PARAMETER * (analysis.training.parameters or 0),
        free_bytes=min(free, default=None),
    )
